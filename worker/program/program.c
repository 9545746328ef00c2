/* Building the forward list.
 *
 * Every function checks its shapes, infers the output's and appends one op. The first mistake is remembered and the
 * functions after it return -1 without a word, so that a model is written as straight code and program_differentiate()
 * reports. */
#include "worker/program/program.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "worker/program/builder.h"
#include "worker/program/patterns.h"
#include "worker/program/split.h"

uint64_t program_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

enum { MAX_CHANNELS = 1 << 24, MAX_SIDE = 1 << 15, MAX_KERNEL = 1 << 10 };

#define BACK(kind, a, b, to)                                                                                           \
    {                                                                                                                  \
        kind, OF_##a, OF_##b, OF_##to                                                                                  \
    }
#define NO_BACK                                                                                                        \
    {                                                                                                                  \
        0                                                                                                              \
    }
static const struct op_facts facts[OP_KINDS] = {
#define X(kind, word, inputs, params, call, work, traits, passes, ...)                                                 \
    [kind] = {#word, inputs, params, call, work, traits, passes, {__VA_ARGS__}},
#include "worker/program/ops.def"
#undef X
};

const struct op_facts *op_facts(enum op_kind k)
{
    return &facts[k];
}

const char *op_name(enum op_kind k)
{
    return (unsigned)k < OP_KINDS ? facts[k].name : "?";
}

bool op_is(enum op_kind k, unsigned traits)
{
    return (facts[k].traits & traits) != 0;
}

bool op_is_product(enum op_kind k)
{
    return facts[k].work >= WORK_FORWARD;
}

bool op_writes_gradients(enum op_kind k)
{
    return facts[k].params[0] == 'g' || facts[k].params[0] == 'b';
}

int builder_fail(struct builder *b, const char *fmt, ...)
{
    if (b->err.code)
        return -1;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&b->err, -EINVAL, "%s", text);
    return -1;
}

int builder_tensor(struct builder *b, const char *name, int c, int h, int w, bool gradient)
{
    struct program *p = &b->p;
    if (b->err.code)
        return -1;
    if (c < 1 || h < 1 || w < 1 || c > MAX_CHANNELS || h > MAX_SIDE || w > MAX_SIDE)
        return builder_fail(b, "tensor '%s' would be %d x %d x %d", name, c, h, w);
    if (strlen(name) >= sizeof p->tensors->name)
        return builder_fail(b, "tensor name '%s' is longer than %zu bytes", name, sizeof p->tensors->name - 1);
    if (program_find_tensor(p, name) >= 0)
        return builder_fail(b, "two tensors are called '%s'", name);
    if (ARRAY_GROW(p->tensors, b->cap_tensors, (size_t)p->ntensors + 1, "tensors of a program", &b->err) < 0)
        return -1;
    struct tensor *t = &p->tensors[p->ntensors];
    *t = (struct tensor){.c = c, .h = h, .w = w, .whole = c, .ranks = 1, .gradient = gradient};
    strcpy(t->name, name);
    return p->ntensors++;
}

struct op *builder_op(struct builder *b, enum op_kind kind)
{
    struct program *p = &b->p;
    if (b->err.code)
        return NULL;
    if (ARRAY_GROW(p->ops, b->cap_ops, (size_t)p->nops + 1, "ops of a program", &b->err) < 0)
        return NULL;
    struct op *op = &p->ops[p->nops++];
    *op = (struct op){.kind = kind, .in = {-1, -1}, .out = -1, .param = {-1, -1, -1, -1}, .fwd = -1, .groups = 1};
    return op;
}

int builder_add_param(struct builder *b, const struct param *q)
{
    struct program *p = &b->p;
    if (b->err.code)
        return -1;
    if (program_find_param(p, q->name) >= 0)
        return builder_fail(b, "two parameters are called '%s'", q->name);
    if (ARRAY_GROW(p->params, b->cap_params, (size_t)p->nparams + 1, "params of a program", &b->err) < 0)
        return -1;
    p->params[p->nparams] = *q;
    return p->nparams++;
}

