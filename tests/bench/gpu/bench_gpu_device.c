/* Training steps of the cuda device on synthetic images, without loader and communication: stage, forward, backward,
 * update.
 *   bench_gpu_device [arch=resnet50] [batch=256] [type=fp16|bf16|tf32|fp32] [image=224] [classes=1000] [device=cuda]
 *   [tune=0|1] [cache=DIR] [profile=0|1]
 * Prints a line of JSON (device, memory of the plan) when the graph is captured, then for each number N on standard
 * input the seconds of N steps, between two synchronisations. profile=1: then steps launched one by one, and a line of
 * JSON with the milliseconds of each step of the plan, its engine, and what it moves and computes at the least. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/bench/options.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

enum { WARM_UP = 5, BATCHES = 3, PROFILED = 10, SPANS_MAX = 4096 };

struct bench {
    struct model_options model;
    const char *device, *type, *cache;
    int batch, tune, profile;

    struct program *p;
    struct device *d;
    struct plan *plan;
    void *params, *stats, *reduce, *momentum;
    struct batch batches[BATCHES]; /* taken in turn: no cache knows them all */
    uint64_t version;
};

static int fill_arena(struct bench *b, struct err *e)
{
    for (int i = 0; i < b->p->nparams; i++) {
        const struct param *q = &b->p->params[i];
        double *v = malloc(sizeof(*v) * q->count);
        float *f = malloc(sizeof(*f) * q->count);
        float *arena = q->role == PARAM_TRAIN ? b->params : b->stats;
        param_initial_fill(q, 0, 0, q->count, v);
        for (size_t k = 0; k < q->count; k++)
            f[k] = (float)v[k];
        const int rc = b->d->ops->upload(b->d, arena + q->offset, f, sizeof(*f) * q->count, e);
        free(v);
        free(f);
        TRY(rc);
    }
    return 0;
}

static void make_batch(struct bench *b, struct batch *out, uint32_t seed)
{
    const size_t pixels = (size_t)b->batch * input_row_bytes(&b->model.input);
    uint8_t *images = malloc(pixels);
    int32_t *labels = malloc(sizeof(*labels) * (size_t)b->batch);
    float *weights = malloc(sizeof(*weights) * (size_t)b->batch);
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < pixels; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5; /* xorshift32 (Marsaglia 2003) */
        images[i] = (uint8_t)(x >> 24);
    }
    for (int n = 0; n < b->batch; n++) {
        labels[n] = n % b->model.classes;
        weights[n] = 1;
    }
    *out = (struct batch){images, labels, weights};
}

static int open_bench(struct bench *b, struct err *e)
{
    const struct device_options o = {
        .threads = 1,
        .gpu = {.tune = b->tune, .tf32 = strcmp(b->type, "tf32") == 0, .fused = true, .cache_dir = b->cache}};
    TRY(model_build(&b->p, &b->model, e));
    TRY(device_open(&b->d, b->device, &o, e));
    const struct device_ops *ops = b->d->ops;
    TRY(ops->alloc(b->d, b->p->n_train * sizeof(float), &b->params, e));
    TRY(ops->alloc(b->d, b->p->n_stats * sizeof(float), &b->stats, e));
    TRY(ops->alloc(b->d, b->p->n_reduce * sizeof(float), &b->reduce, e));
    TRY(ops->alloc(b->d, b->p->n_train * sizeof(float), &b->momentum, e));
    TRY(fill_arena(b, e));
    const struct plan_options po = {.batch = b->batch,
                                    .training = true,
                                    .compute = strcmp(b->type, "fp16") == 0   ? DT_F16
                                               : strcmp(b->type, "bf16") == 0 ? DT_BF16
                                                                              : DT_F32,
                                    .params = b->params,
                                    .stats = b->stats,
                                    .reduce = b->reduce};
    TRY(ops->plan(b->d, b->p, &po, &b->plan, e));
    for (int i = 0; i < BATCHES; i++)
        make_batch(b, &b->batches[i], (uint32_t)i + 1);
    return 0;
}

static int step(struct bench *b, const struct run_trace *trace, struct err *e)
{
    const struct update u = {
        .n = b->p->n_train, .lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4, .grad_mul = 1.0 / 128};
    const float *count = (const float *)b->reduce + b->p->n_train + b->p->n_stats + METRIC_COUNT;
    const struct run_args a = {
        .batch = b->batches[b->version % BATCHES], .grad_scale = 128, .params_version = ++b->version, .trace = trace};
    TRY(b->d->ops->run(b->plan, &a, e));
    return b->d->ops->update(b->d, &u, b->params, b->reduce, b->momentum, count, e);
}

