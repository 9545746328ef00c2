/* What every backend of collectives must do, over ranks as threads. Values are compared with sums in long double.
 *
 * Bounds: a sum of W terms rounded at most once per rank is off by at most W u sum|a| (1 + W u), u = 2^-24 (f32), 2^-53
 * (f64), 2^-8 (bf16); integers, maxima and minima are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "tests/support/today.h"
#include "tests/worker/comm/ranks.h"

enum { TIMEOUT_MS = 20000, SHORT_MS = 2000, SOON_MS = 5000 };

static const int worlds[] = {1, 2, 3, 5};
#define LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Input of rank r: anything, the same in every run. In [-1, 1); integers up to 2^40. */
static double input(int rank, size_t i, enum dtype t)
{
    uint64_t x = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 30)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    if (t == DT_I64)
        return (double)(int64_t)(x >> 24) - 0x1p39;
    double v = (double)(x >> 11) * 0x1p-52 - 1;
    return t == DT_F64 ? v : t == DT_F32 ? (float)v : f32_from_bf16(bf16_from_f32((float)v));
}

static void put(void *buf, size_t i, enum dtype t, double v)
{
    switch (t) {
    case DT_F32:
        ((float *)buf)[i] = (float)v;
        break;
    case DT_F64:
        ((double *)buf)[i] = v;
        break;
    case DT_BF16:
        ((uint16_t *)buf)[i] = bf16_from_f32((float)v);
        break;
    case DT_F16:
        ((uint16_t *)buf)[i] = f16_from_f32((float)v);
        break;
    default:
        ((int64_t *)buf)[i] = (int64_t)v;
    }
}

static double get(const void *buf, size_t i, enum dtype t)
{
    return t == DT_F32   ? ((const float *)buf)[i]
           : t == DT_F64 ? ((const double *)buf)[i]
           : t == DT_I64 ? (double)((const int64_t *)buf)[i]
           : t == DT_F16 ? f32_from_f16(((const uint16_t *)buf)[i])
                         : f32_from_bf16(((const uint16_t *)buf)[i]);
}

struct job {
    size_t n;
    enum dtype t;
    enum comm_op op;
    void *buf[RANKS_MAX];
};

static void *inputs(int rank, size_t first, size_t n, enum dtype t)
{
    void *buf = malloc(n * dtype_size(t) + 1);
    for (size_t i = 0; i < n; i++)
        put(buf, i, t, input(rank, first + i, t));
    return buf;
}

static void expect_all(const struct ranks *w, int code)
{
    for (int r = 0; r < w->world; r++) {
        if (w->rc[r] != code)
            print_error("rank %d: %s\n", r, w->err[r].text);
        assert_int_equal(w->rc[r], code);
    }
}

/* Element i of out, combined over `world` ranks whose inputs begin at `first`. */
static void check(const void *out, size_t i, size_t first, int world, enum dtype t, enum comm_op op)
{
    static const double unit[] = {
        [DT_F64] = 0x1p-53, [DT_F32] = 0x1p-24, [DT_BF16] = 0x1p-8, [DT_F16] = 0x1p-11, [DT_I64] = 0};
    long double sum = 0, size = 0;
    double max = -INFINITY, min = INFINITY;
    for (int r = 0; r < world; r++) {
        double x = input(r, first + i, t);
        sum += x;
        size += fabs(x);
        max = fmax(max, x);
        min = fmin(min, x);
    }
    double got = get(out, i, t), want = op == COMM_SUM ? (double)sum : op == COMM_MAX ? max : min;
    double bound = op == COMM_SUM ? (double)size * world * unit[t] * (1 + world * unit[t]) : 0;
    if (fabs(got - want) > bound)
        fail_msg("%s, operation %d, world %d, element %zu: %.17g, expected %.17g within %.3g", dtype_name(t), op, world,
                 i, got, want, bound);
}

static int all_reduce(struct comm *c, int rank, void *arg, struct err *e)
{
    struct job *j = arg;
    return c->ops->all_reduce(c, COMM_GRADIENTS, j->buf[rank], j->n, j->t, j->op, NULL, e);
}

static void check_all_reduce(struct ranks *w, size_t n, enum dtype t, enum comm_op op)
{
    struct job j = {.n = n, .t = t, .op = op};
    for (int r = 0; r < w->world; r++)
        j.buf[r] = inputs(r, 0, n, t);
    ranks_run(w, all_reduce, &j);
    expect_all(w, 0);
    for (int r = 1; r < w->world; r++)
        assert_memory_equal(j.buf[0], j.buf[r], n * dtype_size(t));
    size_t step = n > 5000 ? 97 : 1; /* every element is compared with rank 0's; a sample with the truth */
    for (size_t i = 0; i < n; i += step)
        check(j.buf[0], i, 0, w->world, t, op);
    for (int r = 0; r < w->world; r++)
        free(j.buf[r]);
}

