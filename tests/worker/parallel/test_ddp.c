/* Buckets of gradients: what is sent when, and what happens when sending fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/worker/comm/ranks.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"

/* A rank's side of data parallelism over an arena of one parameter. */
struct side {
    struct param param;
    struct program program;
    struct ownership own;
    struct ddp *d;
};

struct pieces { /* bytes, 0: as by default */
    size_t first, most;
};

static int open_side(struct side *s, struct comm *c, void *arena, size_t train, size_t tail, enum dtype real,
                     const struct pieces *b, const struct ddp_options *o, struct err *e)
{
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = c};
    const struct ownership_options cut = {
        .elem_bytes = dtype_size(real), .bucket_bytes = b->most, .first_bucket_bytes = b->first};
    struct layout l;
    *s = (struct side){.param = {.role = PARAM_TRAIN, .count = train}};
    s->program = (struct program){.params = &s->param, .nparams = 1, .n_train = train};
    TRY(layout_plan(&l, c->world, 1, 1, 0, e));
    TRY(ownership_init(&s->own, &l, c->rank, &s->program, &cut, e));
    return ddp_create(&s->d, groups, &s->own, arena, tail, real, o, e);
}

static void close_side(struct side *s)
{
    ddp_destroy(s->d);
    ownership_finish(&s->own);
}

/* --- a communicator that keeps a record */

enum { RECORDS = 32, DEADLINE_S = 10 };

struct fake {
    struct comm base;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int calls;
    struct {
        const void *buf;
        size_t n;
        enum comm_channel channel;
        void *stream;
        pthread_t thread;
    } call[RECORDS];
    int fail_at; /* this call fails; -1: none */
};

static int fake_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                           void *stream, struct err *e)
{
    struct fake *f = (struct fake *)c;
    pthread_mutex_lock(&f->lock);
    int i = f->calls++;
    if (i < RECORDS) {
        f->call[i].buf = buf;
        f->call[i].n = n;
        f->call[i].channel = ch;
        f->call[i].stream = stream;
        f->call[i].thread = pthread_self();
    }
    pthread_cond_broadcast(&f->change);
    pthread_mutex_unlock(&f->lock);
    return i == f->fail_at ? err_set(e, -ECONNRESET, "rank 1 went away") : 0;
}

static const struct comm_ops fake_host = {.name = "fake", .host_buffers = true, .all_reduce = fake_all_reduce};
static const struct comm_ops fake_stream = {.name = "fake", .host_buffers = false, .all_reduce = fake_all_reduce};

static void fake_init(struct fake *f, const struct comm_ops *ops, int world)
{
    *f = (struct fake){.base = {ops, 0, world}, .fail_at = -1};
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->change, NULL);
}

static void await_calls(struct fake *f, int n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&f->lock);
    int rc = 0;
    while (f->calls < n && rc == 0)
        rc = pthread_cond_timedwait(&f->change, &f->lock, &until);
    int calls = f->calls;
    pthread_mutex_unlock(&f->lock);
    if (calls < n)
        fail_msg("%d collectives began, expected %d", calls, n);
}

/* 100 gradients and a tail of 4, buckets of 10, 30, 30, 20, 10 + 4. */
enum { TRAIN = 100, TAIL = 4, BUCKETS = 5 };
static const struct pieces small = {.first = 40, .most = 120};
static float arena[TRAIN + TAIL];
static struct side side;

static struct ddp *create(struct fake *f)
{
    struct err e;
    assert_int_equal(
        open_side(&side, &f->base, arena, TRAIN, TAIL, DT_F32, &small, &(struct ddp_options){.sync_bn = true}, &e), 0);
    return side.d;
}

static void destroy(void)
{
    close_side(&side);
}

static int ready(struct ddp *d, size_t first, size_t end)
{
    const struct run_hooks *h = ddp_hooks(d);
    struct err e;
    return h->ready(h->ctx, first, end, NULL, &e);
}