int builder_param(struct builder *b, const char *layer, const char *suffix, enum param_role role, int ndim,
                  const int64_t *shape, enum param_init init, double init_scale)
{
    if (b->err.code)
        return -1;
    struct param q = {
        .role = role, .ndim = ndim, .count = 1, .init = init, .init_scale = init_scale, .decay = role == PARAM_TRAIN};
    if (snprintf(q.name, sizeof q.name, "%s.%s", layer, suffix) >= (int)sizeof q.name)
        return builder_fail(b, "parameter name '%s.%s' is longer than %zu bytes", layer, suffix, sizeof q.name - 1);
    for (int i = 0; i < ndim; i++) {
        q.shape[i] = shape[i];
        if (__builtin_mul_overflow(q.count, (size_t)shape[i], &q.count) || q.count > SIZE_MAX / 64)
            return builder_fail(b, "parameter '%s' is too large", q.name);
    }
    return builder_add_param(b, &q);
}

static void check_input(struct builder *b, const struct input *in)
{
    if (in->rows == INPUT_TOKENS) {
        if (in->length < 1 || in->vocabulary < 2)
            builder_fail(b, "rows of %d tokens of a vocabulary of %d (expected at least 1, at least 2)", in->length,
                         in->vocabulary);
        return;
    }
    if (in->channels < 1 || in->channels > 4)
        builder_fail(b, "images of %d channels (expected 1 to 4)", in->channels);
    for (int c = 0; c < in->channels && c < 4; c++)
        if (!(in->std[c] > 0))
            builder_fail(b, "standard deviation %g of channel %d (expected more than 0)", (double)in->std[c], c);
}

struct program *program_create(const char *arch, struct input input)
{
    struct builder *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    struct program *p = &b->p;
    snprintf(p->arch, sizeof p->arch, "%s", arch);
    p->logits = -1;
    p->group = 1;
    p->input = input;
    check_input(b, &input);
    return p;
}

void program_destroy(struct program *p)
{
    if (!p)
        return;
    free(p->ops);
    free(p->tensors);
    free(p->params);
    free(builder_of(p));
}

bool builder_source(struct builder *b, const char *name, int x, struct tensor *ret)
{
    if (b->err.code)
        return false;
    if (b->closed || (b->p.nops > 0 && op_is(b->p.ops[b->p.nops - 1].kind, OP_WRITES_METRICS))) {
        builder_fail(b, "'%s' is added after the end of the program", name);
        return false;
    }
    if (x < 0 || x >= b->p.ntensors) {
        builder_fail(b, "'%s' reads tensor %d, which does not exist", name, x);
        return false;
    }
    *ret = b->p.tensors[x];
    return true;
}

struct op *builder_produce(struct builder *b, enum op_kind kind, const char *name, int x, int y, int c, int h, int w)
{
    const int ranks = x >= 0 && !b->err.code ? b->p.tensors[x].ranks : 1;
    if (ranks > 1 && !op_is(kind, OP_ROWWISE | OP_OF_GROUP))
        builder_fail(b, "'%s' (%s) reads the rows of a group of ranks", name, op_name(kind));
    int out = builder_tensor(b, name, c, h, w, false);
    struct op *op = builder_op(b, kind);
    if (!op)
        return NULL;
    b->p.tensors[out].ranks = ranks;
    if (x >= 0 && kind != OP_LINEAR) /* of a part a part is made */
        b->p.tensors[out].whole = (int)((int64_t)c * b->p.tensors[x].whole / b->p.tensors[x].c);
    op->in[0] = x;
    op->in[1] = y;
    op->out = out;
    return op;
}

/* Output side of a window, 0 if it does not fit. */
static int window_out(int side, int kernel, int stride, int pad)
{
    int room = side + 2 * pad - kernel;
    return room < 0 ? 0 : room / stride + 1;
}

