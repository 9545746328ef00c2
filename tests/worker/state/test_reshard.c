/* The state goes to other owners: over random layouts before and after, and random ranks that are lost or come new; and
 * who gives what, over random lists. TEST_SEED=N draws the same again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"
#include "worker/state/holders.h"
#include "worker/state/reshard.h"
#include "worker/state/reshard_plan.h"
#include "worker/state/state.h"

enum { RANKS = 8, CASES = 60, LISTS = 400, ELEMENTS = 300 };

static uint64_t draw(uint64_t *x, uint64_t below) /* xorshift */
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x % below;
}

static uint64_t seed_of_test(void)
{
    const char *given = getenv("TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 2 + 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    return seed;
}

/* --- who gives what */

struct draft { /* of each rank */
    struct reshard_span has[RANKS][ELEMENTS], wants[RANKS][ELEMENTS];
    struct reshard_list has_list[RANKS], wants_list[RANKS];
};

/* In pieces of random sizes, elements are given to random ranks (share: of 100); every: each to one at least. */
static void deal(struct reshard_span spans[RANKS][ELEMENTS], struct reshard_list list[RANKS], int world, uint64_t share,
                 bool every, uint64_t *x)
{
    size_t n[RANKS] = {0};
    for (uint64_t at = 0, size; at < ELEMENTS; at += size) {
        const int one = every ? (int)draw(x, (uint64_t)world) : -1;
        size = 1 + draw(x, 40);
        size = size < ELEMENTS - at ? size : ELEMENTS - at;
        for (int r = 0; r < world; r++)
            if (r == one || draw(x, 100) < share)
                spans[r][n[r]++] = (struct reshard_span){.first = at, .n = size, .at = draw(x, 1000)};
    }
    for (int r = 0; r < world; r++)
        list[r] = (struct reshard_list){.spans = spans[r], .n = n[r]};
}

/* Of which span; -1: none has all of it. */
static int span_of(const struct reshard_list *l, uint64_t first, uint64_t n)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->spans[i].first <= first && first + n <= l->spans[i].first + l->spans[i].n)
            return (int)i;
    return -1;
}

static uint64_t elements_of(const struct reshard_list *l)
{
    uint64_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += l->spans[i].n;
    return n;
}

static void check_plan(const struct draft *d, int world, const struct reshard_transfer *all, size_t n, size_t most)
{
    static unsigned char got[RANKS][ELEMENTS];
    memset(got, 0, sizeof got);
    for (size_t i = 0; i < n; i++) {
        const struct reshard_transfer *t = &all[i];
        assert_in_range(t->n, 1, most);
        assert_true(span_of(&d->has_list[t->from], t->first, t->n) >= 0);
        assert_true(span_of(&d->wants_list[t->to], t->first, t->n) >= 0);
        if (span_of(&d->has_list[t->to], t->first, 1) >= 0)
            assert_int_equal(t->from, t->to);
        assert_true(i == 0 || all[i - 1].first < t->first || (all[i - 1].first == t->first && all[i - 1].to < t->to));
        for (uint64_t k = 0; k < t->n; k++)
            assert_int_equal(got[t->to][t->first + k]++, 0);
    }
    for (int r = 0; r < world; r++) {
        uint64_t sum = 0;
        for (int k = 0; k < ELEMENTS; k++)
            sum += got[r][k];
        assert_int_equal(sum, elements_of(&d->wants_list[r]));
    }
}

