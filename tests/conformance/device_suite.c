/* Every op of the device interface, forward and backward, on the device under test against ref: single-op programs over
 * awkward shapes.
 *
 * Bounds, with eps = 2^-24 and u the rounding of a stored value (0 in fp32, 2^-8 in bf16; fp32's own is within the
 * first term):
 *   (fp16: u = 2^-11 and, below 2^-14, 2^-25; its gradients of weights are stored so, too; the cuda device stores those
 *   of bf16 so)
 *   multilinear ops   |error| <= c sqrt(k) eps S + u |value|, c = 4, k = length of the sum, S = sum of |a_i b_i|, which
 *                     ref itself computes from absolute values. sqrt(k): rounding errors of a sum are independent of
 *                     one another
 *   tf32              convolutions and linear layers: operands lose what is beyond 11 bits, 2^-10 of each at most (cut
 *                     off; rounded: half of it), so 2 * 2^-10 S more
 *   relu, max pooling exact
 *   bn, norm          bn_bounds(), norm_bounds() follow rounding through the formula; sums run over at most 128 values
 *                     in fp32: 12 eps each
 *   activations       act_bound()
 *   rotations         of two values below 1, by sines and cosines that are rounded: 8 eps + u |value|
 *   head              head_bounds() follows the rounding of logits, and of their gradients, through both products
 *   cross entropy     double inside, so one rounding of the result: 2 eps |value| + u |value|
 * Inputs and weights are representable in the type under test. For each op a mutant (wrong padding, scale, operand)
 * must be caught. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/conformance/device_rig.h"

static const double EPS = 0x1p-24, C = 4;
enum { BATCH_MAX = 8, CLASSES = 7, ROWS_MAX = 2048 };

struct shape {
    int n, c, h, w, k, kernel, stride, pad;
};

static const struct shape shapes[] = {
    /* n  c  h   w   k  kernel stride pad */
    {1, 3, 7, 7, 5, 3, 1, 1},     {2, 3, 15, 13, 16, 7, 2, 3},  {1, 16, 9, 9, 32, 3, 2, 1},
    {3, 17, 5, 7, 9, 3, 1, 1},    {2, 64, 8, 8, 64, 3, 1, 1},   {2, 32, 7, 7, 48, 1, 2, 0},
    {1, 24, 6, 6, 40, 1, 1, 0},   {2, 1, 12, 12, 10, 5, 1, 0},  {4, 64, 10, 9, 48, 3, 1, 1},
    {5, 33, 3, 3, 65, 3, 2, 1},   {2, 16, 6, 5, 16, 2, 2, 0},   {4, 8, 16, 16, 8, 3, 2, 1},
    {8, 2, 1, 1, 3, 1, 1, 0},     {2, 128, 7, 7, 256, 3, 2, 1}, {2, 2048, 6, 6, 64, 1, 1, 0}, /* rows of whole pages */
    {5, 12, 16, 16, 37, 1, 1, 0}, /* more rows than a block of logits has */
};
enum { NSHAPES = sizeof(shapes) / sizeof(shapes[0]) };

#define GROUPS_OF(X)                                                                                                   \
    X(INPUT, "input")                                                                                                  \
    X(CONV, "conv")                                                                                                    \
    X(CONV_BIAS, "conv_with_bias")                                                                                     \
    X(BN, "bn")                                                                                                        \
    X(BN_EVAL, "bn_by_running_statistics")                                                                             \
    X(RELU, "relu")                                                                                                    \
    X(ADD, "add")                                                                                                      \
    X(MAXPOOL, "maxpool")                                                                                              \
    X(AVGPOOL, "avgpool")                                                                                              \
    X(LINEAR, "linear")                                                                                                \
    X(XENT, "cross_entropy")                                                                                           \
    X(DEPTHWISE, "depthwise_conv")                                                                                     \
    X(CONV_GROUPS, "conv_of_four_groups")                                                                              \
    X(CONV_NARROW, "conv_of_narrow_groups")                                                                            \
    X(LINEAR_EACH, "linear_of_each_position")                                                                          \
    X(NORM, "norm")                                                                                                    \
    X(RMS, "rms_norm")                                                                                                 \
    X(SCALE, "scale")                                                                                                  \
    X(DROP, "dropout")                                                                                                 \
    X(DROP_SAMPLES, "stochastic_depth")                                                                                \
    X(ATTENTION, "attention")                                                                                          \
    X(CAUSAL, "causal_attention")                                                                                      \
    X(PREPEND, "prepend")                                                                                              \
    X(POSITION, "position")                                                                                            \
    X(PICK, "pick")                                                                                                    \
    X(EMBED, "tokens_and_embedding")                                                                                   \
    X(MUL, "mul")                                                                                                      \
    X(ROPE, "rope")                                                                                                    \
    X(HEAD, "head")                                                                                                    \
    X(HEAD_EVAL, "head_without_training")
#define ACT_GROUP_ID(id, word) OF_##id,
#define ACT_GROUP_NAME(id, word) [OF_##id] = word,
enum group { GROUPS_OF(CHOICE_ID) OP_ACTS(ACT_GROUP_ID) GROUPS };
static const char *const group_name[] = {GROUPS_OF(CHOICE_NAME) OP_ACTS(ACT_GROUP_NAME)};

static bool is_act(enum group g)
{
    return g >= OF_ACT_GELU; /* the first of them */
}

/* Of the channels of a shape. */
static int conv_groups(enum group g, const struct shape *s)
{
    int common = s->c, b = s->k;
    while (b) {
        const int rest = common % b;
        common = b;
        b = rest;
    }
    return g == DEPTHWISE ? s->c : g == CONV_GROUPS ? 4 : common / 2;
}

static bool is_attention(enum group g)
{
    return g == ATTENTION || g == CAUSAL;
}

