#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/snapshot/deal_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/snapshot/deal.h"
#include "worker/state/state.h"

enum { TIMEOUT_MS = 60000 };

/* --- a model that ranks share, some of its parameters by rows or by columns */

static const struct shape {
    const char *name;
    enum param_role role;
    int64_t rows, columns; /* columns 0: a vector */
    int split;             /* dimension, -1: every rank has it */
} shapes[] = {{"fc.weight", PARAM_TRAIN, 37, 24, 0},
              {"fc.bias", PARAM_TRAIN, 37, 0, 0},
              {"up.weight", PARAM_TRAIN, 13, 50, 1},
              {"trunk.weight", PARAM_TRAIN, 0, 5, -1}, /* rows: as large as is asked for */
              {"bn.weight", PARAM_TRAIN, 8, 0, -1},
              {"bn.running_mean", PARAM_STAT, 8, 0, -1},
              {"bn.running_var", PARAM_STAT, 8, 0, -1}};
enum { PARAMS = sizeof shapes / sizeof *shapes };

struct network {
    struct program program;
    struct param params[PARAMS];
};

static struct param param_of(const struct shape *f, int64_t trunk, const struct layout *l, int rank)
{
    struct param q = {.role = f->role,
                      .ndim = f->columns ? 2 : 1,
                      .shape = {f->rows ? f->rows : trunk, f->columns},
                      .init = INIT_UNIFORM,
                      .init_scale = 1,
                      .sharded = f->split >= 0 && l->tensor > 1};
    snprintf(q.name, sizeof q.name, "%s", f->name);
    if (q.sharded) {
        const struct layout_part part = layout_part((size_t)q.shape[f->split], l->tensor, layout_place(l, rank).tensor);
        q.shard_dim = f->split;
        q.shard_whole = q.shape[f->split];
        q.shard_first = (int64_t)part.first;
        q.shape[f->split] = (int64_t)part.n;
    }
    q.count = (size_t)(q.shape[0] * (q.ndim > 1 ? q.shape[1] : 1));
    return q;
}

static void network_of(struct network *net, int64_t trunk, const struct layout *l, int rank)
{
    *net = (struct network){.program = {.nparams = PARAMS}};
    struct program *p = &net->program;
    p->params = net->params;
    for (int i = 0; i < PARAMS; i++) {
        struct param *q = &net->params[i];
        *q = param_of(&shapes[i], trunk, l, rank);
        size_t *end = q->role == PARAM_TRAIN ? &p->n_train : &p->n_stats;
        q->offset = *end;
        *end += (q->count + 15) / 16 * 16;
    }
    p->n_reduce = p->n_train + p->n_stats + METRIC_N;
}

/* --- ranks */

static int init_state(struct rank *r, struct state *s, struct device *d, struct network *net, struct ownership *own)
{
    const struct ownership_options pieces = {
        .elem_bytes = sizeof(float), .bucket_bytes = 4000, .first_bucket_bytes = 700};
    const struct state_options so = {.seed = r->job->load ? 99 : 1, .second = true, .ema = true};
    network_of(net, r->job->trunk, &r->job->layout, r->comm->rank);
    TRY(ownership_init(own, &r->job->layout, r->comm->rank, &net->program, &pieces, &r->e));
    return state_init(s, d, &net->program, own, &so, &r->e);
}

/* Moments of a run's beginning would be alike everywhere. A rank that is alone: each element tells where it is. */
static void number_moments(struct state *s)
{
    for (size_t i = 0; i < s->n_moments; i++) { /* cpu's memory is the host's */
        ((float *)s->momentum)[i] = (float)i;
        ((float *)s->second)[i] = (float)i + 0.5f;
    }
}

/* In what is saved of it, wherever that is. */
static void spoil(const struct slices *s, const char *name)
{
    for (size_t i = 0; i < s->n_held; i++)
        if (s->held[i].piece.saved && strcmp(s->tensors[s->held[i].piece.tensor].name, name) == 0)
            *(float *)(void *)s->held[i].memory = INFINITY;
}

static int load(struct rank *r, struct deal *d, const struct slices *s, struct err *e)
{
    bool wanted[64];
    struct ckpt *c = NULL;
    struct stored from = {0};
    memset(wanted, true, sizeof wanted);
    if (r->comm->rank == r->comm->world - 1) { /* any rank may be the one that has the files */
        TRY(ckpt_open(&c, r->job->load, STEP, e));
        from = stored_checkpoint(c, s);
    }
    const struct deal_load l = {
        .reader = r->comm->world - 1, .from = c ? &from : NULL, .wanted = wanted, .what = "the checkpoint"};
    int rc = deal_load(d, &l, &r->reading, e);
    ckpt_close(c);
    return rc;
}

