/* A rank at half its speed is named within 20 steps, with its class; ten hours of jitter name nobody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "launcher/straggler/straggler.h"

enum { WORLD_MAX = 8, STEP_US = 50000, STEPS_IN_10_HOURS = 10 * 3600 * 20 };

/* --- a cluster that jitters */

static uint64_t seed;

static double uniform(void) /* splitmix64, 0 < x < 1 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

struct cluster {
    int world;
    double now_us, shares_until_us;
    int shares;              /* that rank has half a core until then */
    double step_us, comm_us; /* what a step takes: of a rank's own, and for the others */
    double speed[WORLD_MAX], drift[WORLD_MAX];
    int burst[WORLD_MAX]; /* steps that it still lasts */
    struct straggler_rank v[WORLD_MAX];
    struct straggler_tries tries[WORLD_MAX];
    struct straggler_rank tried[WORLD_MAX];
};

struct trouble {
    int rank; /* -1: none */
    enum straggler_class why;
    int from; /* step */
    int peer; /* network: one link alone; -1: all of the rank's */
};

static void start(struct cluster *c, int world)
{
    *c = (struct cluster){.world = world, .step_us = STEP_US, .comm_us = 4000};
    for (int r = 0; r < world; r++)
        c->speed[r] = 0.95 + 0.1 * uniform(); /* no two machines are alike */
}

/* Everybody's 10 %, spells of some steps at a third of the speed, pauses up to a second, and what all have together. */
static double compute_us(struct cluster *c, int r, double common)
{
    const bool shares = c->shares == r && c->now_us < c->shares_until_us;
    double us = c->step_us * (shares ? 2 : 1) * c->speed[r] * exp(0.1 * normal() + c->drift[r]) * common;
    c->drift[r] = 0.999 * c->drift[r] + 0.001 * normal();
    if (c->burst[r] == 0 && uniform() < 0.0005)
        c->burst[r] = 1 + (int)(4 * uniform());
    if (c->burst[r] > 0) {
        c->burst[r]--;
        us *= 3;
    }
    return uniform() < 0.01 ? us + 1e6 * uniform() : us;
}

static double data_us(void)
{
    return uniform() < 0.02 ? 2e5 * uniform() : 200 * exp(normal());
}

static uint32_t link_us(double slow_us)
{
    return 1 + (uint32_t)(100 * exp(0.5 * normal()) * (uniform() < 0.01 ? 5 : 1) + slow_us);
}

static void one_step(struct cluster *c, int step, const struct trouble *t)
{
    const int k = step % STRAGGLER_STEPS;
    const double common = uniform() < 0.002 ? 1 + 9 * uniform() : 1;
    const bool now = t->rank >= 0 && step >= t->from;
    double own[WORLD_MAX], longest = 0;
    for (int r = 0; r < c->world; r++) {
        struct straggler_rank *v = &c->v[r];
        const bool slow = now && t->rank == r;
        const double d = data_us() + (slow && t->why == STRAGGLER_DATA ? STEP_US : 0),
                     p = compute_us(c, r, common) * (slow && t->why == STRAGGLER_COMPUTE ? 2 : 1);
        v->known = true;
        v->data_us[k] = (uint32_t)d;
        v->compute_us[k] = (uint32_t)p;
        own[r] = d + p;
        longest = fmax(longest, own[r]);
    }
    const double comm = c->comm_us * exp(0.5 * normal()) + (now && t->why == STRAGGLER_NETWORK ? STEP_US : 0);
    for (int r = 0; r < c->world; r++)
        c->v[r].wait_us[k] = (uint32_t)(longest - own[r] + comm);
    c->now_us += longest + comm;
}

/* Tried once a window. */
static void try_links(struct cluster *c, int step, const struct trouble *t)
{
    const bool now = t->rank >= 0 && t->why == STRAGGLER_NETWORK && step >= t->from;
    for (int r = 0; r < c->world; r++) {
        const bool all = now && t->peer < 0 && t->rank == r, one = now && (t->rank == r || t->peer < 0 || t->peer == r);
        c->v[r].best_us = link_us(all ? 20000 : 0);
        c->v[r].worst_us = c->v[r].best_us + (one && !all ? 20000 : 0);
    }
}

