/* Training images a second of a device without loader and communication.
 *   bench_device [device=cpu] [arch=resnet18] [image=64] [batch=32] [threads=1] [type=f32|bf16|emulated|eval]
 *   [steps=10] [profile=0|1] [classes=10] [serve=0|1]
 *                [channels=3] [format=auto|nchw|nhwc]; of a model of tokens image is the length of a sample
 * Prints: device, arch, image, batch, threads, type, images/s of the fastest and of the median step, and of a step of
 * which every operation took as long as in its fastest run (what lies between operations, copies of weights and the
 * update among it, counting as one of them); MB of plan memory.
 * serve=1: on each line of standard input the steps are run again, and the seconds are printed of the fastest step of
 * this turn, and of all turns the sum of the operations' fastest and the fastest update, which is within that sum: for
 * taking turns with others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/bench/model_input.h"
#include "tests/bench/options.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

enum { MAX_STEPS = 4096 };

struct bench {
    const char *type, *device, *format;
    struct model_options model;
    int batch, threads, steps, profile, serve;
    bool training;

    struct program *p;
    struct device *d;
    const struct device_ops *ops;
    struct plan *plan;
    void *params, *stats, *reduce, *momentum;
    struct batch data;
    uint64_t version;
    double *times; /* seconds of the steps of this turn */

    double fastest[MAX_STEPS], between, update; /* seconds; 0: not run yet */
    double inside;                              /* of the step under way */
    int at;
};

static void keep_lower(double *best, double v)
{
    if (*best <= 0 || v < *best)
        *best = v;
}

static void on_op(void *ctx, const struct run_span *s)
{
    struct bench *b = ctx;
    const double took = (double)(s->end_ns - s->start_ns) * 1e-9;
    b->inside += took;
    if (b->at < MAX_STEPS)
        keep_lower(&b->fastest[b->at++], took);
}

static double sum_of_fastest(const struct bench *b)
{
    double sum = b->between;
    for (int i = 0; i < b->at; i++)
        sum += b->fastest[i];
    return sum;
}

static void fill_param(struct bench *b, const struct param *q)
{
    enum { SOME = 4096 };
    double v[SOME];
    void *arena = q->role == PARAM_TRAIN ? b->params : b->stats;
    for (size_t at = 0, n; at < q->count; at += n) {
        n = q->count - at < SOME ? q->count - at : SOME;
        param_initial_fill(q, 0, at, n, v);
        for (size_t k = 0; k < n; k++)
            if (b->ops->real == DT_F32)
                ((float *)arena)[q->offset + at + k] = (float)v[k];
            else
                ((double *)arena)[q->offset + at + k] = v[k];
    }
}

static int make_params(struct bench *b, struct err *e)
{
    const size_t real = dtype_size(b->ops->real);
    TRY(b->ops->alloc(b->d, b->p->n_train * real, &b->params, e));
    TRY(b->ops->alloc(b->d, b->p->n_stats * real, &b->stats, e));
    TRY(b->ops->alloc(b->d, b->p->n_reduce * real, &b->reduce, e));
    TRY(b->ops->alloc(b->d, b->p->n_train * real, &b->momentum, e));
    for (int i = 0; i < b->p->nparams; i++)
        fill_param(b, &b->p->params[i]);
    return 0;
}

static void make_batch(struct bench *b)
{
    const size_t pixels = (size_t)b->batch * input_row_bytes(&b->p->input),
                 rows = (size_t)b->batch * input_row_labels(&b->p->input);
    uint8_t *images = malloc(pixels);
    int32_t *labels = malloc(sizeof(*labels) * rows);
    float *weights = malloc(sizeof(*weights) * (size_t)b->batch);
    uint32_t *samples = malloc(sizeof(*samples) * (size_t)b->batch);
    for (size_t i = 0; i < pixels; i++)
        images[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < rows; i++)
        labels[i] = (int32_t)(i * 2654435761u % (size_t)b->p->classes);
    if (b->p->input.rows == INPUT_TOKENS)
        memcpy(images, labels, pixels);
    for (int n = 0; n < b->batch; n++) {
        samples[n] = (uint32_t)n;
        weights[n] = 1;
    }
    b->data = (struct batch){images, labels, weights, samples};
    b->times = malloc(sizeof(*b->times) * (size_t)b->steps);
}

static enum memory_format format_named(const char *s)
{
    return strcmp(s, "nchw") == 0 ? MEMORY_NCHW : strcmp(s, "nhwc") == 0 ? MEMORY_NHWC : MEMORY_AUTO;
}

