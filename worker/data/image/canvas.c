/* Coverage by sub-scanlines: each pixel row is cut into SUBROWS lines; along a line the coverage of a pixel is exact
 * (lengths of the inside spans), so edges are smooth at any angle. Only + - * / on doubles: the same picture on every
 * machine. */
#include "worker/data/image/canvas.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "worker/data/image/portable_math.h"

#define SUBROWS 4

void outline_clear(struct outline *o)
{
    memset(o->end, 0, sizeof o->end);
    o->parts = 0;
}

void outline_add(struct outline *o, double x, double y)
{
    assert(o->parts < OUTLINE_PARTS);
    int *end = &o->end[o->parts];
    if (*end == 0 && o->parts > 0)
        *end = o->end[o->parts - 1];
    assert(*end < OUTLINE_MAX);
    o->p[(*end)++] = (struct point){x, y};
}

void outline_close(struct outline *o)
{
    o->parts++;
}

void outline_arc(struct outline *o, double cx, double cy, double rx, double ry, double a, double b, int points)
{
    for (int i = 0; i < points; i++) {
        double t = a + (b - a) * i / (points - 1);
        outline_add(o, cx + rx * pm_cos(t), cy + ry * pm_sin(t));
    }
}

static double part_area(const struct point *p, int n)
{
    double twice = 0.0;
    for (int i = 0; i < n; i++) {
        const struct point *q = &p[(i + 1) % n];
        twice += p[i].x * q->y - q->x * p[i].y;
    }
    return fabs(twice) / 2.0;
}

double outline_area(const struct outline *o)
{
    double area = part_area(o->p, o->end[0]);
    for (int i = 1; i < o->parts; i++)
        area -= part_area(o->p + o->end[i - 1], o->end[i] - o->end[i - 1]);
    return area;
}

void outline_transform(struct outline *o, const double m[4], double cx, double cy)
{
    for (int i = 0; i < o->end[o->parts - 1]; i++) {
        struct point p = o->p[i];
        o->p[i].x = cx + m[0] * p.x + m[1] * p.y;
        o->p[i].y = cy + m[2] * p.x + m[3] * p.y;
    }
}

/* x of the outline's edges on the line y, ascending. Returns their number (even). */
static int crossings(const struct outline *o, double y, double x[OUTLINE_MAX])
{
    int n = 0, begin = 0;
    for (int part = 0; part < o->parts; begin = o->end[part++]) {
        for (int i = begin; i < o->end[part]; i++) {
            const struct point *p = &o->p[i], *q = &o->p[i + 1 < o->end[part] ? i + 1 : begin];
            if ((p->y <= y) == (q->y <= y))
                continue;
            double at = p->x + (y - p->y) * (q->x - p->x) / (q->y - p->y);
            int k = n++;
            for (; k > 0 && x[k - 1] > at; k--)
                x[k] = x[k - 1];
            x[k] = at;
        }
    }
    return n;
}

/* Add the share of each pixel of a row that [x0, x1) covers. */
static void add_span(float *row, int size, double x0, double x1, float weight)
{
    x0 = x0 < 0.0 ? 0.0 : x0;
    x1 = x1 > size ? size : x1;
    for (int i = (int)x0; i < x1; i++) {
        double left = x0 > i ? x0 : i, right = x1 < i + 1 ? x1 : i + 1;
        row[i] += weight * (float)(right - left);
    }
}

void canvas_fill(struct canvas *c, const struct outline *o, const float colour[3], float opacity)
{
    float cover[CANVAS_MAX];
    double x[OUTLINE_MAX], top = o->p[0].y, bottom = top;
    for (int i = 1; i < o->end[o->parts - 1]; i++) {
        top = o->p[i].y < top ? o->p[i].y : top;
        bottom = o->p[i].y > bottom ? o->p[i].y : bottom;
    }
    for (int row = top < 0.0 ? 0 : (int)top; row < c->size && row <= bottom; row++) {
        memset(cover, 0, sizeof *cover * (size_t)c->size);
        for (int sub = 0; sub < SUBROWS; sub++) {
            int n = crossings(o, row + (sub + 0.5) / SUBROWS, x);
            for (int i = 0; i + 1 < n; i += 2)
                add_span(cover, c->size, x[i], x[i + 1], 1.0f / SUBROWS);
        }
        float *px = c->rgb + (size_t)row * (size_t)c->size * 3;
        for (int i = 0; i < c->size; i++, px += 3)
            for (int k = 0; k < 3; k++)
                px[k] += cover[i] * opacity * (colour[k] - px[k]);
    }
}