/* Steps first..last; who is named, at which step. */
static bool run(struct cluster *c, int first, int last, const struct trouble *t, struct straggler_memory *m,
                struct straggler_verdict *ret, int *ret_step)
{
    for (int step = first; step <= last; step++) {
        one_step(c, step - 1, t);
        if (step % STRAGGLER_STEPS != 0)
            continue;
        try_links(c, step - 1, t);
        straggler_steady_links(c->tries, c->v, c->world);
        const bool found = straggler_judge(c->v, c->world, ret);
        if (straggler_is_news(m, found ? ret : NULL, (uint64_t)step)) {
            *ret_step = step;
            return true;
        }
    }
    return false;
}

static void a_rank_at_half_its_speed_is_named_within_20_steps(void **state)
{
    (void)state;
    seed = 1;
    for (int world = 2; world <= WORLD_MAX; world++)
        for (enum straggler_class why = STRAGGLER_DATA; why <= STRAGGLER_NETWORK; why++)
            for (int turn = 0; turn < 40; turn++) {
                const struct trouble t = {.rank = turn % world, .why = why, .from = 30 + turn, .peer = -1};
                struct straggler_memory m = {0};
                struct straggler_verdict s;
                struct cluster c;
                int step = 0;
                if (why == STRAGGLER_NETWORK && world == 2)
                    continue; /* the one link there is */
                start(&c, world);
                if (!run(&c, 1, t.from + 20, &t, &m, &s, &step))
                    fail_msg("world %d, %s, turn %d: not named", world, straggler_class_name(why), turn);
                assert_true(step > t.from);
                assert_int_equal(s.rank, t.rank);
                assert_int_equal(s.why, why);
                assert_int_equal(s.peer, -1);
            }
}

static void one_slow_link_is_named_by_its_ends(void **state)
{
    (void)state;
    seed = 2;
    const struct trouble t = {.rank = 1, .why = STRAGGLER_NETWORK, .from = 30, .peer = 3};
    struct straggler_memory m = {0};
    struct straggler_verdict s;
    struct cluster c;
    int step;
    start(&c, 4);
    assert_true(run(&c, 1, 50, &t, &m, &s, &step));
    assert_int_equal(s.rank, 1);
    assert_int_equal(s.peer, 3);
}

/* In one try of twenty a rank is off its core, and one of its links takes as long as the scheduler likes. */
static void take_a_core(struct cluster *c)
{
    const int a = (int)(c->world * uniform()), b = (a + 1) % c->world;
    if (uniform() >= 0.05)
        return;
    const double off_us = -4000 * log(uniform());
    c->v[a].worst_us += (uint32_t)off_us;
    c->v[b].worst_us += (uint32_t)off_us;
}

/* Of one node, where a step is half as long again because of waiting. The links are tried in the first 64 steps, and
 * the last numbers stay. */
static void ranks_that_wait_for_a_core_are_not_named(void **state)
{
    (void)state;
    const struct trouble none = {.rank = -1};
    seed = 5;
    for (int job = 0; job < 2000; job++) {
        struct straggler_memory m = {0};
        struct straggler_verdict s;
        struct cluster c;
        start(&c, 4);
        c.comm_us = 25000;
        for (int step = 1; step <= 100; step++) {
            one_step(&c, step - 1, &none);
            if (step % STRAGGLER_STEPS != 0)
                continue;
            if (step <= 60) {
                try_links(&c, step - 1, &none);
                take_a_core(&c);
                memcpy(c.tried, c.v, sizeof c.tried);
            }
            for (int r = 0; r < c.world; r++) {
                c.v[r].best_us = c.tried[r].best_us;
                c.v[r].worst_us = c.tried[r].worst_us;
            }
            straggler_steady_links(c.tries, c.v, c.world);
            const bool found = straggler_judge(c.v, c.world, &s);
            if (straggler_is_news(&m, found ? &s : NULL, (uint64_t)step))
                fail_msg("job %d: rank %d (%s) at step %d: %g ms, others %g ms", job, s.rank,
                         straggler_class_name(s.why), step, s.mine_ms, s.others_ms);
        }
    }
}