static bool is_head(enum group g)
{
    return g == HEAD || g == HEAD_EVAL;
}

static bool trains(enum group g)
{
    return g != BN_EVAL && g != HEAD_EVAL;
}

/* A vocabulary of k tokens. */
static struct input input_of(enum group g, const struct shape *s, const float *mean, const float *std)
{
    if (g == EMBED || is_head(g))
        return (struct input){.rows = INPUT_TOKENS, .length = s->h * s->w, .vocabulary = s->k};
    return input_pictures(g == INPUT ? (s->c - 1) % 4 + 1 : 3, s->h, s->w, mean, std);
}

static struct program *build(enum group g, const struct shape *s, bool absolute)
{
    static const float mean[] = {0.4f, 0.5f, 0.6f, 0.1f}, std[] = {0.2f, 0.25f, 0.3f, 0.5f};
    float minus[4];
    for (int i = 0; i < 4; i++)
        minus[i] = -mean[i];
    struct program *p = program_create("one op", input_of(g, s, absolute ? minus : mean, std));
    int x = g == INPUT || g == EMBED ? -1
                                     : program_tensor(p, "x",
                                                      g == XENT         ? CLASSES
                                                      : is_attention(g) ? 4 * s->c
                                                      : g == ROPE       ? 8 * s->c
                                                                        : s->c,
                                                      g == XENT ? 1 : s->h, g == XENT ? 1 : s->w);
    switch (g) {
    case INPUT:
        program_input(p);
        break;
    case CONV:
    case CONV_BIAS:
        program_conv(p, "op", x, s->k, s->kernel, s->stride, s->pad, g == CONV_BIAS);
        break;
    case BN:
    case BN_EVAL:
        program_bn(p, "op", x, 1e-5f, false);
        break;
    case RELU:
        program_relu(p, "op", x);
        break;
    case ADD:
        program_add(p, "op", x, program_tensor(p, "x2", s->c, s->h, s->w));
        break;
    case MAXPOOL:
        program_maxpool(p, "op", x, s->kernel, s->stride, s->pad);
        break;
    case AVGPOOL:
        program_avgpool(p, "op", x);
        break;
    case LINEAR:
        program_linear(p, "op", x, s->k);
        break;
    case DEPTHWISE:
    case CONV_GROUPS:
    case CONV_NARROW:
        program_conv_groups(p, "op", x, g == DEPTHWISE ? s->c : s->k, s->kernel, s->stride, s->pad, conv_groups(g, s),
                            true);
        break;
    case LINEAR_EACH:
        program_linear_each(p, "op", x, s->k, true);
        break;
    case NORM:
    case RMS:
        program_norm(p, "op", x, 1e-5f, g == RMS, g == NORM);
        break;
    case SCALE:
        program_scale(p, "op", x, 1, true);
        break;
    case DROP:
    case DROP_SAMPLES:
        program_drop(p, "op", x, 0.3, g == DROP_SAMPLES);
        break;
    case ATTENTION:
    case CAUSAL:
        program_attention(p, "op", x, 2, 1, g == CAUSAL);
        break;
    case PREPEND:
        program_prepend(p, "op", x);
        break;
    case POSITION:
        program_position(p, "op", x);
        break;
    case PICK:
        program_pick(p, "op", x, s->h * s->w - 1);
        break;
    case EMBED:
        program_embed(p, "op", program_tokens(p), s->c);
        break;
    case MUL:
        program_mul(p, "op", x, program_tensor(p, "x2", s->c, s->h, s->w));
        break;
    case ROPE:
        program_rope(p, "op", x, 2, 1, 100);
        break;
    case HEAD:
    case HEAD_EVAL:
        program_head(p, "op", x, -1, false);
        break;
    default:
        if (is_act(g))
            program_act(p, "op", x, (enum op_act)(g - OF_ACT_GELU));
        else
            program_xent(p, x);
    }
    struct err *none = NULL;
    assert_int_equal(0, program_differentiate(p, none));
    return p;
}

static bool fits(enum group g, const struct shape *s)
{
    if (s->n * s->h * s->w > 1024)
        return is_head(g);
    if (s->c > 1024) /* for products that pack their operands */
        return g == LINEAR_EACH;
    if (is_attention(g) && s->c > 64) /* heads of as many channels */
        return false;
    if (g == CONV_GROUPS || g == CONV_NARROW)
        return conv_groups(g, s) > 1 && s->c % conv_groups(g, s) == 0 && s->k % conv_groups(g, s) == 0;
    return g != MAXPOOL || s->kernel > 1;
}

/* --- mutants: one for every kind of op; for the rest of them the harness scales what goes in */

struct mutant {
    enum op_kind kind;
    bool scale_dy;
    double grad_scale;
    int label_shift;
};

