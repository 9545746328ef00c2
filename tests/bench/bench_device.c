/* Training images a second of a device without loader and communication.
 *   bench_device [device=cpu] [arch=resnet18] [image=64] [batch=32] [threads=1] [type=f32|bf16|emulated|eval] [steps=10] [profile=0|1] [classes=10] [serve=0|1]
 * serve=1: on each line of standard input the steps are run again, and the seconds of the fastest are printed: for taking turns with others.
 * Prints: device, arch, image, batch, threads, type, images/s of the fastest and of the median step, MB of plan memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "tests/bench/options.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench {
    const char *type, *device;
    struct model_options model;
    int batch, threads, steps, profile, serve;
};

static int run(const struct bench *o, struct err *e)
{
    struct program *p;
    struct device *d;
    struct plan *pl;
    void *params, *stats, *reduce, *momentum;
    bool training = strcmp(o->type, "eval") != 0, bf16 = o->type[0] == 'b' || strcmp(o->type, "emulated") == 0;
    TRY(model_build(&p, &o->model, e));
    TRY(device_open(&d, o->device, &(struct device_options){.threads = o->threads}, e));
    const struct device_ops *ops = d->ops;
    size_t real = dtype_size(ops->real);
    TRY(ops->alloc(d, p->n_train * real, &params, e));
    TRY(ops->alloc(d, p->n_stats * real, &stats, e));
    TRY(ops->alloc(d, p->n_reduce * real, &reduce, e));
    TRY(ops->alloc(d, p->n_train * real, &momentum, e));
    for (int i = 0; i < p->nparams; i++)
        for (size_t k = 0; k < p->params[i].count; k++) {
            double v = param_initial(&p->params[i], 0, k);
            void *arena = p->params[i].role == PARAM_TRAIN ? params : stats;
            if (ops->real == DT_F32)
                ((float *)arena)[p->params[i].offset + k] = (float)v;
            else
                ((double *)arena)[p->params[i].offset + k] = v;
        }
    struct plan_options po = {.batch = o->batch,
                              .training = training,
                              .emulate = strcmp(o->type, "emulated") == 0,
                              .compute = bf16 ? DT_BF16 : ops->real,
                              .params = params,
                              .stats = stats,
                              .reduce = reduce};
    TRY(ops->plan(d, p, &po, &pl, e));

    size_t pixels = (size_t)o->batch * 3 * (size_t)o->model.image_size * (size_t)o->model.image_size;
    uint8_t *images = malloc(pixels);
    int32_t *labels = malloc(sizeof(*labels) * (size_t)o->batch);
    float *weights = malloc(sizeof(*weights) * (size_t)o->batch);
    double *times = malloc(sizeof(*times) * (size_t)(o->steps + 1));
    for (size_t i = 0; i < pixels; i++)
        images[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int n = 0; n < o->batch; n++) {
        labels[n] = n % o->model.classes;
        weights[n] = 1;
    }
    struct update u = {.n = p->n_train, .lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4, .grad_mul = 1};
    const char *count = (const char *)reduce + (p->n_train + p->n_stats + METRIC_COUNT) * real;
    int64_t version = 0;
    for (int c = '\n'; c != EOF; c = o->serve ? getchar() : EOF) {
        if (c != '\n')
            continue;
        for (int i = version > 0; i <= o->steps; i++) { /* the very first one is not counted */
            struct run_args a = {.batch = {images, labels, weights},
                                 .grad_scale = 1,
                                 .params_version = training ? (uint64_t)++version : 1};
            int64_t start = clock_ns();
            TRY(ops->run(pl, &a, e));
            if (training)
                TRY(ops->update(d, &u, params, reduce, momentum, count, e));
            times[i] = (double)(clock_ns() - start) * 1e-9;
        }
        double best = times[1];
        for (int i = 2; i <= o->steps; i++)
            best = times[i] < best ? times[i] : best;
        if (o->serve) {
            printf("%.6f\n", best);
            fflush(stdout);
        }
    }
    qsort(times + 1, (size_t)o->steps, sizeof(*times), by_value);
    printf("%s %s image=%d batch=%d threads=%d %s: %.1f images/s best, %.1f median, %.1f MB\n", o->device,
           o->model.arch, o->model.image_size, o->batch, o->threads, o->type, o->batch / times[1],
           o->batch / times[(o->steps + 1) / 2],
           strcmp(ops->name, "cpu") == 0 ? (double)cpu_plan_bytes(pl) / 1e6 : 0.0);
    if (o->profile && strcmp(ops->name, "cpu") == 0)
        cpu_plan_profile(pl, stdout);
    free(images);
    free(labels);
    free(weights);
    free(times);
    ops->plan_close(pl);
    ops->release(d, params);
    ops->release(d, stats);
    ops->release(d, reduce);
    ops->release(d, momentum);
    ops->close(d);
    program_destroy(p);
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct bench o = {.type = option(argc, argv, "type", "f32"),
                      .device = option(argc, argv, "device", "cpu"),
                      .batch = number(argc, argv, "batch", "32"),
                      .threads = number(argc, argv, "threads", "1"),
                      .steps = number(argc, argv, "steps", "10"),
                      .profile = number(argc, argv, "profile", "0"),
                      .serve = number(argc, argv, "serve", "0"),
                      .model = {.arch = option(argc, argv, "arch", "resnet18"),
                                .classes = number(argc, argv, "classes", "10"),
                                .channels = 3,
                                .image_size = number(argc, argv, "image", "64"),
                                .mean = {0.5f, 0.5f, 0.5f},
                                .std = {0.25f, 0.25f, 0.25f}}};
    if (o.batch < 1 || o.steps < 1) {
        fprintf(stderr, "batch and steps are at least 1\n");
        return 2;
    }
    if (run(&o, &e) < 0) {
        fprintf(stderr, "bench_device: %s\n", e.text);
        return 1;
    }
    return 0;
}
