/* Fused graphs that have plans, yet do not run: the next engine, then the next rung, and only where there is none the
 * end. cuDNN's own plans for a GPU that is not there, computed by plain loops, and a script that says which of them
 * fail.
 *
 * usage: test_fall PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/must.h"
#include "tests/worker/device/cuda/card.h"
#include "worker/device/cuda/plan.h"

enum { BATCH = 4, WIDTH = 16 };

static const enum cudnn_pattern fused[] = {DNN_CONV_STATS, DNN_SBR_CONV_STATS, DNN_SBR_WGRAD, DNN_DGRAD_DRELU_BN};
enum { FUSED = sizeof fused / sizeof *fused };

/* What fails. */
struct script {
    unsigned patterns;  /* bits: all engines of these */
    const char *choice; /* this engine, NULL: none */
    int code;
    long ran[DNN_PATTERN_COUNT], timed;
};

static int answer(void *ctx, const struct gpu_dnn *d)
{
    struct script *s = ctx;
    s->ran[d->pattern]++;
    if ((s->patterns & 1u << d->pattern) || (s->choice && !strcmp(s->choice, cudnn_plan_choice(d->plan))))
        return s->code;
    return 0;
}

static float milliseconds(void *ctx, const struct cudnn_plan *last)
{
    struct script *s = ctx;
    s->timed++;
    if (!last) /* own kernels: no fusion loses against what lies below it */
        return 100;
    return 1 + (float)(cudnn_plan_workspace(last) % 7);
}

struct rig {
    struct script script;
    bool tune, idle, plain, fatal; /* plain: no fused patterns at all */
    struct card c;
};

static void open_rig(struct rig *r, const char *cache)
{
    struct program *p;
    const struct fake_options fake = {
        .idle = r->idle, .fatal = r->fatal, .dnn = answer, .cudnn_ms = milliseconds, .ctx = &r->script};
    const struct cuda_options o = {.graphs = true, .tune = r->tune, .fused_patterns = !r->plain};
    MUST(blocks_build(&p, WIDTH, e));
    card_open(&r->c, p, &fake, &o, &(struct cudnn_options){.props_json = card_props, .cache_dir = cache});
}

static int make(struct rig *r, struct err *e)
{
    return card_plan(&r->c, BATCH, DT_F16, MEMORY_AUTO, e);
}

static void close_rig(struct rig *r)
{
    card_close(&r->c);
}

static int count(const struct rig *r, enum cudnn_pattern pattern)
{
    return card_graphs(&r->c, pattern);
}

static void run_rig(struct rig *r)
{
    MUST(card_run(&r->c, e));
    fake_gpu_wait(r->c.gpu, NULL);
}

/* Of gradients, statistics and metrics, relative. */
static double distance(const struct rig *a, const struct rig *b)
{
    double d = 0, s = 0;
    for (int i = 0; i < a->c.p->nparams; i++) {
        const struct param *q = &a->c.p->params[i];
        const size_t at = q->offset + (q->role == PARAM_TRAIN ? 0 : a->c.p->n_train);
        for (size_t k = at; k < at + q->count; k++) {
            d += ((double)a->c.at.reduce[k] - (double)b->c.at.reduce[k]) *
                 ((double)a->c.at.reduce[k] - (double)b->c.at.reduce[k]);
            s += (double)b->c.at.reduce[k] * (double)b->c.at.reduce[k];
        }
    }
    return sqrt(d / s);
}

/* Convolutions without this pattern: six forward and their gradients, none lost. */
static void check_rungs(const struct rig *r, enum cudnn_pattern without)
{
    assert_int_equal(0, count(r, without));
    assert_int_equal(6, count(r, DNN_CONV) + count(r, DNN_CONV_STATS) + count(r, DNN_SBR_CONV_STATS));
    assert_int_equal(6, count(r, DNN_WGRAD) + count(r, DNN_SBR_WGRAD));
    assert_int_equal(5, count(r, DNN_DGRAD) + count(r, DNN_DGRAD_DRELU_BN)); /* the stem needs none */
    if (without == DNN_CONV_STATS) {                                         /* a prologue is another graph */
        assert_true(count(r, DNN_CONV) >= 4);
    } else { /* one rung down, not to the bottom */
        assert_true(count(r, DNN_CONV_STATS) > 0);
        assert_int_equal(0, count(r, DNN_SBR_CONV_STATS) + count(r, DNN_SBR_WGRAD) + count(r, DNN_DGRAD_DRELU_BN));
    }
}