static void mutate(struct program *p, const struct mutant *m)
{
    for (int i = 0; i < p->nops; i++) {
        struct op *op = &p->ops[i];
        if (op->kind != m->kind)
            continue;
        switch (op->kind) {
        case OP_INPUT:
            p->input.mean[0] += 4.0f / 255;
            break;
        case OP_CONV:
        case OP_CONV_BWD_DATA:
        case OP_CONV_BWD_PARAM:
        case OP_MAXPOOL:
        case OP_MAXPOOL_BWD:
            op->ph -= op->ph > 0;
            break;
        case OP_BN:
        case OP_NORM:
            op->eps = 0.05f;
            break;
        case OP_BN_BWD:
        case OP_NORM_BWD:
        case OP_RELU_BWD:
        case OP_SCALE_BWD:
            op->in[0] = op->in[1];
            break;
        case OP_ACT:
        case OP_ACT_BWD:
            op->act = op->act == ACT_SILU ? ACT_GELU : ACT_SILU;
            break;
        case OP_DROP:
        case OP_DROP_BWD:
            op->layer++;
            break;
        case OP_MUL:
            op->in[1] = op->in[0];
            break;
        case OP_ROPE:
        case OP_ROPE_BWD:
            op->base = 90;
            break;
        case OP_EMBED_BWD: /* to what is there */
        case OP_HEAD_BWD:
            op->adds = true;
            break;
        case OP_ATTENTION:
        case OP_ATTENTION_BWD:
            op->causal = !op->causal;
            break;
        case OP_PICK:
        case OP_PICK_BWD:
            op->first = 0;
            break;
        case OP_PREPEND:
            op->kind = OP_POSITION;
            break;
        case OP_POSITION:
        case OP_SCALE:
        case OP_RELU:
            op->kind = OP_ADD; /* of nothing: the identity */
            break;
        case OP_ADD:
            op->in[1] = op->in[0];
            break;
        case OP_AVGPOOL:
            op->kind = OP_MAXPOOL;
            op->kh = p->tensors[op->in[0]].h;
            op->kw = p->tensors[op->in[0]].w;
            op->sh = op->sw = 1;
            break;
        case OP_LINEAR:
        case OP_LINEAR_BWD_PARAM:
            op->param[1] = -1;
            break;
        default:
            break;
        }
    }
}

/* --- running one case on one device */

static bool is_gradient_root(const struct program *p, int t)
{
    if (!p->tensors[t].gradient)
        return false;
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].out == t)
            return false;
    return true;
}

static bool is_free(const struct program *p, int t)
{
    bool made = false, read = false;
    for (int i = 0; i < p->nops; i++) {
        made |= p->ops[i].out == t;
        read |= p->ops[i].in[0] == t || p->ops[i].in[1] == t;
    }
    return !made && read;
}

static double value_for(double v, bool absolute)
{
    return absolute ? fabs(v) : v;
}

/* Fill everything that the program reads: noise from the tensor's or parameter's number, so both sides get the same. */
static void fill(const struct side *s, enum group g, enum dtype t, bool absolute, double scale_dy)
{
    for (int i = 0; i < s->p->ntensors; i++) {
        if (!is_free(s->p, i) || (!trains(g) && s->p->tensors[i].gradient))
            continue;
        bool dy = is_gradient_root(s->p, i),
             keep_sign = !dy && (g == RELU || g == MAXPOOL || g == BN || g == BN_EVAL || g == XENT || g == NORM ||
                                 g == RMS || g == ROPE || is_head(g) || is_act(g));
        size_t n = side_count(s, i);
        double *v = malloc(sizeof(*v) * n);
        noise(v, n, 100 + (uint64_t)i, t);
        for (size_t k = 0; k < n; k++) {
            v[k] = value_for(v[k], absolute && !keep_sign) * (dy ? scale_dy : g == XENT ? 4 : is_act(g) ? 8 : 1);
            if (g == BN && !dy)
                v[k] += 0.5; /* a mean to subtract */
            v[k] = dtype_rounded(t, (double)(float)v[k]);
        }
        side_put(s, i, v);
        free(v);
    }
    for (int i = 0; i < s->p->nparams; i++) {
        const struct param *q = &s->p->params[i];
        double *v = malloc(sizeof(*v) * q->count);
        noise(v, q->count, 200 + (uint64_t)i, t);
        for (size_t k = 0; k < q->count; k++) {
            v[k] = value_for(v[k], (absolute && !is_head(g)) || q->init == INIT_ONES);
            if (q->role == PARAM_STAT && q->init == INIT_ONES)
                v[k] = (float)(v[k] + 0.25);
        }
        arena_put(s, q->role == PARAM_TRAIN ? s->params : s->stats, q->offset, v, q->count);
        free(v);
    }
}

static void run_case(struct side *s, const char *device, const struct program *p, enum group g,
                     const struct shape *shape, const struct mode *m, enum dtype values, bool absolute,
                     const struct mutant *mutant)
{
    float weights[BATCH_MAX];
    int32_t labels[ROWS_MAX], tokens[ROWS_MAX];
    struct images im;
    side_open(s, device, p, m, shape->n, trains(g), true, 2);
    side_poison(s);
    fill(s, g, values, absolute, mutant && mutant->scale_dy ? 1.0 + 1.0 / 64 : 1.0);
    images_make(&im, p, shape->n, 7);
    for (int i = 0; i < shape->n; i++)
        weights[i] = !(shape->n > 1 && i == shape->n / 2); /* one sample does not count */
    const bool text = p->input.rows == INPUT_TOKENS;
    const int rows = shape->n * (int)input_row_labels(&p->input), shift = mutant ? mutant->label_shift : 0;
    for (int i = 0; i < rows; i++) {
        labels[i] = (3 * i + shift) % (text ? shape->k : CLASSES);
        tokens[i] = (i * i / 3 + shift) % shape->k; /* some more often than others */
        if (text && i % 7 == 5)
            labels[i] = -1;
    }
    side_run(s, &(struct batch){text ? (const void *)tokens : im.pixels, labels, weights, im.numbers},
             0.5 * (mutant && mutant->grad_scale > 0 ? mutant->grad_scale : 1), false, 1, NULL);
    images_free(&im);
}

/* --- bounds */

static double reduction(const struct program *p, const struct op *op, int n)
{
    const struct op *f = op->fwd >= 0 ? &p->ops[op->fwd] : op;
    const struct tensor *x = f->in[0] >= 0 ? &p->tensors[f->in[0]] : NULL,
                        *y = f->out >= 0 ? &p->tensors[f->out] : NULL;
    switch (op->kind) {
    case OP_CONV:
        return (double)x->c * op->kh * op->kw + 1;
    case OP_CONV_BWD_DATA:
        return (double)y->c * op->kh * op->kw;
    case OP_CONV_BWD_PARAM:
    case OP_SCALE_BWD:
        return (double)n * y->h * y->w;
    case OP_LINEAR:
        return op->each ? x->c + 1 : (double)x->c * x->h * x->w + 1;
    case OP_LINEAR_BWD_DATA:
        return y->c;
    case OP_LINEAR_BWD_PARAM:
        return op->each ? (double)n * y->h * y->w : n;
    case OP_AVGPOOL:
        return (double)x->h * x->w;
    case OP_MAXPOOL_BWD:
        return (double)op->kh * op->kw;
    case OP_PREPEND_BWD:
    case OP_POSITION_BWD:
        return n;
    case OP_EMBED_BWD:
        return (double)n * y->h * y->w;
    default:
        return 1;
    }
}