static void a_bucket_goes_while_backward_still_runs(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    struct ddp *d = create(&f);
    ddp_begin(d, true);
    assert_int_equal(ready(d, 0, 9), 0);
    assert_int_equal(ready(d, 9, 45), 0); /* completes buckets 0 and 1 */
    await_calls(&f, 2);
    assert_int_equal(f.calls, 2);
    assert_ptr_equal(f.call[0].buf, arena);
    assert_ptr_equal(f.call[1].buf, arena + 10);
    assert_int_equal(f.call[1].n, 30);
    assert_false(pthread_equal(f.call[0].thread, pthread_self()));
    assert_int_equal(ready(d, 45, TRAIN), 0);
    await_calls(&f, 4); /* the last bucket waits for the tail */
    assert_int_equal(ddp_wait(d, NULL), 0);
    assert_int_equal(f.calls, BUCKETS);
    assert_ptr_equal(f.call[4].buf, arena + 90);
    assert_int_equal(f.call[4].n, 14);
    for (int i = 0; i < BUCKETS; i++)
        assert_int_equal(f.call[i].channel, COMM_GRADIENTS);
    struct ddp_stats s;
    ddp_stats(d, &s);
    assert_int_equal(s.buckets, BUCKETS);
    destroy();
}

static void a_run_that_tells_nothing_is_reduced_as_a_whole_at_the_end(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    struct ddp *d = create(&f);
    for (int step = 1; step <= 3; step++) {
        ddp_begin(d, true);
        assert_int_equal(ddp_wait(d, NULL), 0);
        assert_int_equal(f.calls, step * BUCKETS);
    }
    destroy();
}

static void an_accumulation_step_sends_nothing(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    struct ddp *d = create(&f);
    ddp_begin(d, false);
    assert_int_equal(ready(d, 0, TRAIN), 0);
    assert_int_equal(ddp_wait(d, NULL), 0);
    ddp_begin(d, true);
    assert_int_equal(ready(d, 0, TRAIN), 0);
    assert_int_equal(ddp_wait(d, NULL), 0);
    assert_int_equal(f.calls, BUCKETS);
    destroy();
}

static void an_error_ends_the_step_and_stays(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    f.fail_at = 1;
    struct ddp *d = create(&f);
    struct err e = {0};
    ddp_begin(d, true);
    assert_int_equal(ready(d, 0, 45), 0);
    assert_int_equal(ddp_wait(d, &e), -ECONNRESET);
    assert_string_equal(e.text, "rank 1 went away");
    assert_int_equal(f.calls, 2);         /* nothing goes after the one that failed */
    assert_int_equal(ddp_wait(d, &e), 0); /* nothing was begun */
    ddp_begin(d, true);
    assert_int_equal(ready(d, 0, 45), -ECONNRESET);
    assert_int_equal(ddp_wait(d, &e), -ECONNRESET);
    assert_int_equal(f.calls, 2);
    destroy();
}

static void gradients_out_of_order_are_refused(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    struct ddp *d = create(&f);
    ddp_begin(d, true);
    assert_int_equal(ready(d, 0, 20), 0);
    assert_int_equal(ready(d, TRAIN, TRAIN + 2), 0); /* statistics may come any time */
    assert_int_equal(ready(d, 10, 30), -EINVAL);
    destroy();
}

static void a_run_may_be_given_up(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    struct ddp *d = create(&f);
    ddp_begin(d, true);
    assert_int_equal(ready(d, 0, 90), 0);
    destroy(); /* returns */
    assert_true(f.calls < BUCKETS);
}

static void statistics_have_a_channel_of_their_own(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 2);
    struct ddp *d = create(&f);
    const struct run_hooks *h = ddp_hooks(d);
    double sums[6] = {0};
    assert_int_equal(h->all_sum(h->ctx, sums, 6, DT_F64, NULL, NULL), 0);
    assert_int_equal(f.call[0].channel, COMM_STATISTICS);
    assert_true(pthread_equal(f.call[0].thread, pthread_self()));
    assert_int_equal(f.call[0].n, 6);
    destroy();

    const struct ddp_options without = {.sync_bn = false};
    assert_int_equal(open_side(&side, &f.base, arena, TRAIN, TAIL, DT_F32, &small, &without, NULL), 0);
    assert_null(ddp_hooks(side.d)->all_sum);
    destroy();
}

static void a_world_of_one_costs_nothing(void **state)
{
    struct fake f;
    fake_init(&f, &fake_host, 1);
    struct ddp *d = create(&f);
    assert_null(ddp_hooks(d)->ready);
    assert_null(ddp_hooks(d)->all_sum);
    ddp_begin(d, true);
    assert_int_equal(ddp_wait(d, NULL), 0);
    assert_int_equal(f.calls, 0);
    destroy();
}

