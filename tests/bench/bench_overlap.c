/* How much of the time in collectives is hidden behind backward: two processes of one compute thread each train
 * ResNet-50 (smaller images) over gloo; every collective on gradients is then held up by some milliseconds, as a slow
 * network would. Of n buckets the last cannot begin before backward has ended, so n - 1 of n delays can be hidden; what
 * the training thread waits longer with the delay than without it was not.
 *   bench_overlap [delay_ms=5] [steps=6] [rounds=3] [image=96] [batch=8] [bucket_kb=4096] [check=0]
 * Prints the exposed time of a step with and without the delay, in turns. check=1: fails below 90 %. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/bench/options.h"
#include "tests/worker/comm/shm_store.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/device/host_common.h"
#include "worker/model/model.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"

struct bench {
    struct model_options model;
    int delay_ms, steps, rounds, batch, bucket_kb, check;
};

/* A communicator whose collectives take longer. */
struct slow {
    struct comm base;
    struct comm *to;
    int delay_ms; /* now */
};

static int slow_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                           void *stream, struct err *e)
{
    struct slow *s = (struct slow *)c;
    nanosleep(&(struct timespec){.tv_nsec = s->delay_ms * 1000000L}, NULL);
    return s->to->ops->all_reduce(s->to, ch, buf, n, t, op, stream, e);
}

struct side {
    const struct bench *o;
    struct program *p;
    struct ownership own;
    struct device *d;
    struct plan *plan;
    struct ddp *ddp;
    struct slow comm;
    struct comm_ops ops;
    float *params, *stats, *reduce;
    struct batch batch;
    uint64_t version;
};

static int open_plan(struct side *s, struct err *e)
{
    const struct bench *o = s->o;
    void *params, *stats, *reduce, *images, *labels, *weights;
    TRY(model_build(&s->p, &o->model, e));
    TRY(device_open(&s->d, "cpu", &(struct device_options){.threads = 1}, e));
    TRY(host_alloc(s->p->n_train * sizeof(float), &params, e));
    TRY(host_alloc(s->p->n_stats * sizeof(float), &stats, e));
    TRY(host_alloc(s->p->n_reduce * sizeof(float), &reduce, e));
    TRY(host_alloc((size_t)o->batch * input_row_bytes(&o->model.input), &images, e));
    TRY(host_alloc(sizeof(int32_t) * (size_t)o->batch, &labels, e));
    TRY(host_alloc(sizeof(float) * (size_t)o->batch, &weights, e));
    s->params = params;
    s->stats = stats;
    s->reduce = reduce;
    for (int i = 0; i < s->p->nparams; i++)
        for (size_t k = 0; k < s->p->params[i].count; k++)
            (s->p->params[i].role == PARAM_TRAIN ? s->params : s->stats)[s->p->params[i].offset + k] =
                (float)param_initial(&s->p->params[i], 0, k);
    for (int n = 0; n < o->batch; n++)
        ((float *)weights)[n] = 1;
    s->batch = (struct batch){images, labels, weights};
    struct plan_options po = {
        .batch = o->batch, .training = true, .compute = DT_F32, .params = params, .stats = stats, .reduce = reduce};
    return s->d->ops->plan(s->d, s->p, &po, &s->plan, e);
}

static int open_comm(struct side *s, int rank, struct store *store, struct err *e)
{
    struct comm_options co = {.rank = rank, .world = 2, .store = store, .name = "bench", .timeout_ms = 120000};
    TRY(comm_open(&s->comm.to, "gloo", &co, e));
    s->ops = *s->comm.to->ops;
    s->ops.all_reduce = slow_all_reduce;
    s->comm.base = (struct comm){.ops = &s->ops, .rank = rank, .world = 2};
    struct layout l;
    struct ownership_options pieces = {.elem_bytes = sizeof(float), .bucket_bytes = (size_t)s->o->bucket_kb << 10};
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = &s->comm.base};
    TRY(layout_plan(&l, 2, 1, 1, 0, e));
    TRY(ownership_init(&s->own, &l, rank, s->p, &pieces, e));
    return ddp_create(&s->ddp, groups, &s->own, s->reduce, s->p->n_stats + METRIC_N, DT_F32, &(struct ddp_options){0},
                      e);
}