static int timed(struct bench *b, int steps, double *ret, struct err *e)
{
    TRY(b->d->ops->sync(b->d, e));
    const int64_t start = clock_ns();
    for (int i = 0; i < steps; i++)
        TRY(step(b, NULL, e));
    TRY(b->d->ops->sync(b->d, e));
    *ret = (double)(clock_ns() - start) * 1e-9;
    return 0;
}

/* --- profile */

struct spans {
    int n, at;
    struct span {
        const char *label, *kernel;
        int op;
        double bytes, flop, ms;
    } spans[SPANS_MAX];
};

/* Steps come in the same order each time. */
static void on_op(void *ctx, const struct run_span *r)
{
    struct spans *s = ctx;
    if (s->at == SPANS_MAX)
        return;
    struct span *x = &s->spans[s->at++];
    s->n = s->at > s->n ? s->at : s->n;
    *x = (struct span){r->label, r->kernel, r->op,
                       r->bytes, r->flop,   x->ms + (double)(r->end_ns - r->start_ns) * 1e-6 / PROFILED};
}

static int profile(struct bench *b, struct err *e)
{
    static struct spans s;
    const struct run_trace trace = {.ctx = &s, .op = on_op};
    for (int i = 0; i < PROFILED; i++) {
        s.at = 0;
        TRY(step(b, &trace, e));
    }
    printf("[");
    for (int i = 0; i < s.n; i++) {
        const struct op *op = &b->p->ops[s.spans[i].op];
        printf(
            "%s{\"step\": \"%s\", \"op\": \"%s\", \"of\": \"%s\", \"engine\": \"%s\", \"mb\": %.3f, \"gflop\": %.3f, "
            "\"ms\": %.4f}",
            i ? ", " : "", s.spans[i].label, op_name(op->kind),
            op->out >= 0        ? b->p->tensors[op->out].name
            : op->param[0] >= 0 ? b->p->params[op->param[0]].name
                                : "",
            s.spans[i].kernel ? s.spans[i].kernel : "", s.spans[i].bytes / 1e6, s.spans[i].flop / 1e9, s.spans[i].ms);
    }
    printf("]\n");
    return 0;
}

static int serve(struct bench *b, struct err *e)
{
    double seconds;
    struct plan_memory m = {0};
    char line[64], device[256];
    TRY(timed(b, WARM_UP, &seconds, e));
    b->d->ops->describe(b->d, device, sizeof device);
    if (b->d->ops->plan_memory)
        b->d->ops->plan_memory(b->plan, &m);
    printf("{\"device\": \"%s\", \"activations\": %zu, \"weights\": %zu, \"workspace\": %zu}\n", device, m.activations,
           m.weights, m.workspace);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        TRY(timed(b, atoi(line) > 0 ? atoi(line) : 1, &seconds, e));
        printf("%.6f\n", seconds);
        fflush(stdout);
    }
    return b->profile ? profile(b, e) : 0;
}

static void close_bench(struct bench *b)
{
    for (int i = 0; i < BATCHES; i++) {
        free((void *)(uintptr_t)b->batches[i].rows);
        free((void *)(uintptr_t)b->batches[i].labels);
        free((void *)(uintptr_t)b->batches[i].weights);
    }
    if (b->plan)
        b->d->ops->plan_close(b->plan);
    if (b->d) {
        b->d->ops->release(b->d, b->params);
        b->d->ops->release(b->d, b->stats);
        b->d->ops->release(b->d, b->reduce);
        b->d->ops->release(b->d, b->momentum);
        b->d->ops->close(b->d);
    }
    program_destroy(b->p);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const int side = number(argc, argv, "image", "224");
    struct bench b = {.device = option(argc, argv, "device", "cuda"),
                      .type = option(argc, argv, "type", "fp16"),
                      .cache = option(argc, argv, "cache", NULL),
                      .batch = number(argc, argv, "batch", "256"),
                      .tune = number(argc, argv, "tune", "1"),
                      .profile = number(argc, argv, "profile", "0"),
                      .model = {.arch = option(argc, argv, "arch", "resnet50"),
                                .classes = number(argc, argv, "classes", "1000"),
                                .input = input_pictures(3, side, side, NULL, NULL)}};
    if (b.batch < 1 || b.model.classes < 1) {
        fprintf(stderr, "batch and classes are at least 1\n");
        return 2;
    }
    int rc = open_bench(&b, &e);
    if (rc == 0)
        rc = serve(&b, &e);
    if (rc < 0)
        fprintf(stderr, "bench_gpu_device: %s\n", e.text);
    close_bench(&b);
    return rc < 0;
}