/* Steps of 5 ms; now and then a rank shares its core with another process for a fifth of a second. */
static void a_short_spell_of_short_steps_names_nobody(void **state)
{
    (void)state;
    const struct trouble none = {.rank = -1};
    struct straggler_memory m = {0};
    struct straggler_verdict s;
    struct cluster c;
    seed = 6;
    start(&c, 4);
    c.step_us = 5000;
    c.comm_us = 400;
    for (int spell = 0; spell < 1000; spell++) {
        int step = 0;
        c.shares = spell % 4;
        c.shares_until_us = c.now_us + 200000;
        if (run(&c, 200 * spell + 1, 200 * (spell + 1), &none, &m, &s, &step))
            fail_msg("rank %d (%s) at step %d: %g ms, others %g ms", s.rank, straggler_class_name(s.why), step,
                     s.mine_ms, s.others_ms);
    }
}

/* The same link between two nodes, and in one. */
static void what_a_scheduler_may_do_is_no_slow_link_of_a_node(void **state)
{
    (void)state;
    struct straggler_verdict s;
    struct straggler_rank v[4];
    for (int r = 0; r < 4; r++) {
        v[r] = (struct straggler_rank){.known = true, .node = r / 2, .best_us = 100, .worst_us = 200};
        for (int k = 0; k < STRAGGLER_STEPS; k++)
            v[r].compute_us[k] = v[r].wait_us[k] = 10000;
    }
    v[1].worst_us = v[2].worst_us = 5000;
    assert_true(straggler_judge(v, 4, &s));
    assert_int_equal(s.rank, 1);
    assert_int_equal(s.peer, 2);
    v[2].node = 0;
    assert_false(straggler_judge(v, 4, &s));
    v[3].node = 0;
    assert_false(straggler_judge(v, 4, &s));
    v[1].worst_us = v[2].worst_us = 15000;
    assert_true(straggler_judge(v, 4, &s));
}

static void of_two_tries_the_quicker_one_counts(void **state)
{
    (void)state;
    struct straggler_tries t[2] = {0};
    const uint32_t worst[] = {9000, 9000, 150, 8000, 8000, 7000}, want[] = {0, 0, 150, 150, 150, 7000};
    for (size_t i = 0; i < sizeof worst / sizeof *worst; i++) {
        struct straggler_rank v[2] = {{.best_us = 100, .worst_us = worst[i]}, {.best_us = 100, .worst_us = 200}};
        straggler_steady_links(t, v, 2);
        assert_int_equal(v[0].worst_us, want[i]);
        assert_int_equal(v[1].worst_us, want[i] ? 200 : 0);
    }
}

static void ten_hours_of_jitter_name_nobody(void **state)
{
    (void)state;
    const struct trouble none = {.rank = -1};
    for (int world = 2; world <= WORLD_MAX; world *= 2) {
        struct straggler_memory m = {0};
        struct straggler_verdict s;
        struct cluster c;
        int step;
        seed = 3 + (uint64_t)world;
        start(&c, world);
        if (run(&c, 1, STEPS_IN_10_HOURS, &none, &m, &s, &step))
            fail_msg("world %d: rank %d (%s) at step %d: %g ms, others %g ms", world, s.rank,
                     straggler_class_name(s.why), step, s.mine_ms, s.others_ms);
    }
}