static bool check_window(struct builder *b, const char *name, const struct tensor *x, int kernel, int stride, int pad,
                         int max_pad)
{
    if (kernel < 1 || kernel > MAX_KERNEL || stride < 1 || stride > MAX_KERNEL || pad < 0 || pad > max_pad) {
        builder_fail(b, "'%s' has kernel %d, stride %d, padding %d (expected at least 1, at least 1, 0 to %d)", name,
                     kernel, stride, pad, max_pad);
        return false;
    }
    if (!window_out(x->h, kernel, stride, pad) || !window_out(x->w, kernel, stride, pad)) {
        builder_fail(b, "'%s': a %d x %d window does not fit into %d x %d with padding %d", name, kernel, kernel, x->h,
                     x->w, pad);
        return false;
    }
    return true;
}

int program_tensor(struct program *p, const char *name, int c, int h, int w)
{
    return builder_tensor(builder_of(p), name, c, h, w, false);
}

int program_input(struct program *p)
{
    struct builder *b = builder_of(p);
    const struct input *in = &p->input;
    if (in->rows != INPUT_PICTURES)
        return builder_fail(b, "operation 'input' reads pictures, and the model's rows are tokens");
    struct op *op = builder_produce(b, OP_INPUT, "input", -1, -1, in->channels, in->height, in->width);
    return op ? op->out : -1;
}

int program_tokens(struct program *p)
{
    struct builder *b = builder_of(p);
    if (p->input.rows != INPUT_TOKENS)
        return builder_fail(b, "operation 'tokens' reads tokens, and the model's rows are pictures");
    struct op *op = builder_produce(b, OP_TOKENS, "tokens", -1, -1, 1, p->input.length, 1);
    return op ? op->out : -1;
}

static const struct op *maker(const struct program *p, int t)
{
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].out == t)
            return &p->ops[i];
    return NULL;
}

/* Rows of a table are read at these numbers: they must be tokens themselves, nothing that is computed of them. */
static bool is_tokens(const struct program *p, int t)
{
    const struct op *op = maker(p, t);
    if (op && op->kind == OP_GATHER)
        op = maker(p, op->in[0]);
    return op && op->kind == OP_TOKENS;
}

struct op *builder_embed(struct builder *b, const char *name, const char *result, int tokens, int rows, int c)
{
    struct tensor in;
    if (!builder_source(b, name, tokens, &in))
        return NULL;
    if (!is_tokens(&b->p, tokens)) {
        builder_fail(b, "'%s' reads '%s' (expected what 'tokens' makes: numbers below the vocabulary)", name, in.name);
        return NULL;
    }
    const int table = builder_param(b, name, "weight", PARAM_TRAIN, 2, (int64_t[]){rows, c}, INIT_NORMAL, 0.02);
    struct op *op = builder_produce(b, OP_EMBED, result, tokens, -1, c, in.h, in.w);
    if (op)
        op->param[0] = table;
    return op;
}

int program_embed(struct program *p, const char *name, int tokens, int c)
{
    const struct op *op = builder_embed(builder_of(p), name, name, tokens, p->input.vocabulary, c);
    return op ? op->out : -1;
}

int program_conv(struct program *p, const char *name, int x, int k, int kernel, int stride, int pad, bool bias)
{
    return program_conv_groups(p, name, x, k, kernel, stride, pad, 1, bias);
}