static bool linear_kind(enum op_kind k)
{
    return k != OP_BN && k != OP_BN_BWD && k != OP_RELU && k != OP_RELU_BWD && k != OP_MAXPOOL && k != OP_XENT &&
           k != OP_XENT_BWD && k != OP_NORM && k != OP_NORM_BWD && k != OP_ACT && k != OP_ACT_BWD &&
           k != OP_ATTENTION && k != OP_ATTENTION_BWD && k != OP_ROPE && k != OP_ROPE_BWD && k != OP_HEAD &&
           k != OP_HEAD_BWD;
}

/* What rounding the operands of a product to TF32 may do to a sum of size 1. */
static double tf32_loss(const struct op *op, const struct mode *m)
{
    return m->tf32 && op_is_product(op->kind) ? 0x1p-9 : 0;
}

/* Bounds for bn in units of eps: y and dx per element, the gradients of gamma and beta per channel. xhat is wrong by
 * what x and the mean lose in the subtraction, by the mean's own sum, and by the deviation's sum (12 = sqrt(128) and a
 * little). */
struct bn_bounds {
    double *y, *dx, *dgamma, *dbeta;
};

static struct bn_bounds bn_bounds(const struct side *ref, bool training)
{
    const struct op *op = &ref->p->ops[0];
    const struct tensor *t = &ref->p->tensors[op->in[0]];
    int hw = t->h * t->w, root = -1;
    size_t n = side_count(ref, op->in[0]), channels = (size_t)t->c;
    for (int i = 0; i < ref->p->ntensors; i++)
        if (is_gradient_root(ref->p, i))
            root = i;
    double *x = side_get(ref, op->in[0]), *dy = training ? side_get(ref, root) : calloc(n, sizeof(double));
    struct bn_bounds b = {calloc(n, sizeof(double)), calloc(n, sizeof(double)), calloc(channels, sizeof(double)),
                          calloc(channels, sizeof(double))};
    for (int c = 0; c < t->c; c++) {
        double mean = 0, var = 0, size = 0, sizes = 0, count = 0, gamma, beta, k1 = 0, k2 = 0, sum_dy = 0, dg = 0;
        arena_get(ref, ref->params, ref->p->params[op->param[0]].offset + (size_t)c, &gamma, 1);
        arena_get(ref, ref->params, ref->p->params[op->param[1]].offset + (size_t)c, &beta, 1);
#define EACH(i)                                                                                                        \
    for (int s_ = 0; s_ < ref->n; s_++)                                                                                \
        if (!training || ref->n == 1 || s_ != ref->n / 2)                                                              \
            for (size_t i = ((size_t)s_ * channels + (size_t)c) * (size_t)hw, end_ = i + (size_t)hw; i < end_; i++)
        EACH(i) mean += x[i], size += fabs(x[i]), count++;
        mean /= count, size /= count;
        EACH(i) var += (x[i] - mean) * (x[i] - mean);
        var /= count;
        if (!training) {
            arena_get(ref, ref->stats, ref->p->params[op->param[2]].offset + (size_t)c, &mean, 1);
            arena_get(ref, ref->stats, ref->p->params[op->param[3]].offset + (size_t)c, &var, 1);
            size = 0;
        }
        double inv = 1 / sqrt(var + (double)op->eps);
        EACH(i) k1 += dy[i] / count, k2 += dy[i] * (x[i] - mean) * inv / count, sizes += fabs(dy[i]);
        for (int s = 0; s < ref->n; s++)
            for (int q = 0; q < hw; q++) {
                size_t i = ((size_t)s * channels + (size_t)c) * (size_t)hw + (size_t)q;
                double hat = fabs(x[i] - mean) * inv, wrong = (fabs(x[i]) + fabs(mean) + 12 * size) * inv + 12 * hat;
                b.y[i] = 2 * (fabs(gamma) * wrong + fabs(beta));
            }
        EACH(i)
        {
            double hat = fabs(x[i] - mean) * inv, wrong = (fabs(x[i]) + fabs(mean) + 12 * size) * inv + 12 * hat;
            dg += fabs(dy[i]) * (wrong + 12 * hat);
            sum_dy += fabs(dy[i]);
        }
        b.dgamma[c] = 2 * dg;
        b.dbeta[c] = 2 * 12 * sum_dy;
        EACH(i)
        {
            double hat = fabs(x[i] - mean) * inv, wrong = (fabs(x[i]) + fabs(mean) + 12 * size) * inv + 12 * hat;
            b.dx[i] = 2 * fabs(gamma) * inv *
                      (16 * (fabs(dy[i]) + fabs(k1) + hat * fabs(k2)) + 12 * sizes / count + hat * dg / count +
                       wrong * fabs(k2));
        }
    }
    free(x);
    free(dy);
    return b;
}

/* The same for norms of positions: sums run over the channels of one, at most 128 of them; those of gamma and beta over
 * positions, 128 in floats at a time. */