static void each_element_that_is_wanted_comes_once_from_one_that_has_it(void **state)
{
    (void)state;
    static struct draft d;
    uint64_t x = seed_of_test();
    int lacking = 0;
    for (int k = 0; k < LISTS; k++) {
        const int world = 1 + (int)draw(&x, RANKS);
        const size_t most = 1 + draw(&x, 50);
        struct reshard_transfer *all;
        size_t n;
        struct err e;
        deal(d.has, d.has_list, world, draw(&x, 60), k % 4 > 0, &x);
        deal(d.wants, d.wants_list, world, draw(&x, 60), false, &x);
        const int rc = reshard_plan(d.has_list, d.wants_list, world, most, &all, &n, &e);
        bool all_there = true;
        for (int r = 0; r < world; r++)
            for (size_t i = 0; i < d.wants_list[r].n; i++)
                for (uint64_t a = 0; a < d.wants[r][i].n; a++) {
                    bool there = false;
                    for (int f = 0; f < world; f++)
                        there = there || span_of(&d.has_list[f], d.wants[r][i].first + a, 1) >= 0;
                    all_there = all_there && there;
                }
        assert_int_equal(rc, all_there ? 0 : -ENODATA);
        lacking += !all_there;
        if (rc == 0) {
            check_plan(&d, world, all, n, most);
            free(all);
        }
    }
    assert_in_range(lacking, 1, LISTS / 2);
}

static void those_that_have_the_same_give_as_much(void **state)
{
    (void)state;
    const struct reshard_span whole = {.n = 3000};
    const struct reshard_list has[] = {{&whole, 1}, {&whole, 1}, {&whole, 1}, {NULL, 0}},
                              wants[] = {{NULL, 0}, {NULL, 0}, {NULL, 0}, {&whole, 1}};
    struct reshard_transfer *all;
    uint64_t given[4] = {0};
    size_t n;
    struct err e;
    assert_int_equal(reshard_plan(has, wants, 4, 10, &all, &n, &e), 0);
    assert_int_equal(n, 300);
    for (size_t i = 0; i < n; i++)
        given[all[i].from] += all[i].n;
    for (int r = 0; r < 3; r++)
        assert_int_equal(given[r], 1000);
    free(all);
}

/* --- a state */

struct change {
    int zero, before, after; /* ranks */
    int tensor, stages;      /* of them share the last layer; have a part of the layers each */
    int was[RANKS];          /* of each rank, what it was before; -1: it comes new */
    bool ema, second;
    size_t bucket[2]; /* bytes, before and after */
    bool lost;        /* a part is with nobody */
    struct comm *comms[RANKS];
};

struct rank {
    const struct change *c;
    int rank, rc;
    struct err e;
};

struct made {
    struct program *whole, *program; /* program: of the stage; the same where there are none */
    struct ownership own;
    struct state state;
};

enum { ARENA_PARAMS, ARENA_MOMENTUM, ARENA_SECOND, ARENA_AVERAGES, ARENAS };

/* Of element i of the model. */
static double value_of(int arena, uint64_t i)
{
    return 1 + (double)(i * ARENAS + (uint64_t)arena);
}

static double *place_of(const struct state *s, int arena, size_t at)
{
    const size_t moment =
        arena == ARENA_MOMENTUM || arena == ARENA_SECOND ? ownership_place(s->own, OWNERSHIP_MOMENTS, at) : 0;
    double *const arenas[] = {s->params, s->momentum, s->second, s->ema_params};
    double *a = arenas[arena];
    return !a ? NULL : a + (arena == ARENA_PARAMS || arena == ARENA_AVERAGES ? at : moment);
}

static bool is_owned(const struct ownership *own, size_t at)
{
    for (int k = 0; k < own->nowned; k++)
        if (at >= own->owned[k].first && at < own->owned[k].end)
            return true;
    return false;
}

typedef bool visit(double *at, double value);

/* Every element that the rank updates, of each arena that moves; false: visit() found one wrong. */
static bool each_element(const struct state *s, visit *v)
{
    uint64_t first = 0;
    for (int i = 0; i < s->whole->nparams; i++) {
        const int here = program_find_param(s->program, s->whole->params[i].name);
        const struct param *q = here >= 0 ? &s->program->params[here] : &s->whole->params[i];
        if (q->role != PARAM_TRAIN)
            continue;
        const size_t skipped = q->sharded ? (size_t)q->shard_first * (q->count / (size_t)q->shape[0]) : 0;
        for (size_t k = 0; k < q->count && here >= 0; k++)
            for (int a = 0; a < ARENAS; a++) {
                const bool moves = is_owned(s->own, q->offset + k) && (a != ARENA_AVERAGES || s->own->layout.zero == 3);
                double *at = moves ? place_of(s, a, q->offset + k) : NULL;
                if (at && !v(at, value_of(a, first + skipped + k)))
                    return false;
            }
        first += q->sharded ? q->count / (size_t)q->shape[0] * (size_t)q->shard_whole : q->count;
    }
    return true;
}