int program_conv_groups(struct program *p, const char *name, int x, int k, int kernel, int stride, int pad, int groups,
                        bool bias)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in) || !check_window(b, name, &in, kernel, stride, pad, kernel - 1))
        return -1;
    if (k < 1 || k > MAX_CHANNELS)
        return builder_fail(b, "'%s' has %d output channels", name, k);
    if (groups < 1 || in.c % groups || k % groups)
        return builder_fail(b, "'%s' has %d groups of %d input and %d output channels (expected a divisor of both)",
                            name, groups, in.c, k);
    const int c = in.c / groups;
    double fan_out = (double)kernel * kernel * k, fan_in = (double)kernel * kernel * c;
    int weight = builder_param(b, name, "weight", PARAM_TRAIN, 4, (int64_t[]){k, c, kernel, kernel}, INIT_NORMAL,
                               sqrt(2 / fan_out));
    int add =
        bias ? builder_param(b, name, "bias", PARAM_TRAIN, 1, (int64_t[]){k}, INIT_UNIFORM, 1 / sqrt(fan_in)) : -1;
    struct op *op = builder_produce(b, OP_CONV, name, x, -1, k, window_out(in.h, kernel, stride, pad),
                                    window_out(in.w, kernel, stride, pad));
    if (!op)
        return -1;
    op->param[0] = weight;
    op->param[1] = add;
    op->groups = groups;
    op->kh = op->kw = kernel;
    op->sh = op->sw = stride;
    op->ph = op->pw = pad;
    return op->out;
}

int program_bn(struct program *p, const char *name, int x, float eps, bool zero_gamma)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    const int64_t shape[] = {in.c};
    int param[4] = {
        builder_param(b, name, "weight", PARAM_TRAIN, 1, shape, zero_gamma ? INIT_ZEROS : INIT_ONES, 0),
        builder_param(b, name, "bias", PARAM_TRAIN, 1, shape, INIT_ZEROS, 0),
        builder_param(b, name, "running_mean", PARAM_STAT, 1, shape, INIT_ZEROS, 0),
        builder_param(b, name, "running_var", PARAM_STAT, 1, shape, INIT_ONES, 0),
    };
    struct op *op = builder_produce(b, OP_BN, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    memcpy(op->param, param, sizeof param);
    op->eps = eps;
    return op->out;
}

int program_relu(struct program *p, const char *name, int x)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    struct op *op = builder_produce(b, OP_RELU, name, x, -1, in.c, in.h, in.w);
    return op ? op->out : -1;
}

static int of_two(struct program *p, enum op_kind kind, const char *does, const char *name, int x, int y)
{
    struct builder *b = builder_of(p);
    struct tensor l, r;
    if (!builder_source(b, name, x, &l) || !builder_source(b, name, y, &r))
        return -1;
    if (l.c != r.c || l.h != r.h || l.w != r.w)
        return builder_fail(b, "'%s' %s %d x %d x %d and %d x %d x %d", name, does, l.c, l.h, l.w, r.c, r.h, r.w);
    struct op *op = builder_produce(b, kind, name, x, y, l.c, l.h, l.w);
    return op ? op->out : -1;
}

int program_add(struct program *p, const char *name, int a, int b)
{
    return of_two(p, OP_ADD, "adds", name, a, b);
}

int program_mul(struct program *p, const char *name, int a, int b)
{
    return of_two(p, OP_MUL, "multiplies", name, a, b);
}

int program_maxpool(struct program *p, const char *name, int x, int kernel, int stride, int pad)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    /* padding of at most half a window: every window holds a real element */
    if (!builder_source(b, name, x, &in) || !check_window(b, name, &in, kernel, stride, pad, kernel / 2))
        return -1;
    struct op *op = builder_produce(b, OP_MAXPOOL, name, x, -1, in.c, window_out(in.h, kernel, stride, pad),
                                    window_out(in.w, kernel, stride, pad));
    if (!op)
        return -1;
    op->kh = op->kw = kernel;
    op->sh = op->sw = stride;
    op->ph = op->pw = pad;
    return op->out;
}

int program_avgpool(struct program *p, const char *name, int x)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    struct op *op = builder_produce(b, OP_AVGPOOL, name, x, -1, in.c, 1, 1);
    return op ? op->out : -1;
}