static struct bn_bounds norm_bounds(const struct side *ref)
{
    const struct op *op = &ref->p->ops[0];
    const struct tensor *t = &ref->p->tensors[op->in[0]];
    const size_t plane = (size_t)t->h * (size_t)t->w, n = side_count(ref, op->in[0]), channels = (size_t)t->c;
    int root = -1;
    for (int i = 0; i < ref->p->ntensors; i++)
        if (is_gradient_root(ref->p, i))
            root = i;
    double *x = side_get(ref, op->in[0]), *dy = side_get(ref, root), *gamma = calloc(channels, sizeof(double)),
           *beta = calloc(channels, sizeof(double));
    struct bn_bounds b = {calloc(n, sizeof(double)), calloc(n, sizeof(double)), calloc(channels, sizeof(double)),
                          calloc(channels, sizeof(double))};
    arena_get(ref, ref->params, ref->p->params[op->param[0]].offset, gamma, channels);
    if (op->param[1] >= 0)
        arena_get(ref, ref->params, ref->p->params[op->param[1]].offset, beta, channels);
#define EACH_CHANNEL(i) for (size_t c = 0, i = s * channels * plane + q; c < channels; c++, i += plane)
    for (size_t s = 0; s < (size_t)ref->n; s++)
        for (size_t q = 0; q < plane; q++) {
            double mean = 0, size = 0, var = 0, k1 = 0, k2 = 0, sizes = 0, sum_wrong = 0;
            EACH_CHANNEL(i) mean += op->rms ? 0 : x[i] / t->c, size += op->rms ? 0 : fabs(x[i]) / t->c;
            EACH_CHANNEL(i) var += (x[i] - mean) * (x[i] - mean) / t->c;
            const double inv = 1 / sqrt(var + (double)op->eps);
            EACH_CHANNEL(i)
            {
                const double hat = (x[i] - mean) * inv, g = dy[i] * gamma[c];
                const double wrong = (fabs(x[i]) + fabs(mean) + 12 * size) * inv + 12 * fabs(hat);
                k1 += op->rms ? 0 : g / t->c, k2 += g * hat / t->c, sizes += fabs(g) / t->c;
                sum_wrong += fabs(g) * (wrong + 12 * fabs(hat)) / t->c;
                b.y[i] = 2 * (fabs(gamma[c]) * wrong + fabs(beta[c]));
                b.dgamma[c] += 2 * fabs(dy[i]) * (wrong + 12 * fabs(hat));
                b.dbeta[c] += 2 * 12 * fabs(dy[i]);
            }
            EACH_CHANNEL(i)
            {
                const double hat = fabs(x[i] - mean) * inv, g = fabs(dy[i] * gamma[c]);
                const double wrong = (fabs(x[i]) + fabs(mean) + 12 * size) * inv + 12 * hat;
                b.dx[i] =
                    2 * inv * (16 * (g + fabs(k1) + hat * fabs(k2)) + 12 * sizes + hat * sum_wrong + wrong * fabs(k2));
            }
        }
    free(x);
    free(dy);
    free(gamma);
    free(beta);
    return b;
}

/* Attention: what the sums of scores lose shifts their softmax (rel); u, the rounding of weights and of gradients of
 * scores that are operands of products; sums over positions. */
static struct bn_bounds attention_bounds(const struct side *ref, double u)
{
    enum { T_MAX = 256 };
    const struct op *op = &ref->p->ops[0];
    const struct tensor *in = &ref->p->tensors[op->in[0]];
    const size_t t = (size_t)in->h * (size_t)in->w, heads = (size_t)op->heads, kv_heads = (size_t)op->kv_heads,
                 d = (size_t)in->c / (heads + 2 * kv_heads), n = side_count(ref, op->in[0]);
    const double sums = C * sqrt((double)(t * heads / kv_heads)) * EPS, dots = C * sqrt((double)d) * EPS,
                 scale = 1 / sqrt((double)d);
    double *x = side_get(ref, op->in[0]), *dy = side_get(ref, program_find_tensor(ref->p, "d op"));
    struct bn_bounds b = {calloc(n, sizeof(double)), calloc(n, sizeof(double)), NULL, NULL};
    assert_true(t <= T_MAX);
    for (size_t job = 0; job < (size_t)ref->n * heads * t; job++) {
        const size_t i = job % t, h = job / t % heads, s = job / t / heads, kv = h / (heads / kv_heads);
        const size_t first = s * (size_t)in->c * t, q = first + h * d * t + i, k = first + (heads + kv) * d * t,
                     v = first + (heads + kv_heads + kv) * d * t, y = (s * heads + h) * d * t + i;
        double p[T_MAX], dp[T_MAX], size_dp[T_MAX], most = 0, all = 0, mean = 0, size_mean = 0;
        const size_t keys = op->causal ? i + 1 : t;
        for (size_t j = 0; j < keys; j++) {
            double score = 0, size = 0;
            dp[j] = size_dp[j] = 0;
            for (size_t c = 0; c < d; c++) {
                score += x[q + c * t] * x[k + c * t + j] * scale;
                size += fabs(x[q + c * t] * x[k + c * t + j]) * scale;
                dp[j] += dy[y + c * t] * x[v + c * t + j];
                size_dp[j] += fabs(dy[y + c * t] * x[v + c * t + j]);
            }
            most = fmax(most, size);
            all += p[j] = exp(score);
        }
        for (size_t j = 0; j < keys; j++) {
            p[j] /= all;
            mean += p[j] * dp[j];
            size_mean += p[j] * size_dp[j];
        }
        const double rel = 2 * dots * most + 16 * EPS;
        for (size_t j = 0; j < keys; j++) {
            const double ds = scale * p[j] * fabs(dp[j] - mean);
            const double wrong =
                scale * p[j] * ((fabs(dp[j]) + size_mean) * 2 * rel + dots * (size_dp[j] + size_mean)) +
                (u + sums) * ds;
            for (size_t c = 0; c < d; c++) {
                b.y[y + c * t] += p[j] * fabs(x[v + c * t + j]) * (rel + u + sums);
                b.dx[q + c * t] += wrong * fabs(x[k + c * t + j]);
                b.dx[k + c * t + j] += wrong * fabs(x[q + c * t]);
                b.dx[v + c * t + j] += p[j] * fabs(dy[y + c * t]) * (rel + u + sums);
            }
        }
    }
    free(x);
    free(dy);
    return b;
}