static int open_all(struct bench *b, struct err *e)
{
    const bool bf16 = b->type[0] == 'b' || strcmp(b->type, "emulated") == 0;
    TRY(model_input(&b->model, e));
    TRY(model_build(&b->p, &b->model, e));
    TRY(device_open(&b->d, b->device, &(struct device_options){.threads = b->threads}, e));
    b->ops = b->d->ops;
    TRY(make_params(b, e));
    make_batch(b);
    const struct plan_options o = {.batch = b->batch,
                                   .training = b->training,
                                   .emulate = strcmp(b->type, "emulated") == 0,
                                   .compute = bf16 ? DT_BF16 : b->ops->real,
                                   .format = format_named(b->format),
                                   .params = b->params,
                                   .stats = b->stats,
                                   .reduce = b->reduce};
    return b->ops->plan(b->d, b->p, &o, &b->plan, e);
}

static void close_all(struct bench *b)
{
    b->ops->plan_close(b->plan);
    b->ops->release(b->d, b->params);
    b->ops->release(b->d, b->stats);
    b->ops->release(b->d, b->reduce);
    b->ops->release(b->d, b->momentum);
    b->ops->close(b->d);
    program_destroy(b->p);
    free((void *)b->data.rows);
    free((void *)b->data.labels);
    free((void *)b->data.weights);
    free(b->times);
}

static int step(struct bench *b, double *ret_seconds, struct err *e)
{
    const struct run_trace trace = {b, on_op};
    const struct run_args a = {
        .batch = b->data, .grad_scale = 1, .params_version = b->training ? ++b->version : 1, .trace = &trace};
    const struct update u = {.n = b->p->n_train, .lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4, .grad_mul = 1};
    const size_t count = (b->p->n_train + b->p->n_stats + METRIC_COUNT) * dtype_size(b->ops->real);
    const int64_t start = clock_ns();
    b->at = 0;
    b->inside = 0;
    TRY(b->ops->run(b->plan, &a, e));
    const int64_t middle = clock_ns();
    if (b->training)
        TRY(b->ops->update(b->d, &u, b->params, b->reduce, b->momentum, (const char *)b->reduce + count, e));
    const int64_t end = clock_ns();
    *ret_seconds = (double)(end - start) * 1e-9;
    keep_lower(&b->update, (double)(end - middle) * 1e-9);
    keep_lower(&b->between, *ret_seconds - b->inside);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int facts_size(const struct bench *b)
{
    return b->p->input.rows == INPUT_TOKENS ? b->p->input.length : b->p->input.height;
}

static int run(struct bench *b, struct err *e)
{
    double first;
    TRY(open_all(b, e));
    TRY(step(b, &first, e)); /* not counted */
    b->between = b->update = 0;
    memset(b->fastest, 0, sizeof b->fastest);
    for (int c = '\n'; c != EOF; c = b->serve ? getchar() : EOF) {
        if (c != '\n')
            continue;
        for (int i = 0; i < b->steps; i++)
            TRY(step(b, &b->times[i], e));
        qsort(b->times, (size_t)b->steps, sizeof(*b->times), by_value);
        if (b->serve)
            printf("%.6f %.6f %.6f\n", b->times[0], sum_of_fastest(b), b->update);
        fflush(stdout);
    }
    const bool cpu = strcmp(b->ops->name, "cpu") == 0;
    printf("%s %s image=%d batch=%d threads=%d %s: %.1f images/s best, %.1f median, %.1f of each operation's fastest "
           "run; %.1f MB\n",
           b->device, b->model.arch, facts_size(b), b->batch, b->threads, b->type, b->batch / b->times[0],
           b->batch / b->times[b->steps / 2], b->batch / sum_of_fastest(b),
           cpu ? (double)cpu_plan_bytes(b->plan) / 1e6 : 0.0);
    if (b->profile && cpu)
        cpu_plan_profile(b->plan, stdout);
    close_all(b);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err e = {0};
    const int side = number(argc, argv, "image", "64");
    b = (struct bench){.type = option(argc, argv, "type", "f32"),
                       .device = option(argc, argv, "device", "cpu"),
                       .format = option(argc, argv, "format", "auto"),
                       .batch = number(argc, argv, "batch", "32"),
                       .threads = number(argc, argv, "threads", "1"),
                       .steps = number(argc, argv, "steps", "10"),
                       .profile = number(argc, argv, "profile", "0"),
                       .serve = number(argc, argv, "serve", "0"),
                       .model = {.arch = option(argc, argv, "arch", "resnet18"),
                                 .classes = number(argc, argv, "classes", "10"),
                                 .input = input_pictures(number(argc, argv, "channels", "3"), side, side, NULL, NULL)}};
    b.training = strcmp(b.type, "eval") != 0;
    if (b.batch < 1 || b.steps < 1) {
        fprintf(stderr, "batch and steps are at least 1\n");
        return 2;
    }
    if (run(&b, &e) < 0) {
        fprintf(stderr, "bench_device: %s\n", e.text);
        return 1;
    }
    return 0;
}