static void all_reduce_gives_every_rank_the_same_right_bits(void **state)
{
    const size_t sizes[] = {0, 1, 3, 17, 1000, are_all_points_taken() ? 1000000 : 500003};
    static const enum dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_F16, DT_I64};
    static const enum comm_op ops[] = {COMM_SUM, COMM_MAX, COMM_MIN};
    for (size_t i = 0; i < LEN(worlds); i++) {
        struct ranks w;
        ranks_open(&w, *state, worlds[i], TIMEOUT_MS);
        for (size_t t = 0; t < LEN(types); t++)
            for (size_t op = 0; op < LEN(ops); op++)
                for (size_t s = 0; s < LEN(sizes); s++)
                    if (sizes[s] <= 1000 || ops[op] == COMM_SUM)
                        check_all_reduce(&w, sizes[s], types[t], ops[op]);
        ranks_close(&w);
    }
}

static void sums_depend_on_world_and_size_only(void **state)
{
    static const size_t sizes[] = {1000, 200003};
    for (size_t s = 0; s < LEN(sizes); s++) {
        void *before = NULL;
        for (int run = 0; run < 3; run++) {
            struct ranks w;
            struct job j = {.n = sizes[s], .t = DT_F32, .op = COMM_SUM};
            ranks_open(&w, *state, 3, TIMEOUT_MS);
            for (int r = 0; r < 3; r++)
                j.buf[r] = inputs(r, 0, j.n, j.t);
            ranks_run(&w, all_reduce, &j);
            expect_all(&w, 0);
            ranks_close(&w);
            if (before)
                assert_memory_equal(before, j.buf[0], j.n * 4);
            free(before);
            before = j.buf[0];
            free(j.buf[1]);
            free(j.buf[2]);
        }
        free(before);
    }
}

static int broadcast_from_each(struct comm *c, int rank, void *arg, struct err *e)
{
    size_t n = *(size_t *)arg;
    char *buf = malloc(n + 1);
    int rc = 0;
    for (int root = 0; root < c->world && rc == 0; root++) {
        memset(buf, rank + 1, n);
        rc = c->ops->broadcast(c, COMM_CONTROL, buf, n, root, NULL, e);
        for (size_t i = 0; i < n && rc == 0; i++)
            if (buf[i] != root + 1)
                rc = err_set(e, -EIO, "byte %zu from rank %d is %d", i, root, buf[i]);
    }
    free(buf);
    return rc;
}

/* From memory of its own, and from its place in what comes. */
static int gather(struct comm *c, int rank, void *arg, struct err *e)
{
    size_t n = *(size_t *)arg, world = (size_t)c->world;
    char *apart = malloc(n + 1), *out = calloc(world, n + 1), *const place = out + (size_t)rank * n;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        char *in = i == 0 ? apart : place;
        memset(out, 0, world * n);
        memset(in, rank + 1, n);
        rc = c->ops->all_gather(c, COMM_CONTROL, in, out, n, NULL, e);
        for (size_t k = 0; k < world * n && rc == 0; k++)
            if (out[k] != (char)(k / n + 1))
                rc = err_set(e, -EIO, "byte %zu of %zu is %d%s", k, n, out[k], in == place ? ", in place" : "");
    }
    free(apart);
    free(out);
    return rc;
}

static void each_size(void **state, rank_fn *fn)
{
    static const size_t sizes[] = {0, 1, 2, 1000, 1000003};
    for (size_t i = 0; i < LEN(worlds); i++) {
        struct ranks w;
        ranks_open(&w, *state, worlds[i], TIMEOUT_MS);
        for (size_t s = 0; s < LEN(sizes); s++) {
            size_t n = sizes[s];
            ranks_run(&w, fn, &n);
            expect_all(&w, 0);
        }
        ranks_close(&w);
    }
}

static void broadcast_reaches_all_from_any_root(void **state)
{
    each_size(state, broadcast_from_each);
}

static void all_gather_is_in_rank_order(void **state)
{
    each_size(state, gather);
}

/* Into memory of its own, and into its slice of what goes. */
static int scatter(struct comm *c, int rank, void *arg, struct err *e)
{
    struct job *j = arg;
    const size_t bytes = j->n * dtype_size(j->t);
    char *in = inputs(rank, 0, j->n * (size_t)c->world, j->t), *const place = in + (size_t)rank * bytes;
    int rc = c->ops->reduce_scatter(c, COMM_GRADIENTS, in, j->buf[rank], j->n, j->t, COMM_SUM, NULL, e);
    rc = rc < 0 ? rc : c->ops->reduce_scatter(c, COMM_GRADIENTS, in, place, j->n, j->t, COMM_SUM, NULL, e);
    if (rc == 0 && bytes > 0 && memcmp(place, j->buf[rank], bytes) != 0)
        rc = err_set(e, -EIO, "%zu elements are other sums in place", j->n);
    free(in);
    return rc;
}