/* `features` inputs make k outputs, at each of h x w positions. */
static int linear(struct program *p, const char *name, int x, int64_t features, int k, int h, int w, bool bias)
{
    struct builder *b = builder_of(p);
    if (k < 1 || k > MAX_CHANNELS)
        return builder_fail(b, "'%s' has %d outputs", name, k);
    double scale = 1 / sqrt((double)features);
    int weight = builder_param(b, name, "weight", PARAM_TRAIN, 2, (int64_t[]){k, features}, INIT_UNIFORM, scale);
    int add = bias ? builder_param(b, name, "bias", PARAM_TRAIN, 1, (int64_t[]){k}, INIT_UNIFORM, scale) : -1;
    struct op *op = builder_produce(b, OP_LINEAR, name, x, -1, k, h, w);
    if (!op)
        return -1;
    op->param[0] = weight;
    op->param[1] = add;
    return op->out;
}

int program_linear_as(struct program *p, const char *name, int x, int k, bool each, bool bias)
{
    struct tensor in;
    if (!builder_source(builder_of(p), name, x, &in))
        return -1;
    const int y = each ? linear(p, name, x, in.c, k, in.h, in.w, bias)
                       : linear(p, name, x, (int64_t)in.c * in.h * in.w, k, 1, 1, bias);
    if (y >= 0)
        p->ops[p->nops - 1].each = each;
    return y;
}

int program_linear(struct program *p, const char *name, int x, int k)
{
    return program_linear_as(p, name, x, k, false, true);
}

int program_linear_each(struct program *p, const char *name, int x, int k, bool bias)
{
    return program_linear_as(p, name, x, k, true, bias);
}

int program_norm(struct program *p, const char *name, int x, float eps, bool rms, bool bias)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    if (!(eps >= 0))
        return builder_fail(b, "'%s' adds %g to a variance (expected 0 or more)", name, (double)eps);
    const int64_t shape[] = {in.c};
    int gamma = builder_param(b, name, "weight", PARAM_TRAIN, 1, shape, INIT_ONES, 0);
    int beta = bias ? builder_param(b, name, "bias", PARAM_TRAIN, 1, shape, INIT_ZEROS, 0) : -1;
    struct op *op = builder_produce(b, OP_NORM, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    op->param[0] = gamma;
    op->param[1] = beta;
    op->eps = eps;
    op->rms = rms;
    return op->out;
}

int program_act(struct program *p, const char *name, int x, enum op_act act)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    struct op *op = builder_produce(b, OP_ACT, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    op->act = act;
    return op->out;
}

/* A parameter called `name`, without a suffix; index or -1. */
static int param_named(struct builder *b, const char *name, int ndim, const int64_t *shape, enum param_init init,
                       double init_scale)
{
    struct param q = {
        .role = PARAM_TRAIN, .ndim = ndim, .count = 1, .init = init, .init_scale = init_scale, .decay = true};
    if (strlen(name) >= sizeof q.name)
        return builder_fail(b, "parameter name '%s' is longer than %zu bytes", name, sizeof q.name - 1);
    strcpy(q.name, name);
    for (int i = 0; i < ndim; i++) {
        q.shape[i] = shape[i];
        q.count *= (size_t)shape[i]; /* those of a tensor: no overflow */
    }
    return builder_add_param(b, &q);
}

int program_scale(struct program *p, const char *name, int x, double value, bool of_map)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    int by = param_named(b, name, of_map ? 3 : 1, (int64_t[]){in.c, 1, 1}, INIT_CONSTANT, value);
    struct op *op = builder_produce(b, OP_SCALE, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    op->param[0] = by;
    return op->out;
}

/* x has channels for so many heads of queries, keys and values: how many each; -1: an error. */
static int channels_of_head(struct builder *b, const char *name, int x, int heads, int kv_heads, struct tensor *in)
{
    if (!builder_source(b, name, x, in))
        return -1;
    if (heads < 1 || kv_heads < 1 || heads > MAX_CHANNELS || kv_heads > MAX_CHANNELS || heads % kv_heads)
        return builder_fail(b, "'%s' has %d heads of queries and %d of keys (expected a multiple of the latter)", name,
                            heads, kv_heads);
    const int all = heads + 2 * kv_heads;
    if (in->c % all)
        return builder_fail(b, "'%s' reads %d channels (expected a multiple of its %d heads: of queries, keys, values)",
                            name, in->c, all);
    return in->c / all;
}

