/* Measures on the ranks that are here what a prediction is made of. */
#include "worker/planner/measure_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/data/loader/loader.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/dataset.h"
#include "worker/parallel/pages.h"
#include "worker/planner/rank_step.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"
#include "worker/session/forecast.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

#define COPY_BYTES (16 << 20)
#define UPDATE_MAX (4 << 20) /* elements: more than caches hold */
#define LOAD_IMAGES 256
#define SMALL 1e9  /* operations: rounds of a small program have as many together, OP_ROUNDS_MAX of them at most */
#define LARGE 1e10 /* a program of as many is run ROUNDS_LEAST times */

enum { ROUNDS = 5, ROUNDS_LEAST = 3 };

bool measure_computes(const struct measure *m)
{
    return m->place < m->computing;
}

int measure_meet(void *ctx, struct err *e)
{
    const struct measure *m = ctx;
    return m->comm ? m->comm->ops->barrier(m->comm, COMM_CONTROL, e) : 0;
}

double measure_own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double measure_process_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_middle(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

/* --- numbers */

static int copies(struct measure *m, struct err *e)
{
    char *a = malloc(COPY_BYTES), *b = malloc(COPY_BYTES);
    double seconds[ROUNDS];
    if (a && b)
        memset(a, 1, COPY_BYTES);
    for (int i = -1; i < ROUNDS && a && b; i++) { /* the first one finds the memory */
        const double start = measure_own_seconds();
        memcpy(b, a, COPY_BYTES);
        *(volatile char *)b = 0;
        if (i >= 0)
            seconds[i] = measure_own_seconds() - start;
    }
    const bool made = a && b;
    free(a);
    free(b);
    if (!made)
        return err_errno(e, ENOMEM, "two buffers of %d MiB", COPY_BYTES >> 20);
    op_times_set(m->times, RANK_STEP_COPY, measure_middle(seconds, ROUNDS) / COPY_BYTES);
    return 0;
}

/* What it costs that a page has gone and is written to again. */
static int pages(struct measure *m, struct err *e)
{
    void *p;
    double seconds[ROUNDS];
    TRY(pages_open(&p, COPY_BYTES, e));
    for (int i = 0; i < ROUNDS; i++) {
        const double start = measure_own_seconds();
        for (size_t at = 0; at < COPY_BYTES; at += 4096)
            ((volatile char *)p)[at] = 1;
        pages_drop(p, 0, COPY_BYTES);
        seconds[i] = measure_own_seconds() - start;
    }
    pages_close(p, COPY_BYTES);
    op_times_set(m->times, RANK_STEP_PAGE, measure_middle(seconds, ROUNDS) / COPY_BYTES);
    return 0;
}

enum { PARAMS, GRADIENTS, MOMENTS, SECOND, COUNT, ARENAS };

static int time_updates(struct measure *m, void *const arenas[ARENAS], size_t n, struct err *e)
{
    const struct session *s = forecast_session(m->base);
    const struct update u = {.rule = s->optimizer.rule == UPDATE_LARS ? UPDATE_SGD : s->optimizer.rule,
                             .n = n,
                             .lr = 1e-6,
                             .momentum = s->optimizer.momentum,
                             .weight_decay = s->optimizer.weight_decay,
                             .grad_mul = 1,
                             .beta2 = s->optimizer.beta2,
                             .eps = s->optimizer.eps,
                             .step = 1,
                             .second = arenas[SECOND]};
    double seconds[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) {
        const double start = measure_own_seconds();
        TRY(s->device->ops->update(s->device, &u, arenas[PARAMS], arenas[GRADIENTS], arenas[MOMENTS], arenas[COUNT],
                                   e));
        if (i >= 0)
            seconds[i] = measure_own_seconds() - start;
    }
    op_times_set(m->times, RANK_STEP_UPDATE, measure_middle(seconds, ROUNDS) / (double)n);
    return 0;
}

static int updates(struct measure *m, struct err *e)
{
    const struct session *s = forecast_session(m->base);
    const size_t n = UPDATE_MAX, bytes = n * dtype_size(s->device->ops->real);
    struct device *d = s->device;
    void *arenas[ARENAS] = {0};
    const double one64 = 1;
    const float one32 = 1;
    int rc = 0;
    for (int i = 0; i < ARENAS && rc == 0; i++)
        rc = d->ops->alloc(d, i == COUNT ? sizeof one64 : bytes, &arenas[i], e);
    if (rc == 0)
        rc = d->ops->real == DT_F64 ? d->ops->upload(d, arenas[COUNT], &one64, sizeof one64, e)
                                    : d->ops->upload(d, arenas[COUNT], &one32, sizeof one32, e);
    rc = rc == 0 ? time_updates(m, arenas, n, e) : rc;
    for (int i = 0; i < ARENAS; i++)
        if (arenas[i])
            d->ops->release(d, arenas[i]);
    return rc;
}

static int take_batches(struct loader *l, double *ret, struct err *e)
{
    struct loader_stats stats;
    struct loader_batch batch;
    const double start = measure_process_seconds();
    TRY(loader_seek(l, 0, 0, 1, e));
    do {
        TRY(loader_next(l, &batch, e));
        loader_done(l, &batch);
        loader_stats(l, &stats);
    } while (stats.images < LOAD_IMAGES && batch.count > 0);
    *ret = stats.images > 0 ? (measure_process_seconds() - start) / (double)stats.images : 0;
    return 0;
}

/* A rank's threads load some images of the training set: processor time of one. */
static int loads(struct measure *m, struct err *e)
{
    const struct session *s = forecast_session(m->base);
    struct loader_options o = session_loader(s, true);
    struct loader *l;
    double each = 0;
    o.sampler = (struct sampler){.n = s->train_set->n, .batch = o.sampler.n < 16 ? o.sampler.n : 16, .world = 1};
    o.batch_log = NULL;
    o.strict = false;
    TRY(sampler_check(&o.sampler, e));
    o.sampler.epoch_size = (LOAD_IMAGES / o.sampler.batch + 8) * o.sampler.batch;
    TRY(loader_create(&l, s->train_set, &o, e));
    int rc = take_batches(l, &each, e);
    loader_destroy(l);
    if (rc == 0)
        op_times_set(m->times, RANK_STEP_LOAD, each);
    return rc;
}

int measure_numbers(struct measure *m, struct err *e)
{
    TRY(measure_meet(m, e));
    if (!measure_computes(m))
        return 0;
    TRY(copies(m, e));
    TRY(pages(m, e));
    TRY(updates(m, e));
    return loads(m, e);
}

/* --- operations */

/* Of a program of milliseconds a few rounds are luck. */
static int rounds_of(const struct op_load *l)
{
    double cost = 0;
    for (int i = 0; i < l->program->nfwd; i++)
        cost += stages_cost(l->program, i) * l->plan->batch;
    if (cost > LARGE)
        return ROUNDS_LEAST;
    return cost * OP_ROUNDS_MAX < SMALL ? OP_ROUNDS_MAX : cost * ROUNDS < SMALL ? (int)(SMALL / cost) : ROUNDS;
}

int measure_session(struct measure *m, const struct session *s, struct err *e)
{
    struct plan_options plan;
    const struct op_load load = rank_step_load(s, &plan);
    struct device *d = forecast_session(m->base)->device;
    if (op_times_know(m->times, &load))
        return 0;
    const struct op_pause pause = {m, measure_meet};
    if (measure_computes(m))
        return op_times_measure(m->times, d, &load, rounds_of(&load), &pause, e);
    for (int i = 0; i < load.program->nchunks + (load.program->nchunks == 0); i++) /* as often as they meet */
        TRY(measure_meet(m, e));
    op_times_claim(m->times, &load);
    return 0;
}

int measure_share(struct measure *m, struct network *n, struct err *e)
{
    char *text = NULL;
    if (!m->comm)
        return 0;
    struct comm *c = m->comm;
    int rc = c->rank == 0 ? op_times_text(m->times, &text, e) : 0;
    rc = comm_share(c, 0, rc, "the times of operations", &text, e);
    rc = rc == 0 && c->rank > 0 ? op_times_read(m->times, text, e) : rc;
    free(text);
    return rc < 0 ? rc : c->ops->broadcast(c, COMM_CONTROL, n, sizeof *n, 0, NULL, e);
}