static bool fill(double *at, double value)
{
    *at = value;
    return true;
}

static bool is_there(double *at, double value)
{
    return *at == value;
}

static int make_place(struct made *m, const struct change *c, int world, int rank, size_t bucket, struct err *e)
{
    const struct model_options o = {.arch = "convnet",
                                    .classes = 7,
                                    .input = input_pictures(1, 28, 28, NULL, NULL),
                                    .split = {c->tensor > 1 ? SPLIT_CLASSES : SPLIT_NONE, c->tensor, rank % c->tensor},
                                    .align = c->zero == 3 ? (size_t)(OWNERSHIP_ALIGN * world / c->stages) : 0};
    const struct ownership_options oo = {.elem_bytes = 8, .bucket_bytes = bucket, .first_bucket_bytes = bucket / 4};
    struct layout l;
    *m = (struct made){0};
    int cuts[2];
    TRY(layout_plan(&l, world, c->tensor, c->stages, c->zero, e));
    l.seconds = true;
    TRY(model_build(&m->whole, &o, e));
    m->program = m->whole;
    if (c->stages > 1) {
        TRY(stages_cut(m->whole, c->stages, cuts, e));
        TRY(stages_program(&m->program, m->whole, cuts, c->stages, c->stages, layout_place(&l, rank).stage, e));
    }
    return ownership_init(&m->own, &l, rank, m->program, &oo, e);
}

static void unmake(struct made *m)
{
    state_finish(&m->state);
    ownership_finish(&m->own);
    if (m->program != m->whole)
        program_destroy(m->program);
    program_destroy(m->whole);
}

/* What nobody is to take from this rank is no number. */
static int make_state(struct made *m, const struct change *c, struct device *d, struct err *e)
{
    const struct state_options o = {.seed = 1, .second = c->second, .ema = c->ema, .whole = m->whole};
    TRY(state_init(&m->state, d, m->program, &m->own, &o, e));
    if (c->zero < 3)
        for (size_t i = 0; i < m->program->n_train; i++)
            ((double *)m->state.params)[i] = NAN;
    each_element(&m->state, fill);
    return 0;
}

static int check(const struct made *old, const struct made *now, const struct change *c, struct err *e)
{
    if (!each_element(&now->state, is_there))
        return err_set(e, -EBADMSG, "an element of the new state is another one");
    if (old && !each_element(&old->state, is_there))
        return err_set(e, -EBADMSG, "an element of the old state is another one");
    if (old && (old->state.stats != now->state.stats || (old->state.params == now->state.params) != (c->zero < 3)))
        return err_set(e, -EBADMSG, "what is whole is not shared");
    return 0;
}

/* From a rank of the layout before to one of the layout after. */
static int change_place(struct rank *r, struct device *d, struct made *old, struct made *now, struct err *e)
{
    const struct change *c = r->c;
    const int was = c->was[r->rank];
    if (was >= 0)
        TRY(make_place(old, c, c->before, was, c->bucket[0], e));
    TRY(make_place(now, c, c->after, r->rank, c->bucket[1], e));
    if (was >= 0) {
        TRY(make_state(old, c, d, e));
        TRY(state_divide(&now->state, &old->state, now->program, &now->own, e));
        now->state.whole = now->whole;
    } else {
        TRY(state_init(&now->state, d, now->program, &now->own,
                       &(struct state_options){.seed = 2, .second = c->second, .ema = c->ema, .whole = now->whole}, e));
    }
    TRY(reshard(was >= 0 ? &old->state : NULL, &now->state, c->comms[r->rank], e));
    return check(was >= 0 ? old : NULL, now, c, e);
}