/* The head, in all: of dx, (dgamma) the gradient of the weight, and (dbeta) the loss. What a logit loses in its sum
 * shifts the softmax (rel); gradients of logits are operands, rounded by u; sums run over the vocabulary and over rows.
 * lost: of each product of operands. */
static struct bn_bounds head_bounds(const struct side *ref, double u, double lost)
{
    const struct op *op = &ref->p->ops[0];
    const struct tensor *in = &ref->p->tensors[op->in[0]];
    const size_t t = (size_t)in->h * (size_t)in->w, c = (size_t)in->c, v = (size_t)ref->p->classes,
                 n = side_count(ref, op->in[0]);
    const double dots = C * sqrt((double)c) * EPS + lost, over_v = C * sqrt((double)v) * EPS + lost,
                 over_rows = C * sqrt((double)ref->n * (double)t) * EPS + lost;
    double *x = side_get(ref, op->in[0]), *w = calloc(v * c, sizeof(double)), *z = calloc(v, sizeof(double));
    struct bn_bounds b = {NULL, calloc(n, sizeof(double)), calloc(v * c, sizeof(double)), calloc(1, sizeof(double))};
    arena_get(ref, ref->params, ref->p->params[op->param[0]].offset, w, v * c);
    for (size_t r = 0; r < (size_t)ref->n * t; r++) {
        const size_t first = r / t * c * t + r % t; /* of the row's channels, t apart */
        double most = 0, all = 0, largest = 0;
        for (size_t j = 0; j < v; j++) {
            double size = 0;
            z[j] = 0;
            for (size_t k = 0; k < c; k++)
                z[j] += x[first + k * t] * w[j * c + k], size += fabs(x[first + k * t] * w[j * c + k]);
            most = fmax(most, size);
            largest = fmax(largest, fabs(z[j]));
            all += exp(z[j]);
        }
        const double rel = 2 * dots * most + (16 + largest) * EPS;
        b.dbeta[0] += rel + 16 * EPS * (fabs(log(all)) + largest);
        for (size_t j = 0; j < v; j++) { /* 0.5: the scale of gradients; the label's is below 1 more */
            const double p = 0.5 * exp(z[j]) / all, dz = fmax(p, (size_t)((3 * r) % v) == j ? 0.5 : 0),
                         wrong = 2 * p * rel + (u + 4 * EPS) * dz;
            for (size_t k = 0; k < c; k++) {
                b.dx[first + k * t] += (wrong + over_v * dz) * fabs(w[j * c + k]);
                b.dgamma[j * c + k] += (wrong + over_rows * dz) * fabs(x[first + k * t]);
            }
        }
    }
    free(x);
    free(w);
    free(z);
    return b;
}

/* In units of eps, of an activation's value at x and of its gradient where dy comes in: both functions are sums of a
 * few terms of about this size. */
static double act_bound(double x, double dy, bool backward)
{
    return backward ? 8 * fabs(dy) : 4 * fabs(x);
}

/* --- comparing */

struct verdict {
    double worst; /* error as a part of its bound; above 1 is a failure */
    char where[160];
};

static void judge(struct verdict *v, const char *what, const struct shape *s, size_t i, double got, double want,
                  double bound)
{
    double error = fabs(got - want), ratio = error == 0 ? 0 : error / bound;
    if (isnan(got) || ratio > v->worst) {
        v->worst = isnan(got) ? INFINITY : ratio;
        snprintf(v->where, sizeof v->where,
                 "%s of (%d,%d,%d,%d) k %d kernel %d stride %d: [%zu] %.9g, expected %.9g +- %.3g", what, s->n, s->c,
                 s->h, s->w, s->k, s->kernel, s->stride, i, got, want, bound);
    }
}

static double *reduce_get(const struct side *s, const struct param *q)
{
    double *out = malloc(sizeof(*out) * q->count);
    arena_get(s, s->reduce, q->offset, out, q->count);
    return out;
}

static bool is_act_kind(enum op_kind k)
{
    return k == OP_ACT || k == OP_ACT_BWD;
}

