/* Schedules of pipelines, by running them: unit time, and messages that wait for room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/pipeline/pipeline.h"

enum { STAGES_MAX = 8, CHUNKS_MAX = 4, MICRO_MAX = 24 };

typedef void check_fn(const struct pipeline *p);

/* Every schedule of up to 8 stages, 24 micro-batches and 4 chunks. */
static void each_schedule(check_fn *check)
{
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_INTERLEAVED; kind++)
        for (int s = 1; s <= STAGES_MAX; s++)
            for (int m = 1; m <= MICRO_MAX; m++)
                for (int v = 1; v <= CHUNKS_MAX; v++) {
                    const struct pipeline p = {(enum pipeline_kind)kind, s, m, v};
                    if (pipeline_check(&p, NULL) == 0)
                        check(&p);
                }
}

/* --- what each stage does */

static void passes_are_complete(const struct pipeline *p)
{
    for (int s = 0; s < p->stages; s++) {
        bool done[2][CHUNKS_MAX][MICRO_MAX] = {0};
        int last[2][CHUNKS_MAX] = {0};
        for (int i = 0; i < pipeline_actions(p); i++) {
            const struct pipeline_action a = pipeline_action(p, s, i);
            assert_in_range(a.chunk, 0, p->chunks - 1);
            assert_in_range(a.micro_batch, 0, p->micro_batches - 1);
            assert_false(done[a.backward][a.chunk][a.micro_batch]);
            assert_true(!a.backward || done[0][a.chunk][a.micro_batch]);
            assert_int_equal(a.micro_batch, last[a.backward][a.chunk]++); /* sums are taken in this order */
            done[a.backward][a.chunk][a.micro_batch] = true;
        }
    }
}

static void each_micro_batch_goes_forward_then_backward_once(void **state)
{
    (void)state;
    each_schedule(passes_are_complete);
}

static void peak_is_as_the_schedule_says(const struct pipeline *p)
{
    for (int s = 0; s < p->stages; s++) {
        int sum = 0;
        const int behind = p->stages - s - 1, all = p->micro_batches * p->chunks;
        for (int c = 0; c < p->chunks; c++)
            sum += pipeline_live(p, s, c);
        if (p->kind == PIPELINE_GPIPE)
            assert_int_equal(sum, p->micro_batches);
        else if (p->kind == PIPELINE_1F1B)
            assert_int_equal(sum, p->micro_batches < behind + 1 ? p->micro_batches : behind + 1);
        else /* those of chunks need not have their peaks at once */
            assert_true(sum <= all && sum >= (2 * behind + (p->chunks - 1) * p->stages + 1 < all
                                                  ? 2 * behind + (p->chunks - 1) * p->stages + 1
                                                  : all));
    }
}

static void the_peak_of_live_activations_is_the_schedules(void **state)
{
    (void)state;
    each_schedule(peak_is_as_the_schedule_says);
}

/* A set of activations that is used in turn is free when it is needed. */
static void sets_are_free(const struct pipeline *p)
{
    for (int s = 0; s < p->stages; s++)
        for (int c = 0; c < p->chunks; c++) {
            const int sets = pipeline_live(p, s, c);
            bool taken[MICRO_MAX] = {0};
            for (int i = 0; i < pipeline_actions(p); i++) {
                const struct pipeline_action a = pipeline_action(p, s, i);
                if (a.chunk != c)
                    continue;
                assert_int_equal(taken[a.micro_batch % sets], a.backward);
                taken[a.micro_batch % sets] = !a.backward;
            }
        }
}

static void sets_of_activations_are_used_in_turn(void **state)
{
    (void)state;
    each_schedule(sets_are_free);
}

/* --- messages */

struct message {
    int chunk, micro_batch; /* of the part that receives it */
};

static struct message result_of(const struct pipeline *p, int stage, const struct pipeline_action *a)
{
    const int part = pipeline_part(p, stage, a->chunk) + (a->backward ? -1 : 1);
    return (struct message){part / p->stages, a->micro_batch};
}

/* Between two stages, in each direction, the k-th message that is sent is the k-th that is received. */
static void orders_agree(const struct pipeline *p)
{
    for (int from = 0; from < p->stages; from++)
        for (int to = 0; to < p->stages; to++)
            for (int backward = 0; backward < 2; backward++) {
                int k = 0;
                for (int i = 0; i < pipeline_actions(p); i++) {
                    const struct pipeline_action sent = pipeline_action(p, from, i);
                    if (sent.backward != (bool)backward || sent.to != to)
                        continue;
                    const struct message m = result_of(p, from, &sent);
                    struct pipeline_action got;
                    do {
                        assert_true(k < pipeline_actions(p));
                        got = pipeline_action(p, to, k++);
                    } while (got.backward != (bool)backward || got.from != from);
                    assert_int_equal(got.chunk, m.chunk);
                    assert_int_equal(got.micro_batch, m.micro_batch);
                }
                for (; k < pipeline_actions(p); k++) {
                    const struct pipeline_action left = pipeline_action(p, to, k);
                    assert_true(left.backward != (bool)backward || left.from != from);
                }
            }
}