static void every_fused_graph_runs_where_nothing_fails(void **state)
{
    (void)state;
    struct rig r = {.idle = true, .tune = true};
    open_rig(&r, NULL);
    MUST(make(&r, e));
    for (int i = 0; i < FUSED; i++)
        assert_true(count(&r, fused[i]) > 0);
    assert_string_equal("", r.c.said);
    close_rig(&r);
}

/* What it says: once for each graph, which, and why. */
static void check_said(const struct rig *r, enum cudnn_pattern p)
{
    char shape[160];
    snprintf(shape, sizeof shape, "%s n%d c", cudnn_pattern_name(p), BATCH);
    const int times = count_words(r->c.said, "one rung down");
    if (times == 0 || times > 6 || !strstr(r->c.said, shape) || !strstr(r->c.said, "as the test wants it"))
        fail_msg("%s: '%s'", cudnn_pattern_name(p), r->c.said);
    assert_int_equal(times, count_words(r->c.said, "\n"));
}

static void a_pattern_that_fails_goes_one_rung_down_with_the_same_numbers(void **state)
{
    (void)state;
    struct rig plain = {.plain = true};
    open_rig(&plain, NULL);
    MUST(make(&plain, e));
    run_rig(&plain);
    for (int k = 0; k < 2 * FUSED; k++) {
        const enum cudnn_pattern p = fused[k / 2];
        struct rig r = {.tune = k % 2, .script = {.code = k % 2 ? -EIO : -ENOTSUP, .patterns = 1u << p}};
        open_rig(&r, NULL);
        MUST(make(&r, e));
        check_rungs(&r, p);
        check_said(&r, p);
        for (int i = 0; i < 3; i++) /* walked, captured, launched */
            run_rig(&r);
        print_message("# without %s: %.2g apart\n", cudnn_pattern_name(p), distance(&r, &plain));
        assert_true(distance(&r, &plain) < 2e-2);
        close_rig(&r);
    }
    close_rig(&plain);
}

static void expect_known(struct rig *r, enum cudnn_pattern failed)
{
    MUST(make(r, e));
    check_rungs(r, failed);
    assert_int_equal(0, r->script.ran[failed]);
    assert_int_equal(0, r->script.timed);
    assert_string_equal("", r->c.said);
    close_rig(r);
}

/* Neither the next program on this machine nor a resumed run asks the pattern again, or says anything. */
static void what_failed_is_remembered(void **state)
{
    (void)state;
    for (int k = 0; k < FUSED; k++) {
        char cache[256], *text;
        const struct script fails = {.code = -EIO, .patterns = 1u << fused[k]};
        struct rig first = {.idle = true, .tune = true, .script = fails}, next = first, resumed = first;
        snprintf(cache, sizeof cache, "%s/remembered %d", card_dir, k);
        open_rig(&first, cache);
        MUST(make(&first, e));
        check_rungs(&first, fused[k]);
        MUST(first.c.d->ops->choices(first.c.d, &text, e));
        close_rig(&first);

        open_rig(&next, cache);
        expect_known(&next, fused[k]);
        open_rig(&resumed, NULL);
        MUST(resumed.c.d->ops->choose(resumed.c.d, text, e));
        expect_known(&resumed, fused[k]);
        free(text);
    }
}

/* A cache of better days: its engine fails now. Another one of the graph does it, or, where none does, the rung
 * below. */