static void stream_backends_are_called_in_place_with_the_stream(void **state)
{
    struct fake f;
    fake_init(&f, &fake_stream, 2);
    struct ddp *d = create(&f);
    const struct run_hooks *h = ddp_hooks(d);
    int stream;
    ddp_begin(d, true);
    assert_int_equal(h->ready(h->ctx, 0, 45, &stream, NULL), 0);
    assert_int_equal(f.calls, 2);
    assert_int_equal(ddp_wait(d, NULL), 0);
    assert_int_equal(f.calls, BUCKETS);
    for (int i = 0; i < BUCKETS; i++) {
        assert_ptr_equal(f.call[i].stream, &stream);
        assert_true(pthread_equal(f.call[i].thread, pthread_self()));
    }
    destroy();
}

/* --- real collectives */

enum { BIG = 100000, BIG_TAIL = 100, STEPS = 3 };

struct result {
    float *ddp[RANKS_MAX], *plain[RANKS_MAX];
};

static void fill(float *x, int rank, int step)
{
    uint32_t s = (uint32_t)(rank * 31 + step * 7 + 1);
    for (int i = 0; i < BIG + BIG_TAIL; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)s * 0x1p-31f;
    }
}

static int step_with_buckets(struct comm *c, float *x, struct ddp *d, int step, struct err *e)
{
    const struct run_hooks *h = ddp_hooks(d);
    fill(x, c->rank, step);
    ddp_begin(d, true);
    for (size_t at = 0; at < BIG; at += 1234)
        TRY(h->ready(h->ctx, at, at + 1234 < BIG ? at + 1234 : BIG, NULL, e));
    return ddp_wait(d, e);
}

static int reduce_both_ways(struct comm *c, int rank, void *arg, struct err *e)
{
    struct result *r = arg;
    struct side s;
    TRY(open_side(&s, c, r->ddp[rank], BIG, BIG_TAIL, DT_F32, &(struct pieces){4096, 100000}, &(struct ddp_options){0},
                  e));
    int rc = 0;
    for (int step = 0; step < STEPS && rc == 0; step++) {
        rc = step_with_buckets(c, r->ddp[rank], s.d, step, e);
        float *x = r->plain[rank];
        fill(x, rank, step);
        for (int k = 0; k < s.own.npieces && rc == 0; k++) {
            const size_t first = s.own.pieces[k].first,
                         end = s.own.pieces[k].end + (k == s.own.npieces - 1 ? BIG_TAIL : 0);
            rc = c->ops->all_reduce(c, COMM_CONTROL, x + first, end - first, DT_F32, COMM_SUM, NULL, e);
        }
        if (rc == 0 && memcmp(r->ddp[rank], x, (BIG + BIG_TAIL) * sizeof *x) != 0)
            rc = err_set(e, -EIO, "step %d differs", step);
    }
    close_side(&s);
    return rc;
}

static void overlapped_sums_are_the_plain_sums_bit_for_bit(void **state)
{
    static const char *const backends[] = {"local", "gloo"};
    for (int b = 0; b < 2; b++) {
        if (!ranks_have(backends[b]))
            continue;
        struct ranks w;
        struct result r;
        ranks_open(&w, backends[b], 3, 20000);
        for (int i = 0; i < 3; i++) {
            r.ddp[i] = calloc(BIG + BIG_TAIL, sizeof(float));
            r.plain[i] = calloc(BIG + BIG_TAIL, sizeof(float));
        }
        ranks_run(&w, reduce_both_ways, &r);
        for (int i = 0; i < 3; i++) {
            if (w.rc[i] < 0)
                fail_msg("%s, rank %d: %s", backends[b], i, w.err[i].text);
            assert_memory_equal(r.ddp[0], r.ddp[i], (BIG + BIG_TAIL) * sizeof(float));
            free(r.plain[i]);
        }
        for (int i = 0; i < 3; i++)
            free(r.ddp[i]);
        ranks_close(&w);
    }
}

/* --- groups */

