/* Collectives within a captured step, in a world of one: each launch of the graph must do them again, on what the step
 * made then.
 *   test_captured_comm [DEVICE COMM]   cuda nccl; cpu local rehearses it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/device/module/module.h"
#include "worker/program/program.h"

enum { SIZE = 16, BATCH = 4, CLASSES = 5, STEPS = 5 };
static const char *device_name = "cuda", *comm_name = "nccl";

struct rig {
    struct program *p;
    struct device *d;
    struct comm *comm;
    struct plan *plan;
    float *params, *stats, *reduce, *gathered; /* of the device; gathered: as large as reduce */
    uint8_t images[BATCH * SIZE * SIZE * 3];
    int32_t labels[BATCH];
    float weights[BATCH];
    int calls;
};

static struct program *small(void)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("small", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_conv(p, "conv", program_input(p), 8, 3, 1, 1, false);
    x = program_relu(p, "relu", program_bn(p, "bn", x, 1e-5f, false));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), CLASSES));
    MUST(program_differentiate(p, e));
    return p;
}

/* As gradients become final: their sum over one rank, which they are, and a copy. */
static int on_ready(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    struct rig *r = ctx;
    const struct comm_ops *ops = r->comm->ops;
    r->calls++;
    TRY(ops->all_reduce(r->comm, COMM_GRADIENTS, r->reduce + first, end - first, DT_F32, COMM_SUM, stream, e));
    return ops->all_gather(r->comm, COMM_GRADIENTS, r->reduce + first, r->gathered + first,
                           (end - first) * sizeof(float), stream, e);
}

static float *take(struct rig *r, size_t n)
{
    void *p;
    MUST(r->d->ops->alloc(r->d, n * sizeof(float), &p, e));
    return p;
}

static void open_rig(struct rig *r)
{
    struct comm_options o = {.world = 1, .name = "alone", .timeout_ms = 30000};
    memset(r, 0, sizeof *r);
    r->p = small();
    MUST(device_open(&r->d, device_name, &(struct device_options){.threads = 1}, e));
    o.device = r->d;
    if (strcmp(device_name, "cuda") == 0)
        o.nccl = cuda_module(NULL)->nccl;
    MUST(comm_open(&r->comm, comm_name, &o, e));
    r->params = take(r, r->p->n_train);
    r->stats = take(r, r->p->n_stats);
    r->reduce = take(r, r->p->n_reduce);
    r->gathered = take(r, r->p->n_reduce);
    for (int i = 0; i < r->p->nparams; i++) {
        const struct param *q = &r->p->params[i];
        for (size_t k = 0; k < q->count; k++) {
            const float v = (float)param_initial(q, 1, k);
            MUST(r->d->ops->upload(r->d, (q->role == PARAM_TRAIN ? r->params : r->stats) + q->offset + k, &v, sizeof v,
                                   e));
        }
    }
    const struct plan_options plan = {.batch = BATCH,
                                      .training = true,
                                      .compute = DT_F32,
                                      .params = r->params,
                                      .stats = r->stats,
                                      .reduce = r->reduce};
    MUST(r->d->ops->plan(r->d, r->p, &plan, &r->plan, e));
}

/* Plans before communicators: a graph holds one. */
static void close_rig(struct rig *r)
{
    r->d->ops->plan_close(r->plan);
    r->comm->ops->close(r->comm);
    r->d->ops->release(r->d, r->params);
    r->d->ops->release(r->d, r->stats);
    r->d->ops->release(r->d, r->reduce);
    r->d->ops->release(r->d, r->gathered);
    r->d->ops->close(r->d);
    program_destroy(r->p);
}

/* A step on other images than the last. */
static void step(struct rig *r, uint32_t seed, float *gradients, float *copies)
{
    const struct run_hooks h = {.ctx = r, .ready = on_ready};
    const size_t bytes = r->p->n_train * sizeof(float);
    uint32_t x = seed;
    for (size_t i = 0; i < sizeof r->images; i++)
        r->images[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (int i = 0; i < BATCH; i++) {
        r->labels[i] = i % CLASSES;
        r->weights[i] = 1;
    }
    const struct run_args a = {
        .batch = {r->images, r->labels, r->weights}, .grad_scale = 1, .params_version = 1, .hooks = &h};
    MUST(r->d->ops->run(r->plan, &a, e));
    MUST(r->d->ops->download(r->d, gradients, r->reduce, bytes, e));
    MUST(r->d->ops->download(r->d, copies, r->gathered, bytes, e));
    if (r->comm->ops->check)
        MUST(r->comm->ops->check(r->comm, e));
}

static void each_launch_does_its_collectives_again(void **state)
{
    struct rig r;
    open_rig(&r);
    const size_t n = r.p->n_train;
    float *now = calloc(n, sizeof *now), *copies = calloc(n, sizeof *copies), *before = calloc(n, sizeof *before);
    for (uint32_t i = 0; i < STEPS; i++) {
        step(&r, i + 1, now, copies);
        assert_memory_equal(now, copies, n * sizeof *now);
        assert_memory_not_equal(now, before, n * sizeof *now);
        memcpy(before, now, n * sizeof *now);
    }
    print_message("# %d calls of the hook in %d steps\n", r.calls, STEPS);
    free(now);
    free(copies);
    free(before);
    close_rig(&r);
    (void)state;
}

/* Says why nothing can be tried, or is NULL. */
static const char *missing(struct err *e)
{
    struct device *d;
    if (device_open(&d, device_name, &(struct device_options){.threads = 1}, e) < 0)
        return e->text;
    d->ops->close(d);
    return strcmp(comm_name, "nccl") || cuda_module(e)->nccl ? NULL : "this build of the cuda module has no NCCL";
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_launch_does_its_collectives_again)};
    struct err e = {0};
    if (argc == 3) {
        device_name = argv[1];
        comm_name = argv[2];
    }
    const char *why = missing(&e);
    if (why) {
        printf("1..0 # SKIP %s\n", why);
        return 0;
    }
    return cmocka_run_group_tests_name("captured collectives", tests, NULL, NULL);
}