/* Half of the ranks are of another kind of machine. */
static void two_kinds_of_machine_name_nobody(void **state)
{
    (void)state;
    const struct trouble none = {.rank = -1};
    struct straggler_memory m = {0};
    struct straggler_verdict s;
    struct cluster c;
    int step;
    seed = 4;
    start(&c, 8);
    for (int r = 0; r < 4; r++)
        c.speed[r] *= 2;
    assert_false(run(&c, 1, 100000, &none, &m, &s, &step));
}

static void who_was_named_is_named_again_only_after_it_was_well(void **state)
{
    (void)state;
    const struct straggler_verdict a = {.rank = 1, .peer = -1, .why = STRAGGLER_DATA, .step_ms = 100},
                                   b = {.rank = 2, .peer = -1, .why = STRAGGLER_DATA, .step_ms = 100};
    struct straggler_memory m = {0};
    uint64_t step = 0;
    assert_true(straggler_is_news(&m, &a, step += 10));
    assert_false(straggler_is_news(&m, &a, step += 10));
    for (int i = 0; i < STRAGGLER_CALM - 1; i++)
        assert_false(straggler_is_news(&m, NULL, step += 10));
    assert_false(straggler_is_news(&m, &a, step += 10));
    for (int i = 0; i < STRAGGLER_CALM; i++)
        assert_false(straggler_is_news(&m, NULL, step += 10));
    assert_true(straggler_is_news(&m, &a, step += 10));
    assert_true(straggler_is_news(&m, &b, step += 10));
}

static void a_link_that_was_named_hides_neither_its_rank_nor_another_link(void **state)
{
    (void)state;
    const struct straggler_verdict link = {.rank = 1, .peer = 2, .why = STRAGGLER_NETWORK, .step_ms = 100},
                                   other_link = {.rank = 1, .peer = 3, .why = STRAGGLER_NETWORK, .step_ms = 100},
                                   rank = {.rank = 1, .peer = -1, .why = STRAGGLER_NETWORK, .step_ms = 100};
    struct straggler_memory m = {0};
    uint64_t step = 0;
    assert_true(straggler_is_news(&m, &link, step += 10));
    assert_false(straggler_is_news(&m, &link, step += 10));
    assert_true(straggler_is_news(&m, &other_link, step += 10));
    assert_true(straggler_is_news(&m, &rank, step += 10));
    assert_false(straggler_is_news(&m, &link, step += 10)); /* one of the rank's */
    assert_false(straggler_is_news(&m, &rank, step += 10));
}

static void nobody_is_named_while_a_rank_is_not_known(void **state)
{
    (void)state;
    struct straggler_verdict s;
    struct straggler_rank v[2] = {{.known = true}, {.known = true}};
    for (int k = 0; k < STRAGGLER_STEPS; k++) {
        v[0].compute_us[k] = 1000;
        v[1].compute_us[k] = 2000;
    }
    assert_true(straggler_judge(v, 2, &s));
    assert_int_equal(s.rank, 1);
    v[0].known = false;
    assert_false(straggler_judge(v, 2, &s));
    assert_false(straggler_judge(v + 1, 1, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_at_half_its_speed_is_named_within_20_steps),
        cmocka_unit_test(one_slow_link_is_named_by_its_ends),
        cmocka_unit_test(ten_hours_of_jitter_name_nobody),
        cmocka_unit_test(ranks_that_wait_for_a_core_are_not_named),
        cmocka_unit_test(a_short_spell_of_short_steps_names_nobody),
        cmocka_unit_test(what_a_scheduler_may_do_is_no_slow_link_of_a_node),
        cmocka_unit_test(of_two_tries_the_quicker_one_counts),
        cmocka_unit_test(two_kinds_of_machine_name_nobody),
        cmocka_unit_test(who_was_named_is_named_again_only_after_it_was_well),
        cmocka_unit_test(a_link_that_was_named_hides_neither_its_rank_nor_another_link),
        cmocka_unit_test(nobody_is_named_while_a_rank_is_not_known),
    };
    return cmocka_run_group_tests_name("straggler", tests, NULL, NULL);
}
