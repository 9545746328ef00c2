/* Checkpoints of states that are cut over ranks (threads): the files of one rank that has all, whoever saves and
 * whoever loads, and no more memory than the slices and a few buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/snapshot/deal.h"
#include "worker/state/state.h"

enum { RANKS_MAX = 8, STEP = 7, TIMEOUT_MS = 60000, SMALL = 300, LARGE = 1500000 };

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

struct job {
    struct layout layout;
    int64_t trunk;
    const char *load, *save; /* folders; NULL: no */
    bool copied;             /* from a copy, as a save in the background does */
    bool all_write;          /* every rank to a folder of its own, <save>.<rank> */
    pthread_barrier_t *barrier;
};

struct rank {
    const struct job *job;
    struct comm *comm;
    int rc, reading, saving;
    struct err e;
};

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
    meet(r);
    TRY(slices_init(&slices, s, &r->e));
    int rc = deal_open(&d, r->comm, &slices, &r->e);
    if (rc == 0 && r->job->load)
        rc = load(r, d, &slices, &r->e);
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

static void begin(const struct job *job, struct rank *ranks, pthread_t *threads)
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

static void end(const struct job *job, struct rank *ranks, pthread_t *threads)
{
    for (int i = 0; i < job->layout.world; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < job->layout.world; i++)
        ranks[i].comm->ops->close(ranks[i].comm);
}

static void do_job(const struct job *job, struct rank *ranks)
{
    pthread_t threads[RANKS_MAX];
    begin(job, ranks, threads);
    end(job, ranks, threads);
}

static void must(const struct job *job)
{
    struct rank ranks[RANKS_MAX];
    do_job(job, ranks);
    int failed = 0;
    for (int i = 0; i < job->layout.world; i++)
        if (ranks[i].rc < 0 || ranks[i].saving < 0) {
            print_message("# rank %d: %s\n", i, ranks[i].e.text);
            failed++;
        }
    if (failed)
        fail_msg("%d x %d, zero %d", job->layout.data, job->layout.tensor, job->layout.zero);
}

static struct layout layout_of(int data, int tensor, int zero)
{
    return (struct layout){.world = data * tensor, .data = data, .tensor = tensor, .stages = 1, .zero = zero};
}

static const int layouts[][3] = {{1, 1, 0}, {1, 1, 1}, {2, 1, 0}, {2, 1, 1}, {3, 1, 1}, {5, 1, 1},
                                 {1, 2, 0}, {1, 3, 1}, {2, 2, 0}, {2, 2, 1}, {4, 2, 2}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void same_file(const char *a, const char *b, const char *name)
{
    char path[2][4300];
    size_t n[2];
    snprintf(path[0], sizeof path[0], "%s/step-%08d/%s", a, STEP, name);
    snprintf(path[1], sizeof path[1], "%s/step-%08d/%s", b, STEP, name);
    char *x = scratch_read(path[0], &n[0]), *y = scratch_read(path[1], &n[1]);
    if (n[0] != n[1] || memcmp(x, y, n[0]) != 0)
        fail_msg("%s and %s differ", path[0], path[1]);
    free(x);
    free(y);
}

static void same_files(const char *a, const char *b)
{
    same_file(a, b, "model.safetensors");
    same_file(a, b, "train.safetensors");
    same_file(a, b, "manifest.json");
}

/* --- cases */

static void every_layout_loads_and_saves_the_same_files(void **state)
{
    char *one = strdup(scratch(state, "one"));
    must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = SMALL, .save = one});
    for (int i = 0; i < 2 * LAYOUTS; i++) {
        const int *l = layouts[i / 2];
        char *dir = strdup(scratch(state, "of-%d", i));
        must(&(struct job){
            .layout = layout_of(l[0], l[1], l[2]), .trunk = SMALL, .load = one, .save = dir, .copied = i % 2});
        same_files(one, dir);
        free(dir);
    }
    free(one);
}

static void every_rank_may_write(void **state)
{
    char *one = strdup(scratch(state, "one"));
    must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = SMALL, .save = one});
    for (int copied = 0; copied < 2; copied++) {
        char *dir = strdup(scratch(state, "all-%d", copied));
        must(&(struct job){.layout = layout_of(2, 2, 1),
                           .trunk = SMALL,
                           .load = one,
                           .save = dir,
                           .copied = copied,
                           .all_write = true});
        for (int r = 0; r < 4; r++)
            same_files(one, scratch(state, "all-%d.%d", copied, r));
        free(dir);
    }
    free(one);
}