int program_attention(struct program *p, const char *name, int x, int heads, int kv_heads, bool causal)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    const int each = channels_of_head(b, name, x, heads, kv_heads, &in);
    struct op *op = each < 0 ? NULL : builder_produce(b, OP_ATTENTION, name, x, -1, each * heads, in.h, in.w);
    if (!op)
        return -1;
    op->heads = heads;
    op->kv_heads = kv_heads;
    op->causal = causal;
    return op->out;
}

int program_rope(struct program *p, const char *name, int x, int heads, int kv_heads, double base)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    const int each = channels_of_head(b, name, x, heads, kv_heads, &in);
    if (each >= 0 && each % 2)
        return builder_fail(b, "'%s' turns heads of %d channels (expected an even number)", name, each);
    if (!(base >= 1))
        return builder_fail(b, "'%s' has base %g (expected at least 1)", name, base);
    struct op *op = each < 0 ? NULL : builder_produce(b, OP_ROPE, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    op->heads = heads;
    op->kv_heads = kv_heads;
    op->base = base;
    return op->out;
}

int program_prepend(struct program *p, const char *name, int x)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    int token = param_named(b, name, 3, (int64_t[]){1, 1, in.c}, INIT_ZEROS, 0);
    struct op *op = builder_produce(b, OP_PREPEND, name, x, -1, in.c, 1 + in.h * in.w, 1);
    if (!op)
        return -1;
    op->param[0] = token;
    return op->out;
}

struct program_grid program_grid(const struct program *p, int x)
{
    struct program_grid g = {0};
    for (int i = p->nops - 1; i >= 0; i--)
        if (p->ops[i].out == x && p->ops[i].kind == OP_PREPEND) {
            x = p->ops[i].in[0];
            g.extra++;
        }
    g.h = p->tensors[x].h;
    g.w = p->tensors[x].w;
    return g;
}

int program_position(struct program *p, const char *name, int x)
{
    return program_position_as(p, name, x, 0, false);
}

int program_position_as(struct program *p, const char *name, int x, int rows, bool flat)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    const int64_t used = (int64_t)in.h * in.w, n = rows ? rows : used, shape[] = {1, n, in.c};
    if (n < used)
        return builder_fail(b, "'%s' has %lld rows for %lld positions", name, (long long)n, (long long)used);
    int table = param_named(b, name, flat ? 2 : 3, flat ? shape + 1 : shape, INIT_NORMAL, 0.02);
    struct op *op = builder_produce(b, OP_POSITION, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    op->param[0] = table;
    if (p->input.rows == INPUT_PICTURES)
        p->params[table].grid = program_grid(p, x);
    return op->out;
}

int program_pick(struct program *p, const char *name, int x, int position)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    if (position < 0 || position >= in.h * in.w)
        return builder_fail(b, "'%s' takes position %d of %d", name, position, in.h * in.w);
    struct op *op = builder_produce(b, OP_PICK, name, x, -1, in.c, 1, 1);
    if (!op)
        return -1;
    op->first = position;
    return op->out;
}

/* Numbers of all the group's samples; -1 where x has this rank's rows alone. */
static int samples_of(struct program *p, const char *name, const struct tensor *x)
{
    struct builder *b = builder_of(p);
    char own[sizeof x->name + 16], all[sizeof x->name + 16];
    if (x->ranks == 1)
        return -1;
    snprintf(own, sizeof own, "%.63s.own", name);
    snprintf(all, sizeof all, "%.63s.samples", name);
    const struct op *op = builder_produce(b, OP_NUMBERS, own, -1, -1, SAMPLE_N, 1, 1);
    return program_gather(p, all, op ? op->out : -1);
}

int program_drop(struct program *p, const char *name, int x, double rate, bool samples)
{
    return program_drop_part(p, name, x, rate, samples, 0, 0);
}