/* Four ranks, 2 x 2: gradients of a parameter that the tensor group splits, then of one that all hold, then a tail. */
enum { SPLIT = 160, COMMON = 320, GRID_TAIL = 4, GRID = SPLIT + COMMON + GRID_TAIL };

struct grid {
    struct comm *data[2][2]; /* of tensor place t, data place d */
    double x[4][GRID];
};

static int reduce_on_grid(struct comm *c, int rank, void *arg, struct err *e)
{
    struct grid *g = arg;
    struct param params[] = {{.role = PARAM_TRAIN, .count = SPLIT, .sharded = true},
                             {.role = PARAM_TRAIN, .count = COMMON, .offset = SPLIT}};
    const struct program p = {.params = params, .nparams = 2, .n_train = SPLIT + COMMON};
    const struct ownership_options o = {.elem_bytes = 8, .bucket_bytes = 800, .first_bucket_bytes = 160};
    struct layout l;
    struct ownership own;
    struct ddp *d;
    TRY(layout_plan(&l, 4, 2, 1, 0, e));
    const struct layout_place at = layout_place(&l, rank);
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = c, [LAYOUT_DATA] = g->data[at.tensor][at.data]};
    for (int i = 0; i < GRID; i++)
        g->x[rank][i] = (rank + 1) * 1000 + i;
    TRY(ownership_init(&own, &l, rank, &p, &o, e));
    TRY(ddp_create(&d, groups, &own, g->x[rank], GRID_TAIL, DT_F64, &(struct ddp_options){0}, e));
    ddp_begin(d, true);
    int rc = ddp_hooks(d)->ready(ddp_hooks(d)->ctx, 0, SPLIT + 7, NULL, e);
    if (rc == 0)
        rc = ddp_wait(d, e);
    ddp_destroy(d);
    ownership_finish(&own);
    return rc;
}

static void gradients_are_summed_over_the_ranks_that_hold_them(void **state)
{
    static struct grid g;
    struct ranks w;
    struct comm *pair[2];
    ranks_open(&w, "local", 4, 20000);
    for (int t = 0; t < 2; t++) {
        assert_int_equal(comm_local_open_threads(pair, 2, 20000, NULL), 0);
        memcpy(g.data[t], pair, sizeof pair);
    }
    ranks_run(&w, reduce_on_grid, &g);
    for (int r = 0; r < 4; r++) {
        if (w.rc[r] < 0)
            fail_msg("rank %d: %s", r, w.err[r].text);
        for (int i = 0; i < GRID; i++) /* ranks 0 and 2, or 1 and 3; else all four */
            assert_true(g.x[r][i] == (i < SPLIT ? 2 * i + 1000 * (r % 2 == 0 ? 4 : 6) : 4 * i + 10000));
        g.data[r % 2][r / 2]->ops->close(g.data[r % 2][r / 2]);
    }
    ranks_close(&w);
}

static void a_group_without_its_communicator_is_refused(void **state)
{
    struct fake f;
    struct err e;
    struct param one = {.role = PARAM_TRAIN, .count = TRAIN, .sharded = true};
    const struct program p = {.params = &one, .nparams = 1, .n_train = TRAIN};
    struct layout l;
    struct ownership own;
    struct ddp *d;
    fake_init(&f, &fake_host, 4);
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = &f.base};
    assert_int_equal(layout_plan(&l, 4, 2, 1, 0, NULL), 0);
    assert_int_equal(ownership_init(&own, &l, 0, &p, &(struct ownership_options){.elem_bytes = 4}, NULL), 0);
    assert_int_equal(ddp_create(&d, groups, &own, arena, TAIL, DT_F32, &(struct ddp_options){0}, &e), -EINVAL);
    assert_string_equal(e.text, "a communicator of 1 for gradients that 2 ranks sum");
    ownership_finish(&own);
}

/* --- ZeRO */

enum { ZERO_WORLD = 3, ZERO_TRAIN = 10000 + 16, ZERO_TAIL = 20, ZERO_ALL = ZERO_TRAIN + ZERO_TAIL };

struct zero_case {
    enum dtype wire;
    float x[ZERO_WORLD][ZERO_ALL], gathered[ZERO_WORLD][ZERO_ALL];
    bool owned[ZERO_WORLD][ZERO_ALL];
};