/* Seconds a step that the training thread waited for collectives. */
static int exposed(struct side *s, int delay_ms, double *ret, struct err *e)
{
    struct ddp_stats before, after;
    s->comm.delay_ms = delay_ms;
    ddp_stats(s->ddp, &before);
    for (int i = 0; i < s->o->steps; i++) {
        struct run_args a = {
            .batch = s->batch, .grad_scale = 1, .params_version = ++s->version, .hooks = ddp_hooks(s->ddp)};
        ddp_begin(s->ddp, true);
        TRY(s->d->ops->run(s->plan, &a, e));
        TRY(s->comm.to->ops->barrier(s->comm.to, COMM_CONTROL,
                                     e)); /* waiting for the other rank is not waiting for the network */
        TRY(ddp_wait(s->ddp, e));
    }
    ddp_stats(s->ddp, &after);
    *ret = (double)(after.exposed_ns - before.exposed_ns) * 1e-9 / s->o->steps;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(struct side *s, int rank, double *ret_hidden, struct err *e)
{
    double without, with, share[64];
    struct ddp_stats st;
    ddp_stats(s->ddp, &st);
    TRY(exposed(s, 0, &without, e)); /* warms up */
    for (int r = 0; r < s->o->rounds; r++) {
        TRY(exposed(s, 0, &without, e));
        TRY(exposed(s, s->o->delay_ms, &with, e));
        double delay = s->o->delay_ms * 1e-3;
        share[r] = (st.buckets * delay - (with - without)) / ((st.buckets - 1) * delay);
        if (rank == 0)
            printf("%d buckets: exposed %.2f ms a step, with %d ms a collective %.2f ms: %.1f %% of what can be hidden "
                   "is\n",
                   st.buckets, 1e3 * without, s->o->delay_ms, 1e3 * with, 100 * share[r]);
        fflush(stdout);
    }
    qsort(share, (size_t)s->o->rounds, sizeof *share, by_value);
    *ret_hidden = share[s->o->rounds / 2];
    return 0;
}

static int run_rank(const struct bench *o, int rank, struct store *store)
{
    struct err e = {0};
    static struct side s;
    double hidden = 0;
    s.o = o;
    int rc = open_plan(&s, &e);
    if (rc == 0)
        rc = open_comm(&s, rank, store, &e);
    if (rc == 0)
        rc = measure(&s, rank, &hidden, &e);
    if (rc < 0) {
        fprintf(stderr, "bench_overlap: rank %d: %s\n", rank, e.text);
        _exit(1); /* the other rank may hang in a collective: no orderly end */
    }
    ddp_destroy(s.ddp);
    ownership_finish(&s.own);
    s.comm.to->ops->close(s.comm.to);
    s.d->ops->plan_close(s.plan);
    s.d->ops->close(s.d);
    if (rank == 0)
        printf("hidden: %.1f %% (median)\n", 100 * hidden);
    return o->check && rank == 0 && hidden < 0.9;
}

int main(int argc, char **argv)
{
    const int side = number(argc, argv, "image", "96");
    struct bench o = {
        .delay_ms = number(argc, argv, "delay_ms", "5"),
        .steps = number(argc, argv, "steps", "6"),
        .rounds = number(argc, argv, "rounds", "3"),
        .batch = number(argc, argv, "batch", "8"),
        .bucket_kb = number(argc, argv, "bucket_kb", "4096"),
        .check = number(argc, argv, "check", "0"),
        .model = {.arch = "resnet50", .classes = 1000, .input = input_pictures(3, side, side, NULL, NULL)}};
    if (o.steps < 1 || o.rounds < 1 || o.rounds > 64 || o.batch < 1 || o.bucket_kb < 1 || o.delay_ms > 999) {
        fprintf(stderr, "steps, rounds (to 64), batch and bucket_kb are at least 1, delay_ms at most 999\n");
        return 2;
    }
    struct store *store = shm_store_open(); /* shared memory: before the fork */
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    int rc = run_rank(&o, child == 0, store), status;
    if (child == 0)
        _exit(rc);
    if (waitpid(child, &status, 0) != child || status != 0)
        rc = 1;
    shm_store_close(store);
    return rc;
}