int program_drop_part(struct program *p, const char *name, int x, double rate, bool samples, int first, int whole)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    if (!(rate >= 0 && rate < 1))
        return builder_fail(b, "'%s' drops a share of %g (expected 0 or more, and less than 1)", name, rate);
    if (rate == 0)
        return x;
    if (first < 0 || (whole && in.c > whole - first))
        return builder_fail(b, "'%s' drops channels %d to %d of %d", name, first, first + in.c, whole);
    const int numbers = samples_of(p, name, &in);
    struct op *op = builder_produce(b, OP_DROP, name, x, numbers, in.c, in.h, in.w);
    if (!op)
        return -1;
    op->first = first;
    op->whole = whole;
    op->rate = (float)rate;
    op->samples = samples;
    op->layer = program_hash(name);
    return op->out;
}

void program_xent(struct program *p, int logits)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, "xent", logits, &in))
        return;
    if (in.c < 2 || (size_t)in.h * (size_t)in.w != input_row_labels(&p->input)) {
        builder_fail(b, "the loss reads %d x %d x %d (expected at least 2 classes, at %zu positions)", in.c, in.h, in.w,
                     input_row_labels(&p->input));
        return;
    }
    struct op *op = builder_op(b, OP_XENT);
    if (!op)
        return;
    op->in[0] = logits;
    p->logits = logits;
    p->classes = in.c;
}

/* The table of a head: that of the embedding that made tensor `tied`, or its own. */
static int head_table(struct program *p, const char *name, int tied, int rows, int c)
{
    struct builder *b = builder_of(p);
    if (tied < 0)
        return builder_param(b, name, "weight", PARAM_TRAIN, 2, (int64_t[]){rows, c}, INIT_NORMAL, 0.02);
    const struct op *op = maker(p, tied);
    if (op && op->kind == OP_SCATTER) /* of what the parts of a table make */
        op = maker(p, op->in[0]);
    if (!op || op->kind != OP_EMBED)
        return builder_fail(b, "'%s' is tied to '%s' (expected an embedding)", name, p->tensors[tied].name);
    if (p->params[op->param[0]].shape[1] != c)
        return builder_fail(b, "'%s' reads %d channels, and the embedding that it is tied to has %lld", name, c,
                            (long long)p->params[op->param[0]].shape[1]);
    return op->param[0];
}

struct op *builder_head(struct builder *b, const char *name, int x, int tied, int rows, bool whole)
{
    struct program *p = &b->p;
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return NULL;
    if (p->input.rows != INPUT_TOKENS || in.h * in.w != p->input.length) {
        builder_fail(b, "'%s' reads %d positions (expected the %d of the tokens)", name, in.h * in.w,
                     p->input.rows == INPUT_TOKENS ? p->input.length : 0);
        return NULL;
    }
    const int table = head_table(p, name, tied, rows, in.c);
    struct op *op = whole ? builder_produce(b, OP_LINEAR, name, x, -1, rows, in.h, in.w) : builder_op(b, OP_HEAD);
    if (!op)
        return NULL;
    op->in[0] = x;
    op->param[0] = table;
    op->each = true;
    p->classes = p->input.vocabulary;
    return op;
}

bool program_head(struct program *p, const char *name, int x, int tied, bool whole)
{
    const struct op *op = builder_head(builder_of(p), name, x, tied, p->input.vocabulary, whole);
    if (op && whole)
        program_xent(p, op->out);
    return op && !builder_of(p)->err.code;
}

int program_find_tensor(const struct program *p, const char *name)
{
    for (int i = 0; i < p->ntensors; i++)
        if (!strcmp(p->tensors[i].name, name))
            return i;
    return -1;
}

int program_find_param(const struct program *p, const char *name)
{
    for (int i = 0; i < p->nparams; i++)
        if (!strcmp(p->params[i].name, name))
            return i;
    return -1;
}