/* Numbers whose sums any type holds. */
static float small_number(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 30);
}

static int reduce_cut(struct comm *c, int rank, void *arg, struct err *e)
{
    struct zero_case *z = arg;
    struct param one = {.role = PARAM_TRAIN, .count = ZERO_TRAIN};
    const struct program p = {.params = &one, .nparams = 1, .n_train = ZERO_TRAIN};
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = c};
    struct layout l;
    struct ownership own;
    struct ddp *d;
    TRY(layout_plan(&l, c->world, 1, 1, 1, e));
    TRY(ownership_init(&own, &l, rank, &p,
                       &(struct ownership_options){.elem_bytes = 4, .bucket_bytes = 9000, .first_bucket_bytes = 1000},
                       e));
    for (size_t i = 0; i < ZERO_ALL; i++)
        z->x[rank][i] = small_number(rank, i);
    TRY(ddp_create(&d, groups, &own, z->x[rank], ZERO_TAIL, DT_F32, &(struct ddp_options){.wire = z->wire}, e));
    ddp_begin(d, true);
    int rc = ddp_hooks(d)->ready(ddp_hooks(d)->ctx, 0, 7000, NULL, e);
    if (rc == 0)
        rc = ddp_wait(d, e);
    for (int k = 0; k < own.nowned; k++)
        for (size_t i = own.owned[k].first; i < own.owned[k].end; i++) {
            z->owned[rank][i] = true;
            z->gathered[rank][i] = z->x[rank][i];
        }
    if (rc == 0)
        rc = ddp_gather(d, z->gathered[rank], e);
    ddp_destroy(d);
    ownership_finish(&own);
    return rc;
}

static void check_cut(const struct zero_case *z)
{
    for (size_t i = 0; i < ZERO_ALL; i++) {
        float sum = 0;
        int owners = 0;
        for (int r = 0; r < ZERO_WORLD; r++)
            sum += small_number(r, i);
        for (int r = 0; r < ZERO_WORLD; r++) {
            owners += z->owned[r][i];
            if (z->owned[r][i] || i >= ZERO_TRAIN)
                assert_true(fabsf(z->x[r][i] - sum) < 0.1F); /* as halves: 87 in thirds, each rounded to 2^-9 of it */
            if (i < ZERO_TRAIN)
                assert_true(fabsf(z->gathered[r][i] - sum) < 0.1F);
        }
        if (i < ZERO_TRAIN)
            assert_true(owners == 1 || (owners == ZERO_WORLD && i >= ZERO_TRAIN - ZERO_WORLD * OWNERSHIP_ALIGN));
    }
}

static void gradients_are_summed_by_their_owners_and_gathered(void **state)
{
    static const char *const backends[] = {"local", "gloo", "local"};
    static struct zero_case z;
    for (int b = 0; b < 3; b++) {
        struct ranks w;
        if (!ranks_have(backends[b]))
            continue;
        memset(&z, 0, sizeof z);
        z.wire = b == 2 ? DT_F16 : DT_F32;
        ranks_open(&w, backends[b], ZERO_WORLD, 20000);
        ranks_run(&w, reduce_cut, &z);
        for (int r = 0; r < ZERO_WORLD; r++)
            if (w.rc[r] < 0)
                fail_msg("%s, rank %d: %s", backends[b], r, w.err[r].text);
        check_cut(&z);
        ranks_close(&w);
    }
}

struct wire_case {
    enum dtype wire, real;
    void *x[3];
};

/* Gradients sin(i + rank), a tail of 0.1 + rank that no half holds; the first gradient of rank 1 is infinite. */
static int reduce_as_halves(struct comm *c, int rank, void *arg, struct err *e)
{
    struct wire_case *w = arg;
    struct side s;
    for (size_t i = 0; i < BIG + BIG_TAIL; i++) {
        const double v = i < BIG ? (i == 0 && rank == 1 ? INFINITY : sin((double)i + rank)) : 0.1 + rank;
        if (w->real == DT_F64)
            ((double *)w->x[rank])[i] = v;
        else
            ((float *)w->x[rank])[i] = (float)v;
    }
    TRY(open_side(&s, c, w->x[rank], BIG, BIG_TAIL, w->real, &(struct pieces){4096, 100000},
                  &(struct ddp_options){.wire = w->wire}, e));
    ddp_begin(s.d, true);
    const struct run_hooks *h = ddp_hooks(s.d);
    int rc = 0;
    for (size_t at = 0; at < BIG && rc == 0; at += 1234)
        rc = h->ready(h->ctx, at, at + 1234 < BIG ? at + 1234 : BIG, NULL, e);
    if (rc == 0)
        rc = ddp_wait(s.d, e);
    close_side(&s);
    return rc;
}

