/* Parameters that come and go: at each read of a plan they are there, and hardly anything else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/worker/comm/ranks.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/pages.h"
#include "worker/parallel/residency.h"
#include "worker/program/program.h"

enum { LAYERS = 6, READS = 2 * LAYERS, TAIL = 16 };

/* Layers in backward order, elements; small ones share a piece, the largest is more than one. */
static const size_t layers[LAYERS] = {3000, 70000, 200, 40000, 9000, 500};

struct side {
    struct param params[LAYERS];
    struct program program;
    struct ownership own;
    float *arena, *reduce;
    struct ddp *d;
    struct residency *r;
};

static size_t bytes_of(const struct side *s)
{
    return s->own.n_train * sizeof(float);
}

static const struct device_ops host_ops = {.real = DT_F32};
static struct device host = {&host_ops};

static int open_side(struct side *s, struct comm *c, bool aligned, struct err *e)
{
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = c};
    const struct ownership_options cut = {
        .elem_bytes = sizeof(float), .bucket_bytes = 40000 * sizeof(float), .first_bucket_bytes = 8000 * sizeof(float)};
    struct layout l;
    *s = (struct side){.program = {.params = s->params, .nparams = LAYERS}};
    if (aligned)
        program_align(&s->program, OWNERSHIP_ALIGN * (size_t)c->world);
    for (int i = 0; i < LAYERS; i++) {
        s->params[i] = (struct param){.role = PARAM_TRAIN, .count = layers[i], .offset = s->program.n_train};
        s->program.n_train = program_param_end(&s->program, &s->params[i]);
    }
    TRY(layout_plan(&l, c->world, 1, 1, 3, e));
    TRY(ownership_init(&s->own, &l, c->rank, &s->program, &cut, e));
    TRY(pages_open((void **)&s->arena, bytes_of(s), e));
    TRY(pages_open((void **)&s->reduce, bytes_of(s) + TAIL * sizeof(float), e));
    TRY(ddp_create(&s->d, groups, &s->own, s->reduce, TAIL, DT_F32, &(struct ddp_options){.wire = DT_F32}, e));
    return residency_create(&s->r, &s->own, s->d, &host, s->arena, e);
}

static void close_side(struct side *s)
{
    residency_destroy(s->r);
    ddp_destroy(s->d);
    pages_close(s->arena, bytes_of(s));
    pages_close(s->reduce, bytes_of(s) + TAIL * sizeof(float));
    ownership_finish(&s->own);
}

/* Forward reads the last layer first. */
static struct plan_range range_of(const struct side *s, int read)
{
    const struct param *q = &s->params[read < LAYERS ? LAYERS - 1 - read : read - LAYERS];
    return (struct plan_range){q->offset, q->offset + q->count};
}

static size_t resident(void *p, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    unsigned char *there = calloc(n, 1);
    size_t sum = mincore(p, bytes, there) == 0 ? 0 : n + 1;
    for (size_t i = 0; i < n && sum <= n; i++)
        sum += there[i] & 1;
    free(there);
    return sum * page;
}

static float value_of(size_t i, int update)
{
    return (float)(i % 4093) + (float)update;
}

/* What this rank owns is updated, and nothing else is touched. */
static void update(struct side *s, int update)
{
    for (int k = 0; k < s->own.nowned; k++)
        for (size_t i = s->own.owned[k].first; i < s->own.owned[k].end; i++)
            s->arena[i] = value_of(i, update);
}

static int check_read(const struct side *s, int read, int update, struct err *e)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t most = (ownership_elements(&s->own, OWNERSHIP_PARAMS) + residency_peak(s->r)) * sizeof(float) +
                        (size_t)s->own.npieces * 3 * page;
    const struct plan_range q = range_of(s, read);
    for (size_t i = q.first; i < q.end; i++)
        if (s->arena[i] != value_of(i, update))
            return err_set(e, -EIO, "read %d: element %zu is %g", read, i, (double)s->arena[i]);
    const size_t now = resident(s->arena, bytes_of(s));
    return now <= most ? 0 : err_set(e, -EIO, "read %d: %zu bytes are there, expected at most %zu", read, now, most);
}

/* Some runs, gradients in between: a run is forward and backward, of which a layer's gradient is ready once it is
 * read. */