static void reduce_scatter_gives_each_rank_its_slice(void **state)
{
    static const size_t sizes[] = {0, 1, 1000, 300001};
    static const enum dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_F16, DT_I64};
    for (size_t i = 0; i < LEN(worlds); i++) {
        struct ranks w;
        ranks_open(&w, *state, worlds[i], TIMEOUT_MS);
        for (size_t t = 0; t < LEN(types); t++) {
            for (size_t s = 0; s < LEN(sizes); s++) {
                struct job j = {.n = sizes[s], .t = types[t]};
                for (int r = 0; r < w.world; r++)
                    j.buf[r] = calloc(j.n + 1, dtype_size(j.t));
                ranks_run(&w, scatter, &j);
                expect_all(&w, 0);
                for (int r = 0; r < w.world; r++) {
                    for (size_t k = 0; k<j.n; k += j.n> 5000 ? 97 : 1)
                        check(j.buf[r], k, (size_t)r * j.n, w.world, j.t, COMM_SUM);
                    free(j.buf[r]);
                }
            }
        }
        ranks_close(&w);
    }
}

static int count_and_meet(struct comm *c, int rank, void *arg, struct err *e)
{
    atomic_int *came = arg;
    for (int round = 1; round <= 20; round++) {
        atomic_fetch_add(came, 1);
        TRY(c->ops->barrier(c, COMM_CONTROL, e));
        int n = atomic_load(came);
        if (n < round * c->world)
            return err_set(e, -EIO, "left barrier %d when %d had come, not %d", round, n, round * c->world);
    }
    return 0;
}

static void nobody_leaves_a_barrier_before_the_last_has_come(void **state)
{
    for (size_t i = 0; i < LEN(worlds); i++) {
        struct ranks w;
        atomic_int came = 0;
        ranks_open(&w, *state, worlds[i], TIMEOUT_MS);
        ranks_run(&w, count_and_meet, &came);
        expect_all(&w, 0);
        ranks_close(&w);
    }
}

struct side {
    struct comm *c;
    struct err e;
    int rc;
};

static int sum_of_ones(struct comm *c, enum comm_channel ch, float *buf, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = 1;
    TRY(c->ops->all_reduce(c, ch, buf, n, DT_F32, COMM_SUM, NULL, e));
    for (size_t i = 0; i < n; i++)
        if (buf[i] != (float)c->world)
            return err_set(e, -EIO, "element %zu is %g", i, (double)buf[i]);
    return 0;
}

static void *gradients(void *arg)
{
    struct side *s = arg;
    enum { N = 300000 };
    float *buf = malloc(N * sizeof *buf);
    for (int i = 0; i < 8 && s->rc == 0; i++)
        s->rc = sum_of_ones(s->c, COMM_GRADIENTS, buf, N, &s->e);
    free(buf);
    return NULL;
}

static int two_channels(struct comm *c, int rank, void *arg, struct err *e)
{
    struct side s = {.c = c};
    pthread_t thread;
    if (pthread_create(&thread, NULL, gradients, &s) != 0)
        return -EAGAIN;
    float buf[64];
    int rc = 0;
    /* The other channel's order differs from rank to rank in time: nothing may depend on it. */
    for (int i = 0; i < 100 && rc == 0; i++)
        rc = sum_of_ones(c, COMM_STATISTICS, buf, 64, e);
    pthread_join(thread, NULL);
    return rc ? rc : s.rc ? err_set(e, s.rc, "%s", s.e.text) : 0;
}

static void channels_do_not_wait_for_each_other(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    ranks_run(&w, two_channels, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* Rank 0 waits for a rank that does not come. */
static int rank_0_reduces(struct comm *c, int rank, void *arg, struct err *e)
{
    enum { N = 2000000 };
    if (rank != 0)
        return 0;
    float *buf = calloc(N, sizeof *buf);
    int rc = c->ops->all_reduce(c, COMM_GRADIENTS, buf, N, DT_F32, COMM_SUM, NULL, e);
    free(buf);
    return rc;
}

static void *abort_soon(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000},
              NULL); /* until the call waits; before it, the answer is the same */
    struct comm *c = arg;
    c->ops->abort(c);
    c->ops->abort(c);
    return NULL;
}

static int one_sum(struct comm *c, int rank, void *arg, struct err *e)
{
    float x = 0;
    return c->ops->all_reduce(c, COMM_CONTROL, &x, 1, DT_F32, COMM_SUM, NULL, e);
}