/* Bound: each of three terms is rounded once, and their sum; terms are at most 1/3 in size, the result is scaled by
 * 3. */
static void gradients_travel_as_halves_and_the_rest_does_not(void **state)
{
    const struct wire_case cases[] = {
        {.wire = DT_F16, .real = DT_F32}, {.wire = DT_BF16, .real = DT_F32}, {.wire = DT_F16, .real = DT_F64}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct wire_case w = cases[k];
        struct ranks r;
        double worst = 0;
        ranks_open(&r, "local", 3, 20000);
        for (int i = 0; i < 3; i++)
            w.x[i] = calloc(BIG + BIG_TAIL, sizeof(double));
        ranks_run(&r, reduce_as_halves, &w);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r.rc[i], 0);
            assert_memory_equal(w.x[0], w.x[i], (BIG + BIG_TAIL) * dtype_size(w.real));
        }
        for (size_t i = 0; i < BIG + BIG_TAIL; i++) {
            const double got = w.real == DT_F64 ? ((double *)w.x[0])[i] : (double)((float *)w.x[0])[i];
            const double want = i < BIG ? sin((double)i) + sin((double)i + 1) + sin((double)i + 2) : 3.3;
            if (i == 0)
                assert_true(isinf(got)); /* nobody loses sight of an overflow */
            else if (i < BIG)
                worst = fmax(worst, fabs(got - want));
            else
                assert_true(fabs(got - want) < 1e-6);
        }
        const double unit = w.wire == DT_F16 ? 0x1p-12 : 0x1p-9;
        print_message("# %s: largest error %.2g\n", dtype_name(w.wire), worst);
        assert_true(worst > unit / 4 && worst < 3 * (3 * unit + unit * 2));
        for (int i = 0; i < 3; i++)
            free(w.x[i]);
        ranks_close(&r);
    }
}

static int wait_in_vain(struct comm *c, int rank, void *arg, struct err *e)
{
    if (rank == 1) {
        c->ops->abort(c);
        return 0;
    }
    struct side s;
    float *x = calloc(BIG, sizeof *x);
    TRY(open_side(&s, c, x, BIG, 0, DT_F32, &(struct pieces){0}, &(struct ddp_options){0}, e));
    ddp_begin(s.d, true);
    int rc = ddp_wait(s.d, e);
    close_side(&s);
    free(x);
    return rc;
}

static void a_peer_that_aborts_ends_the_wait(void **state)
{
    struct ranks w;
    ranks_open(&w, "local", 2, 20000);
    ranks_run(&w, wait_in_vain, NULL);
    assert_int_equal(w.rc[0], -ECONNRESET);
    assert_in_range(w.took_ms[0], 0, 5000); /* not the 20000 it could wait */
    ranks_close(&w);
}

/* --- gradients that are cut: the arena is address space */

enum { WIDE = 8 << 20, WIDE_PIECE = 64 << 10, WIDE_OP = 16 << 10 }; /* elements: 32 MiB, buckets of 256 KiB */

static size_t resident_bytes(void *p, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    unsigned char *there = calloc(n, 1);
    size_t resident = there && mincore(p, bytes, there) == 0 ? 0 : n + 1;
    for (size_t i = 0; i < n && resident <= n; i++)
        resident += there[i] & 1;
    free(there);
    return resident * page;
}

