#include "tests/worker/device/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

static double *arena(struct device *d, size_t n)
{
    void *mem;
    assert_int_equal(0, d->ops->alloc(d, n * sizeof(double), &mem, NULL));
    return mem;
}

void noise(double *out, size_t n, uint64_t seed)
{
    struct param p = {.name = "noise", .init = INIT_UNIFORM, .init_scale = 1};
    param_initial_fill(&p, seed, 0, n, out);
}

static void fill(struct rig *r, uint64_t seed)
{
    for (int i = 0; i < r->p->nparams; i++) {
        const struct param *q = &r->p->params[i];
        double *to = (q->role == PARAM_STAT ? r->stats : r->params) + q->offset;
        param_initial_fill(q, seed, 0, q->count, to);
        if (q->role == PARAM_STAT || (q->init != INIT_ZEROS && q->init != INIT_ONES))
            continue;
        noise(to, q->count, seed + (uint64_t)i);
        for (size_t k = 0; k < q->count; k++)
            to[k] = (q->init == INIT_ONES) + to[k] / 4;
    }
}

void rig_open_slice(struct rig *r, const struct program *p, int batch, bool training, uint64_t seed, int first, int end)
{
    struct err e = {0};
    *r = (struct rig){.p = p, .n = batch};
    assert_int_equal(0, device_open(&r->dev, "ref", &(struct device_options){.threads = 2}, &e));
    r->params = arena(r->dev, p->n_train);
    r->stats = arena(r->dev, p->n_stats);
    r->reduce = arena(r->dev, p->n_reduce);
    fill(r, seed);
    struct plan_options o = {.batch = batch,
                             .training = training,
                             .compute = DT_F64,
                             .keep_all = true,
                             .first_op = first,
                             .end_op = end,
                             .params = r->params,
                             .stats = r->stats,
                             .reduce = r->reduce};
    if (r->dev->ops->plan(r->dev, p, &o, &r->plan, &e) < 0)
        fail_msg("%s", e.text);
}

void rig_open(struct rig *r, const struct program *p, int batch, bool training, uint64_t seed)
{
    rig_open_slice(r, p, batch, training, seed, 0, 0);
}

void rig_emulate_fp16(struct rig *r)
{
    struct err e = {0};
    const struct plan_options o = {.batch = r->n,
                                   .training = true,
                                   .compute = DT_F16,
                                   .emulate = true,
                                   .params = r->params,
                                   .stats = r->stats,
                                   .reduce = r->reduce};
    r->dev->ops->plan_close(r->plan);
    if (r->dev->ops->plan(r->dev, r->p, &o, &r->plan, &e) < 0)
        fail_msg("%s", e.text);
}

void rig_close(struct rig *r)
{
    r->dev->ops->plan_close(r->plan);
    r->dev->ops->release(r->dev, r->params);
    r->dev->ops->release(r->dev, r->stats);
    r->dev->ops->release(r->dev, r->reduce);
    r->dev->ops->close(r->dev);
}

void rig_run(struct rig *r, const struct batch *b, bool accumulate, const struct run_hooks *hooks)
{
    struct err e = {0};
    struct run_args a = {.batch = *b, .grad_scale = 1, .accumulate = accumulate, .hooks = hooks};
    if (r->plan->ops->run(r->plan, &a, &e) < 0)
        fail_msg("%s", e.text);
}

static int tensor_id(struct rig *r, const char *name)
{
    int t = program_find_tensor(r->p, name);
    if (t < 0)
        fail_msg("no tensor '%s'", name);
    return t;
}

void rig_put(struct rig *r, const char *tensor, const double *values)
{
    assert_int_equal(0, r->plan->ops->put(r->plan, tensor_id(r, tensor), values, NULL));
}

void rig_get(struct rig *r, const char *tensor, double *values)
{
    assert_int_equal(0, r->plan->ops->get(r->plan, tensor_id(r, tensor), values, NULL));
}

static const struct param *param_named(struct rig *r, const char *name)
{
    int i = program_find_param(r->p, name);
    if (i < 0)
        fail_msg("no parameter '%s'", name);
    return &r->p->params[i];
}

double *rig_param(struct rig *r, const char *name)
{
    const struct param *q = param_named(r, name);
    return (q->role == PARAM_STAT ? r->stats : r->params) + q->offset;
}

