/* Convolution and linear layers as matrix products over unfolded windows ("im2col").
 *
 *   y  (K x N*P)        = weight (K x C*kh*kw) . col (C*kh*kw x N*P)      P output positions of a sample
 *   dcol                = weight^T . dy, folded back into dx by adding
 *   d weight            = dy . col^T
 *
 * A linear layer is a convolution whose window is the whole image, or (op.each) one position. A 1x1 window of stride 1
 * needs no unfolding. The samples are taken some at a time, as many as fit into plan->col. Groups of channels are
 * products by themselves, one after another. */
#include <string.h>

#include "worker/device/ref/ref.h"

enum { COL_LIMIT = 1 << 22 }; /* elements: 32 MiB */

struct geometry {
    size_t n; /* samples */
    size_t groups;
    size_t c, h, w, k, oh, ow; /* image and output of one sample, channels of one group */
    size_t kh, kw, sh, sw, ph, pw;
    size_t window, positions; /* C*kh*kw and oh*ow */
    bool direct;              /* col would be x itself */
    size_t some;              /* samples at a time */
};

/* x and y are the forward tensors (or their gradients, of the same shape). */
static struct geometry geometry(const struct ref_plan *pl, const struct op *op, int x, int y)
{
    const struct tensor *tx = &pl->p->tensors[x], *ty = &pl->p->tensors[y];
    bool linear = op->kind == OP_LINEAR || op->kind == OP_LINEAR_BWD_DATA || op->kind == OP_LINEAR_BWD_PARAM;
    const size_t groups = (size_t)op->groups;
    struct geometry g = {.n = ref_samples(pl, x),
                         .groups = groups,
                         .c = (size_t)tx->c / groups,
                         .h = (size_t)tx->h,
                         .w = (size_t)tx->w,
                         .k = (size_t)ty->c / groups,
                         .oh = (size_t)ty->h,
                         .ow = (size_t)ty->w,
                         .kh = op->each ? 1
                               : linear ? (size_t)tx->h
                                        : (size_t)op->kh,
                         .kw = op->each ? 1
                               : linear ? (size_t)tx->w
                                        : (size_t)op->kw,
                         .sh = linear ? 1 : (size_t)op->sh,
                         .sw = linear ? 1 : (size_t)op->sw,
                         .ph = linear ? 0 : (size_t)op->ph,
                         .pw = linear ? 0 : (size_t)op->pw};
    g.window = g.c * g.kh * g.kw;
    g.positions = g.oh * g.ow;
    g.direct = g.kh == 1 && g.kw == 1 && g.sh == 1 && g.sw == 1 && !g.ph && !g.pw;
    g.some = g.direct ? g.n : COL_LIMIT / (g.window * g.positions);
    if (g.some < 1)
        g.some = 1;
    if (g.some > g.n)
        g.some = g.n;
    return g;
}

static struct geometry geometry_of(const struct ref_plan *pl, const struct op *op)
{
    const enum op_work work = op_facts(op->kind)->work;
    if (work == WORK_FORWARD)
        return geometry(pl, op, op->in[0], op->out);
    if (work == WORK_DATA)
        return geometry(pl, op, op->out, op->in[0]);
    return geometry(pl, op, op->in[0], op->in[1]);
}

size_t ref_col_elements(const struct ref_plan *pl, const struct op *op)
{
    if (!op_is_product(op->kind) || op->kind == OP_HEAD || op->kind == OP_HEAD_BWD)
        return 0;
    struct geometry g = geometry_of(pl, op);
    return g.direct ? 0 : g.window * g.positions * g.some;
}

/* Source coordinate of output o and window position k; false in the padding. */
static bool inside(size_t o, size_t stride, size_t k, size_t pad, size_t side, size_t *ret)
{
    size_t at = o * stride + k;
    *ret = at - pad;
    return at >= pad && at - pad < side;
}

/* Unfold samples [n0, n0 + count) of x into col (window x count * P). */
static void unfold(const struct ref_plan *pl, const struct geometry *g, const double *x, size_t n0, size_t count)
{
    int threads = pl->threads;
    size_t n = g->n;
    PARALLEL_FOR
    for (size_t r = 0; r < g->window; r++) {
        size_t c = r / (g->kh * g->kw), ky = r / g->kw % g->kh, kx = r % g->kw;
        double *out = pl->col + r * count * g->positions;
        for (size_t s = 0; s < count; s++)
            for (size_t oy = 0; oy < g->oh; oy++)
                for (size_t ox = 0; ox < g->ow; ox++) {
                    size_t iy, ix;
                    bool in = inside(oy, g->sh, ky, g->ph, g->h, &iy);
                    in = inside(ox, g->sw, kx, g->pw, g->w, &ix) && in;
                    *out++ = in ? x[((c * n + n0 + s) * g->h + iy) * g->w + ix] : 0;
                }
    }
}

/* The transpose of unfold: add col to samples [n0, n0 + count) of dx. */
static void fold(const struct ref_plan *pl, const struct geometry *g, double *dx, size_t n0, size_t count)
{
    int threads = pl->threads;
    size_t n = g->n, rows = g->kh * g->kw;
    PARALLEL_FOR
    for (size_t c = 0; c < g->c; c++)
        for (size_t r = c * rows; r < (c + 1) * rows; r++) {
            size_t ky = r / g->kw % g->kh, kx = r % g->kw;
            const double *from = pl->col + r * count * g->positions;
            for (size_t s = 0; s < count; s++)
                for (size_t oy = 0; oy < g->oh; oy++)
                    for (size_t ox = 0; ox < g->ow; ox++, from++) {
                        size_t iy, ix;
                        bool in = inside(oy, g->sh, ky, g->ph, g->h, &iy);
                        in = inside(ox, g->sw, kx, g->pw, g->w, &ix) && in;
                        if (in)
                            dx[((c * n + n0 + s) * g->h + iy) * g->w + ix] += *from;
                    }
        }
}