/* What op i of the program made, on both sides and (size) on ref with absolute values. */
static void compare_op(const struct side *got, const struct side *ref, const struct side *size, int i,
                       const struct shape *s, enum dtype t, struct verdict *v)
{
    const double u = t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0, tiny = t == DT_F16 ? 0x1p-25 : 0;
    const struct op *op = &ref->p->ops[i];
    const char *name = op_name(op->kind);
    const double lost = tf32_loss(op, &got->mode), factor = C * sqrt(reduction(ref->p, op, s->n)) * EPS;
    struct bn_bounds bn = {0};
    if (op->kind == OP_BN || op->kind == OP_BN_BWD)
        bn = bn_bounds(ref, size != NULL);
    if (op->kind == OP_NORM || op->kind == OP_NORM_BWD)
        bn = norm_bounds(ref);
    const bool attention = op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_BWD;
    if (attention)
        bn = attention_bounds(ref, u);
    const bool head = op->kind == OP_HEAD || op->kind == OP_HEAD_BWD;
    if (head)
        bn = head_bounds(ref, u, lost);
    if (op->out >= 0) {
        /* cuda stores a convolution's result before a bias is added to it */
        const bool twice = strcmp(rig_device, "cuda") == 0 && op->kind == OP_CONV && op->param[1] >= 0;
        double *g = side_get(got, op->out), *w = side_get(ref, op->out),
               *z = linear_kind(op->kind) ? side_get(size, op->out) : NULL,
               *x = is_act_kind(op->kind) ? side_get(ref, op->in[0]) : NULL,
               *dy = op->kind == OP_ACT_BWD ? side_get(ref, op->in[1]) : NULL;
        for (size_t k = 0; k < side_count(ref, op->out); k++) {
            double bound = u * fabs(w[k]) + tiny;
            if (z)
                bound += (factor + lost) * z[k] + (twice ? u * z[k] : 0);
            else if (op->kind == OP_BN || op->kind == OP_NORM)
                bound += EPS * bn.y[k];
            else if (op->kind == OP_ROPE || op->kind == OP_ROPE_BWD)
                bound += 8 * EPS;
            else if (head)
                bound += bn.dx[k];
            else if (attention)
                bound += op->kind == OP_ATTENTION ? bn.y[k] : bn.dx[k];
            else if (x)
                bound += EPS * act_bound(x[k], dy ? dy[k] : 0, dy != NULL);
            else if (op->kind == OP_BN_BWD || op->kind == OP_NORM_BWD)
                bound += EPS * bn.dx[k];
            else if (op->kind == OP_XENT_BWD)
                bound += 2 * EPS * fabs(w[k]);
            judge(v, name, s, k, g[k], w[k], bound);
        }
        free(g);
        free(w);
        free(z);
        free(x);
        free(dy);
    }
    const bool norm = op->kind == OP_BN_BWD || op->kind == OP_NORM_BWD;
    for (int q = 0; q < 2 && op_writes_gradients(op->kind); q++) {
        if (op->param[q] < 0)
            continue;
        const struct param *pr = &ref->p->params[op->param[q]];
        double *g = reduce_get(got, pr), *w = reduce_get(ref, pr), *z = norm || head ? NULL : reduce_get(size, pr);
        for (size_t k = 0; k < pr->count; k++) {
            double bound = head   ? bn.dgamma[k]
                           : norm ? EPS * (q ? bn.dbeta[k] : bn.dgamma[k])
                                  : (factor + (q ? 0 : lost)) * z[k];
            if (!norm && !head && (t == DT_F16 || strcmp(rig_device, "cuda") == 0))
                bound += u * fabs(w[k]) + tiny;
            judge(v, q ? "gradient of bias" : "gradient of weight", s, k, g[k], w[k], bound);
        }
        free(g);
        free(w);
        free(z);
    }
    for (int k = 0; k < METRIC_N && (op->kind == OP_XENT || (head && op->kind == (size ? OP_HEAD_BWD : OP_HEAD)));
         k++) {
        double g, w;
        arena_get(got, got->reduce, got->p->n_train + got->p->n_stats + (size_t)k, &g, 1);
        arena_get(ref, ref->reduce, ref->p->n_train + ref->p->n_stats + (size_t)k, &w, 1);
        judge(v, "metric", s, (size_t)k, g, w, 2 * EPS * fabs(w) + (head && k == METRIC_LOSS ? *bn.dbeta : 0));
    }
    free(bn.y);
    free(bn.dx);
    free(bn.dgamma);
    free(bn.dbeta);
}

/* Run one case and judge it; with a mutant only the ops of its kind. */
static void examine(enum group g, const struct shape *s, const struct mode *m, const struct mutant *mutant,
                    struct verdict *v)
{
    enum dtype values = m->compute;
    struct program *p = build(g, s, false), *q = build(g, s, true), *under_test = build(g, s, false);
    struct side got, ref, size;
    if (mutant)
        mutate(under_test, mutant);
    run_case(&ref, "ref", p, g, s, &mode_f64, values, false, NULL);
    run_case(&size, "ref", q, g, s, &mode_f64, values, true, NULL);
    run_case(&got, rig_device, under_test, g, s, m, values, false, mutant);
    int end = trains(g) ? p->nops : p->nfwd;
    for (int i = 0; i < end; i++)
        if (!mutant || p->ops[i].kind == mutant->kind)
            compare_op(&got, &ref, trains(g) ? &size : NULL, i, s, m->compute, v);
    side_close(&got);
    side_close(&ref);
    side_close(&size);
    program_destroy(p);
    program_destroy(q);
    program_destroy(under_test);
}

/* --- the tests */

struct subject {
    enum group group;
    const struct mode *mode;
    struct mutant mutant;
    char name[128];
};

static bool native(const struct mode *m)
{
    struct device *d;
    assert_int_equal(0, rig_open(&d, rig_device, &(struct device_options){.threads = 1}, NULL));
    bool yes = m->emulate || d->ops->native(d, m->compute, m->half);
    d->ops->close(d);
    return yes;
}

static void op_matches_ref(void **state)
{
    const struct subject *t = *state;
    struct verdict v = {0};
    for (int i = 0; i < NSHAPES; i++)
        if (fits(t->group, &shapes[i]))
            examine(t->group, &shapes[i], t->mode, NULL, &v);
    print_message("# %s in %s: largest error %.2f of its bound\n", group_name[t->group], t->mode->name, v.worst);
    if (v.worst > 1)
        fail_msg("%s", v.where);
}

static void mutant_is_caught(void **state)
{
    const struct subject *t = *state;
    struct verdict v = {0};
    for (int i = 0; i < NSHAPES && v.worst <= 1; i++)
        if (fits(t->group, &shapes[i]))
            examine(t->group, &shapes[i], t->mode, &t->mutant, &v);
    if (v.worst <= 1)
        fail_msg("a wrong %s passes: largest error %.2f of its bound", op_name(t->mutant.kind), v.worst);
}