static void both_sides_order_messages_alike(void **state)
{
    (void)state;
    each_schedule(orders_agree);
}

/* --- running: each stage does its next action when its input is there and there is room for its result */

struct running {
    const struct pipeline *p;
    int room;                                  /* messages that may be on their way between two stages, a direction */
    int next[STAGES_MAX], free_at[STAGES_MAX]; /* action; time */
    int sent[2][STAGES_MAX][STAGES_MAX], taken[2][STAGES_MAX][STAGES_MAX];
    int when[2][STAGES_MAX][STAGES_MAX][CHUNKS_MAX * MICRO_MAX]; /* a message is there at */
};

/* Can stage s do its next action, and when? */
static bool may_begin(const struct running *r, int s, int *when)
{
    const struct pipeline_action a = pipeline_action(r->p, s, r->next[s]);
    const int b = a.backward;
    *when = r->free_at[s];
    if (a.from >= 0 && r->taken[b][a.from][s] == r->sent[b][a.from][s])
        return false;
    if (a.to >= 0 && r->sent[b][s][a.to] - r->taken[b][s][a.to] >= r->room)
        return false;
    if (a.from >= 0 && r->when[b][a.from][s][r->taken[b][a.from][s]] > *when)
        *when = r->when[b][a.from][s][r->taken[b][a.from][s]];
    return true;
}

static void do_next(struct running *r, int s, int when)
{
    const struct pipeline_action a = pipeline_action(r->p, s, r->next[s]++);
    if (a.from >= 0)
        r->taken[a.backward][a.from][s]++;
    if (a.to >= 0)
        r->when[a.backward][s][a.to][r->sent[a.backward][s][a.to]++] = when + 1;
    r->free_at[s] = when + 1;
}

/* How long it takes in all; -1: the stages wait for one another. */
static int run(const struct pipeline *p, int room)
{
    static struct running r;
    memset(&r, 0, sizeof r);
    r.p = p;
    r.room = room;
    for (bool any = true; any;) {
        any = false;
        for (int s = 0; s < p->stages; s++) {
            int when;
            if (r.next[s] < pipeline_actions(p) && may_begin(&r, s, &when)) {
                do_next(&r, s, when);
                any = true;
            }
        }
    }
    int end = 0;
    for (int s = 0; s < p->stages; s++) {
        if (r.next[s] < pipeline_actions(p))
            return -1;
        end = r.free_at[s] > end ? r.free_at[s] : end;
    }
    return end;
}

static void nobody_waits_for_ever(const struct pipeline *p)
{
    if (run(p, 2) < 0)
        fail_msg("%d stages, %d micro-batches, %d chunks, schedule %d: stages wait for one another", p->stages,
                 p->micro_batches, p->chunks, (int)p->kind);
}

static void no_schedule_deadlocks_with_room_for_two_messages(void **state)
{
    (void)state;
    each_schedule(nobody_waits_for_ever);
}

/* Idle share (s - 1) / (m + s - 1), and 1 / chunks of that idle time with chunks. */
static void idle_share_is_the_formulas(const struct pipeline *p)
{
    const int work = 2 * p->micro_batches * p->chunks, idle = 2 * (p->stages - 1);
    assert_int_equal(run(p, MICRO_MAX * CHUNKS_MAX), work + idle);
}

static void bubbles_are_as_the_formula_says(void **state)
{
    (void)state;
    each_schedule(idle_share_is_the_formulas);
}

/* --- one thing after another: a stage, whatever it asked for, does nothing more until that has happened */

enum { ASKS_MAX = 2 * CHUNKS_MAX * MICRO_MAX };

struct call {
    bool send, backward;
    int to, chunk, micro_batch; /* of the part that receives it */
};

struct calls {
    struct call at[2 * ASKS_MAX];
    int n;
};