static void abort_wakes_a_waiting_call_at_once(void **state)
{
    struct ranks w;
    pthread_t thread;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    assert_int_equal(pthread_create(&thread, NULL, abort_soon, w.comm[0]), 0);
    ranks_run(&w, rank_0_reduces, NULL);
    pthread_join(thread, NULL);
    print_message("# %s: returned %lld ms after the start, aborted after 50\n", (char *)*state,
                  (long long)w.took_ms[0]);
    assert_int_equal(w.rc[0], -ECANCELED);
    assert_in_range(w.took_ms[0], 0, SOON_MS);
    struct err e;
    int64_t start = clock_ms(); /* rank 1 need not wait for rank 2, which is busy, to learn that rank 0 is lost */
    assert_int_equal(one_sum(w.comm[1], 1, NULL, &e), -ECONNRESET);
    assert_in_range(clock_ms() - start, 0, SOON_MS);
    ranks_run(&w, one_sum, NULL); /* whatever comes after it fails on every rank */
    assert_int_equal(w.rc[0], -ECANCELED);
    for (int r = 1; r < 3; r++) {
        if (w.rc[r] != -ECONNRESET)
            fail_msg("rank %d: code %d: %s", r, w.rc[r], w.err[r].text);
        assert_in_range(w.took_ms[r], 0, SOON_MS);
    }
    ranks_close(&w);
}

static void the_deadline_names_who_did_not_answer(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 2, SHORT_MS);
    ranks_run(&w, rank_0_reduces, NULL);
    assert_int_equal(w.rc[0], -ETIMEDOUT);
    assert_non_null(strstr(w.err[0].text, "rank 1"));
    assert_in_range(w.took_ms[0], SHORT_MS - 5, SHORT_MS + SOON_MS);
    ranks_close(&w);
}

static int rank_1_closes(struct comm *c, int rank, void *arg, struct err *e)
{
    struct ranks *w = arg;
    if (rank != 1)
        return rank_0_reduces(c, rank, NULL, e);
    w->comm[1] = NULL;
    c->ops->close(c);
    return 0;
}

static void a_call_with_a_rank_that_closed_fails_at_once(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 2, TIMEOUT_MS);
    ranks_run(&w, rank_1_closes, &w);
    assert_int_equal(w.rc[0], -ECONNRESET);
    assert_non_null(strstr(w.err[0].text, "rank 1 went away"));
    assert_in_range(w.took_ms[0], 0, SOON_MS);
    ranks_close(&w);
}

static int reduce_and_close(struct comm *c, int rank, void *arg, struct err *e)
{
    struct ranks *w = arg;
    enum { N = 200000 };
    float *buf = malloc(N * sizeof *buf);
    int rc = sum_of_ones(c, COMM_GRADIENTS, buf, N, e);
    if (rc == 0)
        rc = c->ops->barrier(c, COMM_CONTROL, e);
    free(buf);
    w->comm[rank] = NULL;
    c->ops->close(c);
    return rc;
}

static void a_rank_that_is_done_may_close_before_the_others(void **state)
{
    for (int i = 0; i < 5; i++) {
        struct ranks w;
        ranks_open(&w, *state, 5, TIMEOUT_MS);
        ranks_run(&w, reduce_and_close, &w);
        expect_all(&w, 0);
        ranks_close(&w);
    }
}

#define CASES(X)                                                                                                       \
    X(all_reduce_gives_every_rank_the_same_right_bits)                                                                 \
    X(sums_depend_on_world_and_size_only)                                                                              \
    X(broadcast_reaches_all_from_any_root)                                                                             \
    X(all_gather_is_in_rank_order)                                                                                     \
    X(reduce_scatter_gives_each_rank_its_slice)                                                                        \
    X(nobody_leaves_a_barrier_before_the_last_has_come)                                                                \
    X(channels_do_not_wait_for_each_other)                                                                             \
    X(abort_wakes_a_waiting_call_at_once)                                                                              \
    X(the_deadline_names_who_did_not_answer)                                                                           \
    X(a_call_with_a_rank_that_closed_fails_at_once)                                                                    \
    X(a_rank_that_is_done_may_close_before_the_others)

int main(void)
{
#define X(name) {#name " (local)", name, NULL, NULL, (void *)"local"},
    const struct CMUnitTest local[] = { CASES(X) };
#undef X
#define X(name) {#name " (gloo)", name, NULL, NULL, (void *)"gloo"},
    const struct CMUnitTest gloo[] = { CASES(X) };
#undef X
    enum { N = sizeof local / sizeof local[0] };
    struct CMUnitTest all[2 * N];
    memcpy(all, local, sizeof local);
    memcpy(all + N, gloo, sizeof gloo);
    return _cmocka_run_group_tests("collectives", all, ranks_have("gloo") ? 2 * N : N, NULL, NULL);
}
