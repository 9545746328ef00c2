/* Keeps a curve in bounded memory by merging points (curve.h). */
#include "rendezvousd/history/curve.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define FIRST 16
#define RATE_POINTS 16 /* points from which the speed is computed */

const char *const curve_names[CURVE_N] = {
#define X(name, text) text,
    CURVE_SERIES(X)
#undef X
};

/* Merge two points of the given weights; b comes after a. After a restart only points after it count. */
static struct curve_point merged(const struct curve_point *a, const struct curve_point *b, float wa, float wb)
{
    struct curve_point m = *b;
    if (b->step < a->step)
        return m;
    for (int i = 0; i < CURVE_N; i++)
        m.v[i] = isnan(a->v[i]) ? b->v[i] : isnan(b->v[i]) ? a->v[i] : (a->v[i] * wa + b->v[i] * wb) / (wa + wb);
    return m;
}

static void halve(struct curve *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i += 2, n++)
        c->v[n] = i + 1 < c->n ? merged(&c->v[i], &c->v[i + 1], 1, 1) : c->v[i];
    c->in_last = c->n % 2 ? c->in_last : c->stride + c->in_last;
    c->n = n;
    c->stride *= 2;
}

static int make_room(struct curve *c)
{
    if (c->n < c->cap)
        return 0;
    const uint32_t cap = c->cap ? 2 * c->cap : FIRST;
    struct curve_point *v = realloc(c->v, cap * sizeof *v);
    if (!v)
        return -ENOMEM;
    c->v = v;
    c->cap = cap;
    return 0;
}

int curve_add(struct curve *c, const struct curve_point *p)
{
    if (c->stride == 0)
        c->stride = 1;
    if (c->n > 0 && c->in_last < c->stride) {
        c->v[c->n - 1] = merged(&c->v[c->n - 1], p, (float)c->in_last, 1);
        c->in_last++;
        return 0;
    }
    if (c->n == CURVE_MAX)
        halve(c);
    if (c->n > 0 && c->in_last < c->stride)
        return curve_add(c, p);
    const int rc = make_room(c);
    if (rc < 0)
        return rc;
    c->v[c->n++] = *p;
    c->in_last = 1;
    return 0;
}

void curve_end(struct curve *c)
{
    while (c->n > CURVE_KEPT)
        halve(c);
    struct curve_point *v = c->n ? realloc(c->v, c->n * sizeof *v) : NULL;
    if (v) {
        c->v = v;
        c->cap = c->n;
    }
}

void curve_free(struct curve *c)
{
    free(c->v);
    *c = (struct curve){0};
}

double curve_steps_per_s(const struct curve *c, double now_s)
{
    if (c->n < 2)
        return 0;
    const struct curve_point *last = &c->v[c->n - 1], *first = last;
    while (first > c->v && last - first < RATE_POINTS && first[-1].step <= first->step)
        first--;
    const double seconds = now_s - first->t_s;
    return last->step > first->step && seconds > 0 ? (last->step - first->step) / seconds : 0;
}