static void damage_is_known_on_all_ranks(void **state)
{
    char *one = strdup(scratch(state, "one"));
    must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = SMALL, .save = one});
    int fd = open(scratch(state, "one/step-%08d/train.safetensors", STEP), O_WRONLY);
    assert_int_equal(pwrite(fd, "damaged", 7, 9000), 7);
    close(fd);
    const struct job job = {.layout = layout_of(2, 2, 1), .trunk = SMALL, .load = one};
    struct rank ranks[RANKS_MAX];
    do_job(&job, ranks);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ranks[i].reading, ERR_CORRUPT);
        assert_int_equal(ranks[i].rc, i == 3 ? ERR_CORRUPT : -ECANCELED);
    }
    assert_non_null(strstr(ranks[3].e.text, "is damaged: its CRC32C"));
    free(one);
}

/* The disk is full when half is written: what was there before stays, the others do not hang. */
static void a_file_that_fails_half_way_leaves_the_one_before(void **state)
{
    struct rlimit before, small;
    struct rank ranks[RANKS_MAX];
    char *one = strdup(scratch(state, "one")), *dir = strdup(scratch(state, "two"));
    struct err e;
    int64_t step;
    must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = LARGE / 4, .save = one});
    const struct job job = {.layout = layout_of(2, 2, 1), .trunk = LARGE / 4, .load = one, .save = dir};
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 6 << 20;
    setrlimit(RLIMIT_FSIZE, &small);
    do_job(&job, ranks);
    setrlimit(RLIMIT_FSIZE, &before);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ranks[i].rc, 0);
    assert_int_equal(ranks[0].saving, -EFBIG);
    assert_int_equal(scratch_count(dir, ".tmp"), 0);
    assert_int_equal(ckpt_latest(dir, &step, &e), 0);
    assert_int_equal(step, -1);
    must(&job);
    same_files(one, dir);
    free(one);
    free(dir);
}

/* --- memory */

static long status_kib(const char *what)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    const size_t n = strlen(what);
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, what, n) == 0)
            kib = strtol(line + n + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

/* From now on VmHWM is the most that was resident since. */
static bool reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    const bool done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0)
        close(fd);
    return done;
}

/* KiB that a job of ranks takes at most beyond what they hold before it; all of them wait for one another meanwhile. */
static long peak_of(const struct job *job)
{
    struct rank ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    pthread_barrier_t barrier;
    struct job with = *job;
    with.barrier = &barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)job->layout.world + 1);
    begin(&with, ranks, threads);
    pthread_barrier_wait(&barrier);
    const long before = reset_peak() ? status_kib("VmRSS") : -1;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    const long peak = status_kib("VmHWM");
    pthread_barrier_wait(&barrier);
    end(&with, ranks, threads);
    pthread_barrier_destroy(&barrier);
    for (int i = 0; i < job->layout.world; i++)
        if (ranks[i].rc < 0 || ranks[i].saving < 0)
            fail_msg("rank %d: %s", i, ranks[i].e.text);
    return before < 0 ? -1 : peak - before;
}

/* Parameters of 30 MB, six tensors of them: 180 MB in all, and what a rank keeps is far less. */
static void a_rank_takes_its_slices_and_a_few_buffers(void **state)
{
    enum { WORLD = 4 };
    char *one = strdup(scratch(state, "one")), *dir = strdup(scratch(state, "two"));
    const long slack = 4096, buffers = WORLD * (long)(DEAL_BYTES_MAX / 1024), whole = 5L * LARGE * 4 / 1024;
    must(&(struct job){.layout = layout_of(1, 1, 0), .trunk = LARGE, .save = one});
    const struct job jobs[] = {
        {.layout = layout_of(WORLD, 1, 1), .trunk = LARGE, .load = one},
        {.layout = layout_of(WORLD, 1, 1), .trunk = LARGE, .save = dir},
        {.layout = layout_of(WORLD, 1, 1), .trunk = LARGE, .save = one, .copied = true},
    };
    for (int i = 0; i < 3; i++) {
        /* What is in the copies: parameters and averages once, moments once over all ranks. */
        const long copies = jobs[i].copied ? 4 * whole : 0, took = peak_of(&jobs[i]);
        if (took < 0)
            skip();
        print_message("# job %d: %ld KiB, copies of %ld, buffers of at most %ld\n", i, took, copies, buffers);
        assert_true(took <= copies + buffers + slack);
    }
    free(one);
    free(dir);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    log_init(LOG_ERROR, "");
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* what is freed is the system's again */
    const struct CMUnitTest tests[] = {
        CASE(every_layout_loads_and_saves_the_same_files),
        CASE(every_rank_may_write),
        CASE(damage_is_known_on_all_ranks),
        CASE(a_file_that_fails_half_way_leaves_the_one_before),
        CASE(a_rank_takes_its_slices_and_a_few_buffers),
    };
    return cmocka_run_group_tests_name("deal", tests, NULL, NULL);
}