static const struct {
    enum group group;
    struct mutant mutant;
} mutants[] = {
    {INPUT, {OP_INPUT, false, 0, 0}},
    {CONV, {OP_CONV, false, 0, 0}},
    {CONV, {OP_CONV_BWD_DATA, false, 0, 0}},
    {CONV, {OP_CONV_BWD_PARAM, false, 0, 0}},
    {BN, {OP_BN, false, 0, 0}},
    {BN, {OP_BN_BWD, false, 0, 0}},
    {RELU, {OP_RELU, false, 0, 0}},
    {RELU, {OP_RELU_BWD, false, 0, 0}},
    {ADD, {OP_ADD, false, 0, 0}},
    {MAXPOOL, {OP_MAXPOOL, false, 0, 0}},
    {MAXPOOL, {OP_MAXPOOL_BWD, false, 0, 0}},
    {AVGPOOL, {OP_AVGPOOL, false, 0, 0}},
    {AVGPOOL, {OP_AVGPOOL_BWD, true, 0, 0}},
    {LINEAR, {OP_LINEAR, false, 0, 0}},
    {LINEAR, {OP_LINEAR_BWD_DATA, true, 0, 0}},
    {LINEAR, {OP_LINEAR_BWD_PARAM, false, 0, 0}},
    {XENT, {OP_XENT, false, 0, 1}},
    {XENT, {OP_XENT_BWD, false, 1 + 1.0 / 64, 0}},
    {NORM, {OP_NORM, false, 0, 0}},
    {NORM, {OP_NORM_BWD, false, 0, 0}},
    {OF_ACT_GELU, {OP_ACT, false, 0, 0}},
    {OF_ACT_GELU, {OP_ACT_BWD, false, 0, 0}},
    {SCALE, {OP_SCALE, false, 0, 0}},
    {SCALE, {OP_SCALE_BWD, false, 0, 0}},
    {DROP, {OP_DROP, false, 0, 0}},
    {DROP, {OP_DROP_BWD, false, 0, 0}},
    {ATTENTION, {OP_ATTENTION, false, 0, 0}},
    {ATTENTION, {OP_ATTENTION_BWD, false, 0, 0}},
    {PREPEND, {OP_PREPEND, false, 0, 0}},
    {PREPEND, {OP_PREPEND_BWD, true, 0, 0}},
    {POSITION, {OP_POSITION, false, 0, 0}},
    {POSITION, {OP_POSITION_BWD, true, 0, 0}},
    {PICK, {OP_PICK, false, 0, 0}},
    {PICK, {OP_PICK_BWD, false, 0, 0}},
    {EMBED, {OP_TOKENS, false, 0, 1}},
    {EMBED, {OP_EMBED, false, 0, 1}},
    {EMBED, {OP_EMBED_BWD, false, 0, 0}},
    {MUL, {OP_MUL, false, 0, 0}},
    {ROPE, {OP_ROPE, false, 0, 0}},
    {ROPE, {OP_ROPE_BWD, false, 0, 0}},
    {HEAD_EVAL, {OP_HEAD, false, 0, 1}},
    {HEAD, {OP_HEAD_BWD, false, 0, 0}},
};
enum { NMUTANTS = sizeof(mutants) / sizeof(mutants[0]) };
#define X(kind, word, inputs, params, call, work, traits, ...) +!((traits)&OP_OF_GROUP)
_Static_assert((int)NMUTANTS == 0
#include "worker/program/ops.def"
               ,
               "one mutant for every kind of op that needs no group");
#undef X

/* device_suite fp32|tf32|...: all ops in one type. Without bf16 units bf16 is skipped as a whole. */
int main(int argc, char **argv)
{
    static const struct {
        const char *arg;
        const struct mode *mode;
    } modes[] = {{"fp32", &mode_f32},
                 {"tf32", &mode_tf32},
                 {"emulated", &mode_emulated},
                 {"bf16", &mode_bf16},
                 {"fp16", &mode_fp16_o2},
                 {"fp16-O1", &mode_fp16_o1},
                 {"nchw", &mode_nchw},
                 {"nhwc", &mode_nhwc},
                 {"native-fp16", &mode_fp16},
                 {"native-fp16-O1", &mode_native_fp16_o1},
                 {"native-bf16-O1", &mode_native_bf16_o1},
                 {"fp16-nchw", &mode_fp16_nchw},
                 {"bf16-nchw", &mode_bf16_nchw}};
    static struct subject subjects[GROUPS + NMUTANTS];
    static struct CMUnitTest tests[GROUPS + NMUTANTS];
    const struct mode *mode = NULL;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        if (argc == 2 && strcmp(argv[1], modes[i].arg) == 0)
            mode = modes[i].mode;
    if (!mode) {
        fprintf(stderr, "usage: device_suite "
                        "fp32|tf32|emulated|bf16|fp16|fp16-O1|nchw|nhwc|native-fp16|native-fp16-O1|native-bf16-O1|fp16-"
                        "nchw|bf16-nchw\n");
        return 2;
    }
    if (!native(mode)) {
        printf("1..0 # SKIP no %s units in this processor\n", mode->name);
        return 0;
    }
    size_t n = 0;
    for (int i = 0; i < GROUPS + NMUTANTS; i++) {
        bool is_mutant = i >= GROUPS;
        struct subject *t = &subjects[i];
        *t = (struct subject){.group = is_mutant ? mutants[i - GROUPS].group : (enum group)i, .mode = mode};
        if (is_mutant) {
            t->mutant = mutants[i - GROUPS].mutant;
            snprintf(t->name, sizeof t->name, "a_wrong_%s_is_caught_in_%s", op_name(t->mutant.kind), argv[1]);
        } else {
            snprintf(t->name, sizeof t->name, "%s_matches_ref_in_%s", group_name[i], argv[1]);
        }
        tests[n++] = (struct CMUnitTest){
            .name = t->name, .test_func = is_mutant ? mutant_is_caught : op_matches_ref, .initial_state = t};
    }
    cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER")); /* NULL: all */
    return _cmocka_run_group_tests("device", tests, n, NULL, NULL);
}