static void *run(void *arg)
{
    struct rank *r = arg;
    struct made old = {0}, now = {0};
    struct device *d;
    r->rc = device_open(&d, "ref", &(struct device_options){.threads = 1}, &r->e);
    if (r->rc < 0)
        return NULL;
    r->rc = change_place(r, d, &old, &now, &r->e);
    state_finish_but(&old.state, &now.state);
    unmake(&now);
    unmake(&old);
    d->ops->close(d);
    return NULL;
}

/* Random ranks of the layout before are left, in any order, among new ones; each keeps its stage, and its part of a
 * shared layer. */
static void draw_change(struct change *c, int k, uint64_t *x)
{
    bool here[RANKS] = {false};
    struct layout l, now;
    struct err e;
    const int tensor = 1 + (int)draw(x, 2), stages = 1 + (int)draw(x, 2), replica = tensor * stages;
    *c = (struct change){.zero = 1 + k % 3,
                         .before = replica * (1 + (int)draw(x, (uint64_t)(RANKS / replica))),
                         .after = replica * (1 + (int)draw(x, (uint64_t)(RANKS / replica))),
                         .tensor = tensor,
                         .stages = stages,
                         .ema = draw(x, 2),
                         .second = draw(x, 2),
                         .bucket = {4000 + draw(x, 100000), 4000 + draw(x, 100000)}};
    for (int r = 0; r < c->after; r++)
        c->was[r] = -1;
    assert_int_equal(layout_plan(&l, c->before, tensor, stages, c->zero, &e), 0);
    assert_int_equal(layout_plan(&now, c->after, tensor, stages, c->zero, &e), 0);
    for (int old = 0; old < c->before; old++) {
        struct layout_place p = layout_place(&l, old);
        const int from = (int)draw(x, (uint64_t)now.data);
        for (int i = 0; i < now.data && draw(x, 8) > 0; i++) {
            p.data = (from + i) % now.data;
            if (c->was[layout_rank(&now, p)] >= 0)
                continue;
            c->was[layout_rank(&now, p)] = old;
            here[old] = true;
            break;
        }
    }
    l.seconds = true;
    c->lost = holders_check(&l, here, &e) < 0;
}

static void run_change(struct change *c)
{
    pthread_t threads[RANKS];
    struct rank ranks[RANKS];
    struct err e;
    assert_int_equal(comm_local_open_threads(c->comms, c->after, 60000, &e), 0);
    for (int i = 0; i < c->after; i++) {
        ranks[i] = (struct rank){.c = c, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < c->after; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < c->after; i++) {
        c->comms[i]->ops->close(c->comms[i]);
        /* a stage without a shared layer misses none of its parts */
        const bool missed = c->lost && (c->stages == 1 || c->tensor == 1);
        if (ranks[i].rc != (missed ? -ENODATA : 0) && !(c->lost && ranks[i].rc == -ENODATA))
            fail_msg("zero %d, %d to %d ranks, rank %d: %s", c->zero, c->before, c->after, i,
                     ranks[i].rc < 0 ? ranks[i].e.text : "nothing was missed");
    }
}

static void every_element_is_with_its_new_owners_bit_for_bit(void **state)
{
    (void)state;
    uint64_t x = seed_of_test();
    int whole = 0;
    for (int k = 0; k < CASES; k++) {
        struct change c;
        draw_change(&c, k, &x);
        run_change(&c);
        whole += !c.lost;
    }
    assert_in_range(whole, CASES / 6, CASES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_that_is_wanted_comes_once_from_one_that_has_it),
        cmocka_unit_test(those_that_have_the_same_give_as_much),
        cmocka_unit_test(every_element_is_with_its_new_owners_bit_for_bit),
    };
    return cmocka_run_group_tests_name("reshard", tests, NULL, NULL);
}