double *rig_gradient(struct rig *r, const char *name)
{
    const struct param *q = param_named(r, name);
    return r->reduce + (q->role == PARAM_STAT ? r->p->n_train : 0) + q->offset;
}

double *rig_metrics(struct rig *r)
{
    return r->reduce + r->p->n_train + r->p->n_stats;
}

void samples_make(struct samples *s, const struct program *p, int n, uint64_t seed)
{
    const size_t bytes = input_row_bytes(&p->input), all = (size_t)n * bytes,
                 labels = (size_t)n * input_row_labels(&p->input);
    double *values = malloc((all + labels) * sizeof *values);
    s->images = malloc(all);
    s->labels = malloc(labels * sizeof *s->labels);
    s->weights = malloc((size_t)n * sizeof *s->weights);
    s->numbers = malloc((size_t)n * sizeof *s->numbers);
    assert_true(values && s->images && s->labels && s->weights && s->numbers);
    noise(values, all + labels, seed);
    for (size_t i = 0; i < all; i++)
        s->images[i] = (uint8_t)((values[i] + 1) * 127.5);
    for (size_t i = 0; i < labels; i++)
        s->labels[i] = (int32_t)((values[all + i] + 1) / 2 * p->classes);
    if (p->input.rows == INPUT_TOKENS) {
        memcpy(s->images, s->labels, all); /* of each token itself: gradients of a table have two parts */
        s->labels[2] = -1;
    }
    for (int i = 0; i < n; i++) {
        s->weights[i] = 1;
        s->numbers[i] = (uint32_t)(i * i + 7);
    }
    free(values);
    s->b = (struct batch){s->images, s->labels, s->weights, s->numbers};
}

void samples_free(struct samples *s)
{
    free(s->images);
    free(s->labels);
    free(s->weights);
    free(s->numbers);
}

void assert_near(const char *what, double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s is %.17g, expected %.17g within %g", what, got, expected, tolerance);
}

void assert_all(struct rig *r, const char *tensor, const double *expected, int n)
{
    double *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    const struct tensor *t = &r->p->tensors[tensor_id(r, tensor)];
    assert_int_equal(n, r->n * t->c * t->h * t->w);
    rig_get(r, tensor, got);
    for (int i = 0; i < n; i++)
        assert_near(tensor, got[i], expected[i], 1e-14);
    free(got);
}

double relative_error(const double *a, const double *b, size_t n)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / norm);
}

static struct program *net(const char *name)
{
    static const float mean[] = {0.5f, 0.4f, 0.6f}, std[] = {0.25f, 0.3f, 0.2f};
    return program_create(name, input_pictures(3, 9, 9, mean, std));
}

static int conv_bn(struct program *p, const char *name, int x, int k, int kernel, int stride)
{
    char bn[32];
    snprintf(bn, sizeof bn, "%s.bn", name);
    x = program_conv(p, name, x, k, kernel, stride, kernel / 2, false);
    return program_bn(p, bn, x, 1e-5f, false);
}