const struct param *program_param_from(const struct program *p, size_t at)
{
    const struct param *next = NULL;
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        if (q->role == PARAM_TRAIN && q->count > 0 && q->offset >= at && (!next || q->offset < next->offset))
            next = q;
    }
    return next;
}

void program_freeze(struct program *p, const char *factors)
{
    for (int i = 0; i < p->nparams; i++)
        p->params[i].frozen |= p->params[i].role == PARAM_TRAIN && patterns_factor(factors, p->params[i].name) == 0;
}

void program_align(struct program *p, size_t elements)
{
    assert(elements > 0 && elements % ARENA_ALIGN == 0);
    p->align = elements;
}

size_t program_param_end(const struct program *p, const struct param *q)
{
    const size_t align = q->role == PARAM_TRAIN && p->align ? p->align : ARENA_ALIGN;
    return q->offset + (q->count + align - 1) / align * align;
}

/* Of the parameters with role `one` or 'b', trained or frozen, from the first to the last; of gradients with their
 * padding. */
static bool range_of(const struct program *p, const struct op *op, char one, bool frozen, struct plan_range *ret)
{
    const char *role = facts[op->kind].params;
    bool any = false;
    for (int i = 0; role[i]; i++) {
        const struct param *q = op->param[i] < 0 ? NULL : &p->params[op->param[i]];
        if (!q || q->frozen != frozen || (role[i] != one && role[i] != 'b') || (one == 'g' && op->more))
            continue;
        ret->first = any ? ret->first : q->offset;
        ret->end = one == 'r' ? q->offset + q->count : program_param_end(p, q);
        any = true;
    }
    return any;
}

int program_reads(const struct program *p, const struct op *op, struct plan_range ret[PROGRAM_READS_MOST])
{
    int n = range_of(p, op, 'r', false, &ret[0]);
    n += range_of(p, op, 'r', true, &ret[n]);
    return n;
}

bool program_gradients(const struct program *p, const struct op *op, struct plan_range *ret)
{
    return range_of(p, op, 'g', false, ret);
}

bool program_gives(const struct program *p, const struct op *op, int k)
{
    const char role = facts[op->kind].params[k];
    return (role == 'g' || role == 'b') && op->param[k] >= 0 && !p->params[op->param[k]].frozen;
}

int64_t param_whole_size(const struct param *p, int dim)
{
    return p->sharded && dim == p->shard_dim ? p->shard_whole : p->shape[dim];
}

struct param_run param_run_at(const struct param *p, size_t i)
{
    size_t inner = 1;
    if (!p->sharded)
        return (struct param_run){i, p->count - i};
    for (int d = p->shard_dim + 1; d < p->ndim; d++)
        inner *= (size_t)p->shape[d];
    const int64_t row = (int64_t)(i / inner), lead = p->shape[p->shard_dim] - 2 * p->shard_more;
    if (p->shard_more && row >= lead) {
        const int64_t k = (row - lead) / p->shard_more, begin = lead + k * p->shard_more;
        return (struct param_run){(size_t)(p->shard_at[k] - begin) * inner + i,
                                  (size_t)(begin + p->shard_more) * inner - i};
    }
    if (p->shard_more)
        return (struct param_run){(size_t)p->shard_first * inner + i, (size_t)lead * inner - i};
    const size_t run = (size_t)p->shape[p->shard_dim] * inner, outer = i / run, at = i % run;
    return (struct param_run){(outer * (size_t)p->shard_whole + (size_t)p->shard_first) * inner + at, run - at};
}

static size_t count_params(const struct program *p, bool frozen)
{
    size_t n = 0;
    for (int i = 0; i < p->nparams; i++)
        if (p->params[i].role == PARAM_TRAIN && p->params[i].frozen == frozen)
            n += p->params[i].count;
    return n;
}

size_t program_trainable(const struct program *p)
{
    return count_params(p, false);
}

size_t program_frozen(const struct program *p)
{
    return count_params(p, true);
}