/* in_turn: what is needed is asked for when it is needed. */
static void list_calls(const struct pipeline *p, int stage, bool in_turn, struct calls *ret)
{
    static struct pipeline_ask asks[ASKS_MAX];
    const int n = pipeline_asks(p, stage, asks, NULL);
    ret->n = 0;
    assert_true(n >= 0);
    for (int i = 0, k = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, stage, i);
        for (; k < n && asks[k].before <= i && !in_turn; k++) {
            const struct pipeline_action b = pipeline_action(p, stage, asks[k].action);
            assert_true(asks[k].before <= asks[k].action && b.from >= 0);
            ret->at[ret->n++] = (struct call){false, b.backward, stage, b.chunk, b.micro_batch};
        }
        if (in_turn && a.from >= 0)
            ret->at[ret->n++] = (struct call){false, a.backward, stage, a.chunk, a.micro_batch};
        if (a.to >= 0) {
            const struct message m = result_of(p, stage, &a);
            ret->at[ret->n++] = (struct call){true, a.backward, a.to, m.chunk, m.micro_batch};
        }
    }
}

/* A message goes when its sender and its receiver are both at it. */
static bool goes(const struct call *a, const struct call *b)
{
    return a->send != b->send && a->backward == b->backward && a->to == b->to && a->chunk == b->chunk &&
           a->micro_batch == b->micro_batch;
}

/* Do all messages of a step come through? */
static bool come_through(const struct pipeline *p, bool in_turn)
{
    static struct calls calls[STAGES_MAX];
    int at[STAGES_MAX] = {0}, left = 0;
    for (int s = 0; s < p->stages; s++)
        list_calls(p, s, in_turn, &calls[s]);
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < p->stages; s++)
            for (int r = 0; r < p->stages; r++)
                if (r != s && at[s] < calls[s].n && at[r] < calls[r].n &&
                    goes(&calls[s].at[at[s]], &calls[r].at[at[r]])) {
                    at[s]++;
                    at[r]++;
                    moved = true;
                }
    }
    for (int s = 0; s < p->stages; s++)
        left += calls[s].n - at[s];
    return left == 0;
}

static void one_thing_after_another_is_no_circle(const struct pipeline *p)
{
    if (!come_through(p, false))
        fail_msg("%d stages, %d micro-batches, %d chunks, schedule %d: stages wait for one another", p->stages,
                 p->micro_batches, p->chunks, (int)p->kind);
}

static void stages_may_do_one_thing_after_another(void **state)
{
    (void)state;
    each_schedule(one_thing_after_another_is_no_circle);
}

static void what_is_asked_for_in_turn_is_a_circle(void **state)
{
    (void)state;
    assert_false(come_through(&(struct pipeline){PIPELINE_1F1B, 2, 2, 1}, true));
    assert_false(come_through(&(struct pipeline){PIPELINE_INTERLEAVED, 2, 2, 2}, true));
}

static void few_messages_are_asked_for_at_once(const struct pipeline *p)
{
    static struct pipeline_ask asks[ASKS_MAX];
    const int most = p->kind == PIPELINE_INTERLEAVED ? 4 : 2;
    for (int s = 0; s < p->stages; s++) {
        const int n = pipeline_asks(p, s, asks, NULL);
        for (int c = 0; c < p->chunks; c++) {
            assert_true(pipeline_asked(p, s, asks, n, c, false, false) <= most);
            assert_true(pipeline_asked(p, s, asks, n, c, true, false) <= most);
            assert_true(pipeline_asked(p, s, asks, n, c, false, true) <= pipeline_live(p, s, c) + most);
        }
    }
}

static void memory_for_messages_is_bounded(void **state)
{
    (void)state;
    each_schedule(few_messages_are_asked_for_at_once);
}

/* --- refusals */

static void impossible_pipelines_are_refused(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(pipeline_check(&(struct pipeline){PIPELINE_1F1B, 0, 1, 1}, &e), ERR_USAGE);
    assert_int_equal(pipeline_check(&(struct pipeline){PIPELINE_1F1B, 2, 4, 2}, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "only --schedule interleaved"));
    assert_int_equal(pipeline_check(&(struct pipeline){PIPELINE_INTERLEAVED, 4, 6, 2}, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "multiple of the 4 stages"));
    assert_int_equal(pipeline_check(&(struct pipeline){PIPELINE_INTERLEAVED, 1, 6, 2}, &e), ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_micro_batch_goes_forward_then_backward_once),
        cmocka_unit_test(the_peak_of_live_activations_is_the_schedules),
        cmocka_unit_test(sets_of_activations_are_used_in_turn),
        cmocka_unit_test(both_sides_order_messages_alike),
        cmocka_unit_test(no_schedule_deadlocks_with_room_for_two_messages),
        cmocka_unit_test(bubbles_are_as_the_formula_says),
        cmocka_unit_test(stages_may_do_one_thing_after_another),
        cmocka_unit_test(what_is_asked_for_in_turn_is_a_circle),
        cmocka_unit_test(memory_for_messages_is_bounded),
        cmocka_unit_test(impossible_pipelines_are_refused),
    };
    return cmocka_run_group_tests_name("pipeline schedules", tests, NULL, NULL);
}