/* The matrix col for samples [n0, n0 + count). */
static struct matrix columns(const struct ref_plan *pl, const struct geometry *g, const double *x, size_t n0,
                             size_t count)
{
    if (g->direct)
        return (struct matrix){x + n0 * g->positions, g->n * g->positions, 1};
    unfold(pl, g, x, n0, count);
    return (struct matrix){pl->col, count * g->positions, 1};
}

/* From n0 on, before `end`. */
static size_t images_at_once(const struct geometry *g, size_t n0, size_t end)
{
    size_t left = end - n0;
    return left < g->some ? left : g->some;
}

/* y of one group, (k, N, oh, ow), from its x (c, N, h, w) and weight (k, c * kh * kw). */
static void product(struct ref_plan *pl, const struct geometry *g, const double *weight, const double *x, double *y)
{
    const struct matrix by = {weight, g->window, 1};
    for (size_t n0 = 0, count; n0 < g->n; n0 += count) {
        count = images_at_once(g, n0, g->n);
        ref_gemm(pl->threads, g->k, count * g->positions, g->window, by, columns(pl, g, x, n0, count),
                 y + n0 * g->positions, g->n * g->positions, false);
    }
}

/* Elements of one group of x, of y, of the weight. */
static size_t x_of_group(const struct geometry *g)
{
    return g->c * g->n * g->h * g->w;
}

static size_t y_of_group(const struct geometry *g)
{
    return g->k * g->n * g->positions;
}

static size_t weight_of_group(const struct geometry *g)
{
    return g->k * g->window;
}

int ref_product(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    struct geometry g = geometry_of(pl, op);
    double *y = pl->value[op->out]; /* (K, N, oh, ow) */
    size_t run = g.n * g.positions;
    for (size_t j = 0; j < g.groups; j++)
        product(pl, &g, ref_param(pl, op->param[0]) + j * weight_of_group(&g),
                pl->value[op->in[0]] + j * x_of_group(&g), y + j * y_of_group(&g));
    for (size_t k = 0; k < g.groups * g.k && op->param[1] >= 0; k++)
        for (size_t i = 0; i < run; i++)
            y[k * run + i] += ref_param(pl, op->param[1])[k];
    return 0;
}

/* dx of one group, (c, N, h, w), from its dy (k, N, oh, ow). */
static void product_bwd_data(struct ref_plan *pl, const struct geometry *g, const double *weight, const double *dy,
                             double *dx)
{
    const struct matrix transposed = {weight, 1, g->window}; /* (c * kh * kw, k) */
    for (size_t n0 = 0, count; n0 < g->n; n0 += count) {
        count = images_at_once(g, n0, g->n);
        struct matrix grad = {dy + n0 * g->positions, g->n * g->positions, 1};
        ref_gemm(pl->threads, g->window, count * g->positions, g->k, transposed, grad, g->direct ? dx : pl->col,
                 count * g->positions, false);
        if (!g->direct)
            fold(pl, g, dx, n0, count);
    }
}

int ref_product_bwd_data(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    struct geometry g = geometry_of(pl, op);
    double *dx = pl->value[op->out]; /* (C, N, h, w) */
    if (!g.direct)
        memset(dx, 0, ref_elements(pl, op->out) * sizeof *dx);
    for (size_t j = 0; j < g.groups; j++)
        product_bwd_data(pl, &g, ref_param(pl, op->param[0]) + j * weight_of_group(&g),
                         pl->value[op->in[0]] + j * y_of_group(&g), dx + j * x_of_group(&g));
    return 0;
}

/* dw of one group over samples [from, to). */
static void product_bwd_param(struct ref_plan *pl, const struct geometry *g, const double *x, const double *dy,
                              size_t from, size_t to, double *dw, bool add)
{
    for (size_t n0 = from, count; n0 < to; n0 += count) {
        count = images_at_once(g, n0, to);
        struct matrix grad = {dy + n0 * g->positions, g->n * g->positions, 1}, col = columns(pl, g, x, n0, count);
        struct matrix transposed = {col.at, col.col, col.row}; /* (count * P, c * kh * kw) */
        ref_gemm(pl->threads, g->k, g->window, count * g->positions, grad, transposed, dw, g->window, n0 > from || add);
    }
}

int ref_product_bwd_param(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    struct geometry g = geometry_of(pl, op);
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]]; /* (C, N, h, w), (K, N, oh, ow) */
    size_t run = g.n * g.positions;
    const size_t from = pl->row_first, to = pl->row_end ? pl->row_end : g.n;
    for (size_t j = 0; j < g.groups; j++)
        product_bwd_param(pl, &g, x + j * x_of_group(&g), dy + j * y_of_group(&g), from, to,
                          ref_gradient(pl, op->param[0]) + j * weight_of_group(&g), a->accumulate);
    for (size_t k = 0; k < g.groups * g.k && op->param[1] >= 0; k++) {
        double sum = 0, *bias = ref_gradient(pl, op->param[1]) + k;
        for (size_t i = from * g.positions; i < to * g.positions; i++)
            sum += dy[k * run + i];
        *bias = a->accumulate ? *bias + sum : sum;
    }
    return 0;
}