static int run(struct side *s, int update, struct err *e)
{
    const struct plan_needs *n = residency_needs(s->r);
    const struct run_hooks *h = ddp_hooks(s->d);
    ddp_begin(s->d, true);
    for (int k = 0; k < READS; k++) {
        const struct plan_range q = range_of(s, k);
        TRY(n->need(n->ctx, k, e));
        TRY(check_read(s, k, update, e));
        n->release(n->ctx, k);
        for (size_t i = q.first; i < q.end && k >= LAYERS; i++)
            s->reduce[i] = 1;
        if (k >= LAYERS)
            TRY(h->ready(h->ctx, q.first, program_param_end(&s->program, &s->params[k - LAYERS]), NULL, e));
    }
    return ddp_wait(s->d, e);
}

static int runs(struct comm *c, int rank, void *arg, struct err *e)
{
    struct side s;
    struct plan_range reads[READS];
    (void)rank;
    TRY(open_side(&s, c, *(bool *)arg, e));
    for (int k = 0; k < READS; k++)
        reads[k] = range_of(&s, k);
    const struct plan_needs *n = residency_needs(s.r);
    int rc = n->order(n->ctx, reads, READS, e);
    for (int i = 0; i < 3 && rc == 0; i++) {
        update(&s, i);
        rc = run(&s, i, e);
    }
    if (rc == 0 && residency_peak(s.r) >= s.own.n_train * 3 / 4)
        rc = err_set(e, -EIO, "%zu of %zu elements are gathered at once", residency_peak(s.r), s.own.n_train);
    for (int k = 0; k < s.own.nowned && rc == 0; k++)
        for (size_t i = s.own.owned[k].first; i < s.own.owned[k].end && rc == 0; i++)
            if (s.reduce[i] != 0 && s.reduce[i] != (float)c->world)
                rc = err_set(e, -EIO, "gradient %zu is %g", i, (double)s.reduce[i]);
    if (rc < 0)
        c->ops->abort(c); /* nobody is to wait for this rank */
    close_side(&s);
    return rc;
}

static void what_is_read_is_there_and_hardly_more(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++)
        for (int k = 0; k < 2; k++) {
            bool aligned = k > 0;
            struct ranks w;
            ranks_open(&w, "local", world, 60000);
            ranks_run(&w, runs, &aligned);
            for (int r = 0; r < world; r++)
                if (w.rc[r] < 0)
                    fail_msg("%d ranks: rank %d: %s", world, r, w.err[r].text);
            ranks_close(&w);
        }
}

/* The next layer is asked for while one is read; the last one is not given back between forward and backward. */
static int count(struct comm *c, int rank, void *arg, struct err *e)
{
    struct side s;
    struct plan_range reads[READS];
    int n, times[64] = {0};
    (void)rank;
    (void)arg;
    TRY(open_side(&s, c, true, e));
    for (int k = 0; k < READS; k++)
        reads[k] = range_of(&s, k);
    const struct plan_needs *needs = residency_needs(s.r);
    int rc = needs->order(needs->ctx, reads, READS, e);
    const int *gathers = residency_gathers(s.r, &n);
    for (int i = 0; i < n && rc == 0; i++)
        times[gathers[i]]++;
    for (int k = 0; k < s.own.npieces && rc == 0; k++)
        if (times[k] > 2 || (k == 0 && times[k] != 1))
            rc = err_set(e, -EIO, "piece %d is gathered %d times", k, times[k]);
    close_side(&s);
    return rc;
}

static void a_piece_is_gathered_once_for_each_pass(void **state)
{
    struct ranks w;
    (void)state;
    ranks_open(&w, "local", 2, 60000);
    ranks_run(&w, count, NULL);
    for (int r = 0; r < 2; r++)
        if (w.rc[r] < 0)
            fail_msg("rank %d: %s", r, w.err[r].text);
    ranks_close(&w);
}

static void an_error_of_the_communicator_ends_the_wait(void **state)
{
    struct ranks w;
    struct side s;
    struct err e = {0};
    (void)state;
    ranks_open(&w, "local", 2, 20000);
    assert_int_equal(open_side(&s, w.comm[0], true, &e), 0);
    const struct plan_range all = {0, s.own.n_train};
    const struct plan_needs *n = residency_needs(s.r);
    assert_int_equal(n->order(n->ctx, &all, 1, &e), 0);
    w.comm[1]->ops->abort(w.comm[1]);
    assert_int_equal(n->need(n->ctx, 0, &e), -ECONNRESET);
    close_side(&s);
    ranks_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_is_there_and_hardly_more),
        cmocka_unit_test(a_piece_is_gathered_once_for_each_pass),
        cmocka_unit_test(an_error_of_the_communicator_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