static struct program *finished(struct program *p, int x)
{
    struct err e = {0};
    program_xent(p, program_linear(p, "fc", x, 4));
    if (program_differentiate(p, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

struct program *net_basic(void)
{
    struct program *p = net("basic");
    int x = program_relu(p, "r0", conv_bn(p, "c0", program_input(p), 4, 3, 1));
    x = program_maxpool(p, "pool", x, 3, 2, 1);
    int y = conv_bn(p, "c2", program_relu(p, "r1", conv_bn(p, "c1", x, 4, 3, 1)), 4, 3, 1);
    x = program_relu(p, "r2", program_add(p, "a1", y, x));
    y = conv_bn(p, "c4", program_relu(p, "r3", conv_bn(p, "c3", x, 6, 3, 2)), 6, 3, 1);
    x = program_relu(p, "r4", program_add(p, "a2", y, conv_bn(p, "down", x, 6, 1, 2)));
    return finished(p, program_avgpool(p, "avg", x));
}

struct program *net_bottleneck(void)
{
    struct program *p = net("bottleneck");
    int x = program_relu(p, "r0", conv_bn(p, "c0", program_input(p), 4, 7, 2));
    int y = program_relu(p, "r1", conv_bn(p, "c1", x, 3, 1, 1));
    y = program_relu(p, "r2", conv_bn(p, "c2", y, 3, 3, 2));
    y = conv_bn(p, "c3", y, 8, 1, 1);
    x = program_relu(p, "r3", program_add(p, "a1", y, conv_bn(p, "down", x, 8, 1, 2)));
    y = program_relu(p, "r4", conv_bn(p, "c4", x, 3, 1, 1));
    y = program_relu(p, "r5", conv_bn(p, "c5", y, 3, 3, 1));
    x = program_relu(p, "r6", program_add(p, "a2", conv_bn(p, "c6", y, 8, 1, 1), x));
    return finished(p, program_avgpool(p, "avg", x));
}

struct program *net_flat(void)
{
    struct program *p = net("flat");
    int x = program_conv(p, "c0", program_input(p), 4, 5, 1, 2, true);
    x = program_relu(p, "r0", program_bn(p, "b0", x, 1e-5f, false));
    x = program_conv(p, "c1", program_maxpool(p, "m0", x, 2, 2, 0), 5, 5, 1, 2, true);
    x = program_maxpool(p, "m1", program_relu(p, "r1", x), 2, 2, 0);
    return finished(p, x);
}

/* A block of ConvNeXt's kind, c channels. */
static int depthwise_block(struct program *p, int x, int c)
{
    int y = program_conv_groups(p, "dw", x, c, 3, 1, 1, c, true);
    y = program_linear_each(p, "up", program_norm(p, "ln", y, 1e-6f, false, true), 2 * c, true);
    y = program_linear_each(p, "down", program_act(p, "gelu", y, ACT_GELU), c, true);
    y = program_drop(p, "leave", program_scale(p, "gamma", y, 0.5, true), 0.3, true);
    return program_add(p, "sum", y, x);
}

struct program *net_rows(void)
{
    struct program *p = net("rows");
    int x = program_norm(p, "stem", program_conv(p, "c0", program_input(p), 4, 3, 2, 0, true), 1e-6f, false, false);
    x = program_conv_groups(p, "c1", depthwise_block(p, x, 4), 6, 2, 2, 0, 2, true);
    x = program_act(p, "silu", program_norm(p, "rms", x, 1e-6f, true, true), ACT_SILU);
    x = program_drop(p, "out", program_linear_each(p, "mix", x, 5, false), 0.2, false);
    x = program_avgpool(p, "avg", program_act(p, "tanh", x, ACT_GELU_TANH));
    return finished(p, program_scale(p, "last", x, 2, false));
}

static int attend(struct program *p, const char *name, int x, bool causal)
{
    char part[4][32];
    static const char *const parts[] = {"norm", "qkv", "heads", "out"};
    for (int i = 0; i < 4; i++)
        snprintf(part[i], sizeof part[i], "%s.%s", name, parts[i]);
    int y = program_linear_each(p, part[1], program_norm(p, part[0], x, 1e-6f, false, true), 12, true);
    y = program_linear_each(p, part[3], program_attention(p, part[2], y, 2, 1, causal), 6, true);
    return program_add(p, name, y, x);
}

struct program *net_text(void)
{
    struct program *p = program_create("text", (struct input){.rows = INPUT_TOKENS, .length = 5, .vocabulary = 7});
    const int table = program_embed(p, "table", program_tokens(p), 6);
    int x = program_position_as(p, "positions", table, 6, true);
    int y = program_rope(p, "rope", program_linear_each(p, "qkv", x, 12, true), 2, 2, 10);
    y = program_linear_each(p, "out", program_attention(p, "heads", y, 2, 2, true), 6, true);
    x = program_mul(p, "mul", program_act(p, "act", x, ACT_SILU), program_add(p, "sum", x, y));
    program_head(p, "head", program_norm(p, "norm", x, 1e-3f, true, false), table, false);
    assert_int_equal(0, program_differentiate(p, NULL));
    return p;
}

struct program *net_attention(void)
{
    struct program *p = net("attention");
    int x = program_conv(p, "c0", program_input(p), 6, 3, 3, 0, true);
    x = program_position(p, "positions", program_prepend(p, "token", x));
    x = attend(p, "b", attend(p, "a", x, false), true);
    return finished(p, program_add(p, "both", program_pick(p, "first", x, 0), program_pick(p, "last", x, 9)));
}