static void a_cached_choice_that_fails_is_replaced(void **state)
{
    (void)state;
    for (int k = 0; k < FUSED; k++) {
        char cache[256], chosen[1024] = "";
        struct rig good = {.idle = true, .tune = true}, other = {.idle = true, .tune = true},
                   none = {.idle = true, .tune = true, .script = {.code = -EIO, .patterns = 1u << fused[k]}};
        snprintf(cache, sizeof cache, "%s/better days %d", card_dir, k);
        open_rig(&good, cache);
        MUST(make(&good, e));
        const struct cuda_plan *pl = (const struct cuda_plan *)good.c.plan;
        for (int i = 0; i < pl->nsteps; i++)
            if (pl->steps[i]->kind == STEP_DNN && pl->steps[i]->dnn.pattern == fused[k])
                snprintf(chosen, sizeof chosen, "%s", cudnn_plan_choice(pl->steps[i]->dnn.plan));
        assert_true(chosen[0]);
        close_rig(&good);

        other.script = (struct script){.code = -EIO, .choice = chosen};
        open_rig(&other, cache);
        MUST(make(&other, e));
        assert_true(count(&other, fused[k]) > 0);
        assert_non_null(strstr(other.c.said, "does not run on this GPU any more"));
        close_rig(&other);

        open_rig(&none, cache);
        MUST(make(&none, e));
        check_rungs(&none, fused[k]);
        assert_non_null(strstr(none.c.said, "one rung down"));
        close_rig(&none);
    }
}

/* Memory may suffice the next time. */
static void want_of_memory_is_not_kept_on_disk(void **state)
{
    (void)state;
    char cache[256];
    struct rig r = {.idle = true, .tune = true, .script = {.code = -ENOMEM, .patterns = 1u << DNN_SBR_WGRAD}},
               next = {.idle = true, .tune = true};
    snprintf(cache, sizeof cache, "%s/memory", card_dir);
    open_rig(&r, cache);
    MUST(make(&r, e));
    check_rungs(&r, DNN_SBR_WGRAD);
    close_rig(&r);
    open_rig(&next, cache);
    MUST(make(&next, e));
    assert_true(count(&next, DNN_SBR_WGRAD) > 0);
    close_rig(&next);
}

static void below_the_last_rung_is_the_end(void **state)
{
    (void)state;
    static const enum cudnn_pattern last[] = {DNN_CONV, DNN_DGRAD, DNN_WGRAD};
    for (int k = 0; k < 6; k++) {
        struct err e = {0};
        struct rig r = {.idle = true,
                        .tune = k % 2,
                        .script = {.code = -EIO, .patterns = 1u << DNN_CONV_STATS | 1u << last[k / 2]}};
        open_rig(&r, NULL);
        assert_int_equal(-EIO, make(&r, &e));
        if (!strstr(e.text, "none of") || !strstr(e.text, cudnn_pattern_name(last[k / 2])))
            fail_msg("%s", e.text);
        close_rig(&r);
    }
}

/* An engine that takes the card with it: nothing else is tried. */
static void a_lost_card_is_the_end(void **state)
{
    (void)state;
    struct err e = {0};
    struct rig r = {.idle = true,
                    .tune = true,
                    .fatal = true,
                    .script = {.code = -EIO, .patterns = 1u << DNN_CONV_STATS | 1u << DNN_SBR_CONV_STATS}};
    open_rig(&r, NULL);
    assert_int_equal(-EIO, make(&r, &e));
    assert_int_equal(1, r.script.ran[DNN_CONV_STATS] + r.script.ran[DNN_SBR_CONV_STATS]);
    assert_non_null(strstr(e.text, "as the test wants it"));
    assert_string_equal("", r.c.said);
    close_rig(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fused_graph_runs_where_nothing_fails),
        cmocka_unit_test(a_pattern_that_fails_goes_one_rung_down_with_the_same_numbers),
        cmocka_unit_test(what_failed_is_remembered),
        cmocka_unit_test(a_cached_choice_that_fails_is_replaced),
        cmocka_unit_test(want_of_memory_is_not_kept_on_disk),
        cmocka_unit_test(below_the_last_rung_is_the_end),
        cmocka_unit_test(a_lost_card_is_the_end),
    };
    return card_main(argc, argv, "falling", tests, sizeof tests / sizeof *tests);
}