static int save(struct rank *r, struct deal *d, struct slices *s, struct err *e)
{
    bool writers[RANKS_MAX], *wanted = calloc(s->n_held, sizeof *wanted);
    char dir[4200];
    for (int i = 0; i < RANKS_MAX; i++)
        writers[i] = i == 0 || r->job->all_write;
    deal_wanted(d, writers, wanted);
    s->updates = STEP;
    if (r->job->copied) {
        TRY(slices_reserve(s, wanted, e));
        TRY(slices_copy(s, e));
    }
    free(wanted);
    deal_set_source(d);
    TRY(deal_save_begin(d, writers, e));
    snprintf(dir, sizeof dir, r->job->all_write ? "%s.%d" : "%s", r->job->save, r->comm->rank);
    if (writers[r->comm->rank])
        r->saving =
            ckpt_save(dir, STEP, s->tensors, s->n_model, s->tensors + s->n_model, s->n - s->n_model, NULL, 1, e);
    return deal_save_end(d, r->saving < 0 ? NULL : e);
}

static void touch(volatile char *at, size_t bytes)
{
    for (size_t i = 0; at && i < bytes; i += 1024)
        at[i] = at[i];
}

/* Memory of the device is taken when it is used first: all of what this rank holds, so that who looks at memory later
 * sees what else is taken. */
static void take_state(const struct slices *s)
{
    for (size_t i = 0; i < s->n_held; i++) {
        const struct slice *v = &s->held[i];
        const size_t bytes = (size_t)piece_count(&v->piece) * slices_size(s, (size_t)v->piece.tensor);
        touch(v->memory, bytes);
        touch(v->average, bytes);
    }
}

static void meet(struct rank *r)
{
    if (r->job->barrier) {
        pthread_barrier_wait(r->job->barrier); /* all have their state */
        pthread_barrier_wait(r->job->barrier); /* memory is looked at */
    }
}

static int with_state(struct rank *r, struct state *s)
{
    struct slices slices;
    struct deal *d = NULL;
    if (r->job->layout.world == 1 && !r->job->load)
        number_moments(s);
    TRY(slices_init(&slices, s, &r->e));
    take_state(&slices);
    meet(r);
    int rc = deal_open(&d, r->comm, &slices, &r->e);
    if (rc == 0 && r->job->load)
        rc = load(r, d, &slices, &r->e);
    if (r->job->infinite)
        spoil(&slices, r->job->infinite);
    if (rc == 0 && r->job->save)
        rc = save(r, d, &slices, &r->e);
    meet(r);
    deal_close(d);
    slices_finish(&slices);
    return rc;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    struct network net;
    struct device *d;
    struct ownership own;
    struct state s;
    r->rc = device_open(&d, "cpu", &(struct device_options){.threads = 1}, &r->e);
    if (r->rc < 0)
        return NULL;
    r->rc = init_state(r, &s, d, &net, &own);
    if (r->rc == 0)
        r->rc = with_state(r, &s);
    if (r->rc < 0)
        r->comm->ops->abort(r->comm);
    state_finish(&s);
    ownership_finish(&own);
    d->ops->close(d);
    return NULL;
}

void job_begin(const struct job *job, struct rank *ranks, pthread_t *threads)
{
    struct comm *comms[RANKS_MAX];
    struct err e;
    const int world = job->layout.world;
    assert_int_equal(comm_local_open_threads(comms, world, TIMEOUT_MS, &e), 0);
    for (int i = 0; i < world; i++) {
        ranks[i] = (struct rank){.job = job, .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
}

void job_end(const struct job *job, struct rank *ranks, pthread_t *threads)
{
    for (int i = 0; i < job->layout.world; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < job->layout.world; i++)
        ranks[i].comm->ops->close(ranks[i].comm);
}

void job_do(const struct job *job, struct rank *ranks)
{
    pthread_t threads[RANKS_MAX];
    job_begin(job, ranks, threads);
    job_end(job, ranks, threads);
}

void job_must(const struct job *job)
{
    struct rank ranks[RANKS_MAX];
    job_do(job, ranks);
    int failed = 0;
    for (int i = 0; i < job->layout.world; i++)
        if (ranks[i].rc < 0 || ranks[i].saving < 0) {
            print_message("# rank %d: %s\n", i, ranks[i].e.text);
            failed++;
        }
    if (failed)
        fail_msg("%d x %d, zero %d", job->layout.data, job->layout.tensor, job->layout.zero);
}

struct layout layout_of(int data, int tensor, int zero)
{
    return (struct layout){.world = data * tensor, .data = data, .tensor = tensor, .stages = 1, .zero = zero};
}