/* Backward, two parts: gradient i is i of this part times the rank + 1. */
static int two_parts(struct comm *c, struct side *s, float *g, struct err *e)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (WIDE + TAIL) * sizeof *g,
                 kept = ownership_elements(&s->own, OWNERSHIP_GRADIENTS) * sizeof *g,
                 most = kept + 4 * WIDE_PIECE * sizeof *g + (size_t)s->own.npieces * 3 * page;
    const struct run_hooks *h = ddp_hooks(s->d);
    for (int part = 0; part < 2; part++) {
        ddp_begin(s->d, true);
        for (size_t at = 0; at < WIDE; at += WIDE_OP) {
            for (size_t i = at; i < at + WIDE_OP; i++)
                g[i] = (float)(i % 1000) * (float)(c->rank + 1);
            TRY(h->ready(h->ctx, at, at + WIDE_OP, NULL, e));
            const size_t now = resident_bytes(g, bytes);
            if (now > most)
                return err_set(e, -EIO, "%zu bytes of gradients, expected at most %zu", now, most);
        }
        g[WIDE] = 1;
        TRY(ddp_wait(s->d, e));
        TRY(ddp_keep(s->d, part == 0, part == 1, e));
    }
    return most < bytes ? 0 : err_set(e, -EINVAL, "a bound of all");
}

static int in_little_memory(struct comm *c, int rank, void *arg, struct err *e)
{
    const struct ownership_options cut = {.elem_bytes = sizeof(float), .bucket_bytes = WIDE_PIECE * sizeof(float)};
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = c};
    struct side s = {.param = {.role = PARAM_TRAIN, .count = WIDE}};
    const size_t bytes = (WIDE + TAIL) * sizeof(float);
    struct layout l;
    (void)rank;
    (void)arg;
    s.program = (struct program){.params = &s.param, .nparams = 1, .n_train = WIDE};
    float *g = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TRY(g == MAP_FAILED ? err_errno(e, errno, "address space") : 0);
    TRY(layout_plan(&l, c->world, 1, 1, 2, e));
    TRY(ownership_init(&s.own, &l, c->rank, &s.program, &cut, e));
    TRY(ddp_create(&s.d, groups, &s.own, g, TAIL, DT_F32, &(struct ddp_options){.wire = DT_F32}, e));
    int rc = two_parts(c, &s, g, e);
    if (rc < 0)
        c->ops->abort(c); /* nobody is to wait for this rank */
    const float times = 2 * (float)(c->world * (c->world + 1)) / 2;
    for (int k = 0; k < s.own.nowned && rc == 0; k++)
        for (size_t i = s.own.owned[k].first; i < s.own.owned[k].end && rc == 0; i++)
            if (g[i] != (float)(i % 1000) * times)
                rc = err_set(e, -EIO, "gradient %zu is %g", i, (double)g[i]);
    if (rc == 0 && g[WIDE] != 2 * (float)c->world)
        rc = err_set(e, -EIO, "the tail is %g", (double)g[WIDE]);
    close_side(&s);
    munmap(g, bytes);
    return rc;
}

static void cut_gradients_take_what_is_owned_and_a_few_buckets(void **state)
{
    struct ranks w;
    (void)state;
    ranks_open(&w, "local", 3, 60000);
    ranks_run(&w, in_little_memory, NULL);
    for (int r = 0; r < 3; r++)
        if (w.rc[r] < 0)
            fail_msg("rank %d: %s", r, w.err[r].text);
    ranks_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_goes_while_backward_still_runs),
        cmocka_unit_test(a_run_that_tells_nothing_is_reduced_as_a_whole_at_the_end),
        cmocka_unit_test(an_accumulation_step_sends_nothing),
        cmocka_unit_test(an_error_ends_the_step_and_stays),
        cmocka_unit_test(gradients_out_of_order_are_refused),
        cmocka_unit_test(a_run_may_be_given_up),
        cmocka_unit_test(statistics_have_a_channel_of_their_own),
        cmocka_unit_test(a_world_of_one_costs_nothing),
        cmocka_unit_test(stream_backends_are_called_in_place_with_the_stream),
        cmocka_unit_test(overlapped_sums_are_the_plain_sums_bit_for_bit),
        cmocka_unit_test(gradients_are_summed_over_the_ranks_that_hold_them),
        cmocka_unit_test(a_group_without_its_communicator_is_refused),
        cmocka_unit_test(gradients_are_summed_by_their_owners_and_gathered),
        cmocka_unit_test(cut_gradients_take_what_is_owned_and_a_few_buckets),
        cmocka_unit_test(gradients_travel_as_halves_and_the_rest_does_not),
        cmocka_unit_test(a_peer_that_aborts_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
