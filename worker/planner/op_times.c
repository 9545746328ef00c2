/* Measures operations by running programs, and remembers them by kind and shapes. */
#include "worker/planner/op_times.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/seeded_hash.h"
#include "worker/device/device.h"
#include "worker/planner/op_times_impl.h"
#include "worker/program/program.h"

struct entry {
    uint64_t key;
    double value;
    UT_hash_handle hh;
};

struct op_times {
    struct entry *all;
};

int op_times_create(struct op_times **ret, struct err *e)
{
    *ret = calloc(1, sizeof **ret);
    return *ret ? 0 : err_errno(e, ENOMEM, "times of operations");
}

void op_times_destroy(struct op_times *t)
{
    struct entry *x, *next;
    if (!t)
        return;
    HASH_ITER (hh, t->all, x, next) {
        HASH_DEL(t->all, x);
        free(x);
    }
    free(t);
}

/* --- keys: FNV-1a of a text that says it all */

static uint64_t hash_of(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

static int shape(const struct program *p, int tensor, char *out, size_t cap)
{
    const struct tensor *t = tensor >= 0 ? &p->tensors[tensor] : NULL;
    return t ? snprintf(out, cap, "|%s %d %d %d %d", t->name, t->c, t->h, t->w, t->ranks) : snprintf(out, cap, "|");
}

/* What a plan makes of all operations. */
static int manner(const struct op_load *l, char *out, size_t cap)
{
    const struct plan_options *o = l->plan;
    return snprintf(out, cap, "%d %d %d %d %d %d", o->batch, (int)o->compute, (int)o->emulate, (int)o->half,
                    (int)o->format, o->fresh_weights || o->needs);
}

static uint64_t op_key(const struct op_load *l, int op)
{
    const struct program *p = l->program;
    const struct op *x = &p->ops[op];
    char text[512];
    size_t at = (size_t)manner(l, text, sizeof text);
    at += (size_t)snprintf(text + at, sizeof text - at, "|%s%s", x->fixed ? "fixed " : "", op_name(x->kind));
    at += (size_t)shape(p, x->in[0], text + at, sizeof text - at);
    at += (size_t)shape(p, x->in[1], text + at, sizeof text - at);
    at += (size_t)shape(p, x->out, text + at, sizeof text - at);
    if (x->param[0] >= 0)
        snprintf(text + at, sizeof text - at, "|%s %zu", p->params[x->param[0]].name, p->params[x->param[0]].count);
    return hash_of(text);
}

static uint64_t named_key(const struct op_load *l, const char *what, int tensor)
{
    char text[256];
    size_t at = (size_t)manner(l, text, sizeof text);
    at += (size_t)snprintf(text + at, sizeof text - at, "|%s", what);
    shape(l->program, tensor, text + at, sizeof text - at);
    return hash_of(text);
}

static const struct entry *find(const struct op_times *t, uint64_t key)
{
    struct entry *x;
    HASH_FIND(hh, t->all, &key, sizeof key, x);
    return x;
}

static void put(struct op_times *t, uint64_t key, double value)
{
    struct entry *x = (struct entry *)(uintptr_t)find(t, key);
    if (!x && (x = calloc(1, sizeof *x))) { /* without memory it is not known: op_times_know() says so */
        x->key = key;
        HASH_ADD(hh, t->all, key, sizeof x->key, x);
        if (!x->hh.tbl) {
            free(x);
            x = NULL;
        }
    }
    if (x)
        x->value = value;
}

static double value_of(const struct op_times *t, uint64_t key)
{
    const struct entry *x = find(t, key);
    return x ? x->value : 0;
}

bool op_times_know(const struct op_times *t, const struct op_load *l)
{
    for (int i = 0; i < l->program->nops; i++)
        if (!find(t, op_key(l, i)))
            return false;
    return true;
}

void op_times_claim(struct op_times *t, const struct op_load *l)
{
    for (int i = 0; i < l->program->nops; i++)
        if (!find(t, op_key(l, i)))
            put(t, op_key(l, i), 0);
}

double op_times_of(const struct op_times *t, const struct op_load *l, int op)
{
    return value_of(t, op_key(l, op));
}

void op_times_put_op(struct op_times *t, const struct op_load *l, int op, double seconds)
{
    put(t, op_key(l, op), seconds);
}

/* Seconds a byte of what goes over a boundary. */
double op_times_boundary(const struct op_times *t, const struct op_load *l, const struct program_chunk *c,
                         bool backward)
{
    const int in = backward ? c->d_out : c->in, out = backward ? c->d_in : c->out;
    return value_of(t, named_key(l, "come in", in)) + value_of(t, named_key(l, "go out", out));
}

void op_times_put_boundary(struct op_times *t, const struct op_load *l, int tensor, bool in, double seconds)
{
    put(t, named_key(l, in ? "come in" : "go out", tensor), seconds);
}

/* By the number of weights: what a pass refreshes is in proportion to them. */
static double weights_of(const struct program *p, const struct program_chunk *c)
{
    double n = 0;
    for (int i = c ? c->first : 0; i < (c ? c->end : p->nfwd); i++) {
        const struct param *w = p->ops[i].param[0] >= 0 ? &p->params[p->ops[i].param[0]] : NULL;
        n += w && w->role == PARAM_TRAIN && w->ndim > 1 ? (double)w->count : 0;
    }
    return n;
}

double op_times_refresh(const struct op_times *t, const struct op_load *l, const struct program_chunk *c)
{
    double a_weight = 0;
    return op_times_get(t, "refresh", &a_weight) ? a_weight * weights_of(l->program, c) : 0;
}

void op_times_put_refresh(struct op_times *t, const struct op_load *l, const struct program_chunk *c, double seconds)
{
    const double n = weights_of(l->program, c);
    double known = 0;
    if (n > 0 && (!op_times_get(t, "refresh of", &known) || n >= known)) { /* that of the most weights is the truest */
        op_times_set(t, "refresh", seconds / n);
        op_times_set(t, "refresh of", n);
    }
}

void op_times_set(struct op_times *t, const char *name, double value)
{
    put(t, hash_of(name), value);
}

bool op_times_get(const struct op_times *t, const char *name, double *ret)
{
    const struct entry *x = find(t, hash_of(name));
    if (x)
        *ret = x->value;
    return x != NULL;
}

/* --- as text */

int op_times_text(const struct op_times *t, char **ret, struct err *e)
{
    struct buf b = {0};
    int rc = buf_addstr(&b, "");
    for (const struct entry *x = t->all; x && rc >= 0; x = x->hh.next)
        rc = buf_printf(&b, "%016" PRIx64 " %.9g\n", x->key, x->value);
    if (rc < 0) {
        buf_free(&b);
        return err_errno(e, ENOMEM, "times of operations");
    }
    *ret = b.data;
    return 0;
}

int op_times_read(struct op_times *t, const char *text, struct err *e)
{
    for (const char *at = text; *at;) {
        const char *end = strchr(at, '\n');
        uint64_t key;
        double value;
        int used = 0;
        if (!end || sscanf(at, "%16" SCNx64 " %lf%n", &key, &value, &used) != 2 || at + used != end || !(value >= 0))
            return err_set(e, ERR_DATA, "times of operations: '%.40s' is no line of them", at);
        put(t, key, value);
        at = end + 1;
    }
    return 0;
}
