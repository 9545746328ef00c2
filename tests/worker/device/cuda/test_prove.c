/* Engines are proven before they are chosen: cuDNN's own plans for a GPU that is not there, computed by plain loops,
 * and a script that says which of them computes something else, and how; or takes the process with it.
 *
 * usage: test_prove PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/card.h"
#include "worker/device/cuda/plan.h"

enum { BATCH = 3, WIDTH = 16, ENGINE_BYTES = 1024 };

struct script {
    /* Engines that err, a pattern each, "": the first that is asked; of these patterns (bits). */
    char wrong[DNN_PATTERN_COUNT][ENGINE_BYTES];
    unsigned patterns;
    int channels; /* of graphs with so many into the convolution alone; 0: any */
    enum fake_wrong how;
    bool every, kill; /* every engine of these; the engine ends the process instead */
    bool restless;    /* in every third run alone: none is the same as that before the one before */
    float kernels_ms; /* what own kernels take */
    float fused_ms;   /* what fused graphs take; 0: 1 */
    long ran[DNN_PATTERN_COUNT], timed, of_wrong;
};

static enum fake_wrong err_as_told(void *ctx, const struct gpu_dnn *d)
{
    struct script *s = ctx;
    char *wrong = s->wrong[d->pattern];
    s->ran[d->pattern]++;
    if (!(s->patterns & 1u << d->pattern) || (s->channels && s->channels != d->shape.c))
        return FAKE_RIGHT;
    if (!wrong[0])
        snprintf(wrong, ENGINE_BYTES, "%s", cudnn_plan_choice(d->plan));
    if (!s->every && strcmp(wrong, cudnn_plan_choice(d->plan)) != 0)
        return FAKE_RIGHT;
    s->of_wrong++;
    if (s->restless && s->of_wrong % 3)
        return FAKE_RIGHT;
    if (s->kill)
        raise(SIGKILL);
    return s->how;
}

static float milliseconds(void *ctx, const struct cudnn_plan *last)
{
    struct script *s = ctx;
    s->timed++;
    if (!last)
        return s->kernels_ms;
    return cudnn_pattern_fused(cudnn_plan_pattern(last)) && s->fused_ms > 0 ? s->fused_ms : 1;
}

struct rig {
    struct script script;
    bool untimed, idle, deterministic;
    double tune_seconds;
    enum dtype type;
    enum memory_format format;
    bool tf32;
    struct card c;
};

static void open_rig(struct rig *r, const char *cache)
{
    struct program *p;
    const struct fake_options fake = {
        .idle = r->idle, .wrong = err_as_told, .cudnn_ms = milliseconds, .ctx = &r->script};
    const struct cuda_options o = {
        .graphs = true, .tune = !r->untimed, .tune_seconds = r->tune_seconds, .tf32 = r->tf32, .fused_patterns = true};
    MUST(blocks_build(&p, WIDTH, e));
    card_open(&r->c, p, &fake, &o,
              &(struct cudnn_options){.props_json = card_props, .cache_dir = cache, .deterministic = r->deterministic});
}

static int make(struct rig *r, struct err *e)
{
    return card_plan(&r->c, BATCH, r->type ? r->type : DT_F16, r->format, e);
}

static void close_rig(struct rig *r)
{
    card_close(&r->c);
}

static int count(const struct rig *r, enum cudnn_pattern pattern)
{
    return card_graphs(&r->c, pattern);
}

static bool takes(const struct rig *r, enum cudnn_pattern pattern, const char *choice)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)r->c.plan;
    for (int i = 0; i < pl->nsteps; i++) {
        const struct gpu_dnn *d = &pl->steps[i]->dnn;
        if (pl->steps[i]->kind == STEP_DNN && d->pattern == pattern && !strcmp(cudnn_plan_choice(d->plan), choice))
            return true;
    }
    return false;
}

/* Stem of 3 channels, padded to 4; blocks with strides; a projection of 1 x 1; nothing is said of any engine. */
static void engines_that_are_right_are_taken_in_each_type_and_layout(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        enum memory_format format;
        bool tf32;
    } cases[] = {{DT_F16, MEMORY_NHWC, false},  {DT_BF16, MEMORY_NHWC, false}, {DT_F32, MEMORY_NHWC, false},
                 {DT_F32, MEMORY_NHWC, true},   {DT_F16, MEMORY_NCHW, false},  {DT_F32, MEMORY_NCHW, true},
                 {DT_BF16, MEMORY_NCHW, false}, {DT_F32, MEMORY_NCHW, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r = {.untimed = true, .type = cases[i].type, .format = cases[i].format, .tf32 = cases[i].tf32};
        open_rig(&r, NULL);
        MUST(make(&r, e));
        if (r.c.said[0])
            fail_msg("case %zu: %s", i, r.c.said);
        assert_int_equal(cases[i].type == DT_F16 && cases[i].format == MEMORY_NHWC, count(&r, DNN_SBR_WGRAD) > 0);
        close_rig(&r);
    }
}

static bool makes_sums(enum cudnn_pattern p)
{
    return p == DNN_CONV_STATS || p == DNN_SBR_CONV_STATS || p == DNN_DGRAD_DRELU_BN;
}

/* The heuristics' first engine of every pattern errs, in every way there is. Sums: of those that make some. */
static void an_engine_that_errs_is_found_and_barred(void **state)
{
    (void)state;
    for (int how = FAKE_RIGHT + 1; how <= FAKE_SUM; how++) {
        struct rig r = {.untimed = true, .script = {.patterns = ~0u, .how = how}};
        open_rig(&r, NULL);
        MUST(make(&r, e));
        for (int p = 0; p < DNN_GRAPHS; p++) {
            char says[64];
            snprintf(says, sizeof says, "never taken again: %s: ", cudnn_pattern_name(p));
            if ((how != FAKE_SUM || makes_sums(p)) && r.script.wrong[p][0] &&
                (takes(&r, p, r.script.wrong[p]) || !strstr(r.c.said, says)))
                fail_msg("%s, error %d: said '%s'", cudnn_pattern_name(p), how, r.c.said);
        }
        assert_true(r.script.wrong[DNN_CONV_STATS][0] && r.script.wrong[DNN_SBR_CONV_STATS][0] &&
                    r.script.wrong[DNN_SBR_WGRAD][0] && r.script.wrong[DNN_DGRAD_DRELU_BN][0] &&
                    r.script.wrong[DNN_DGRAD][0] && r.script.wrong[DNN_WGRAD][0]);
        close_rig(&r);
    }
}

/* One bit, now and then: right as far as it goes, and barred where every run is to be the same; what else is told of it
 * lasts. */
static void an_engine_that_gives_other_bits_is_barred_where_all_runs_are_to_be_equal(void **state)
{
    (void)state;
    static const enum fake_wrong ways[] = {FAKE_BIT, FAKE_SUM_BIT};
    log_init(LOG_INFO, ""); /* it is no fault */
    for (int i = 0; i < 4; i++) {
        const bool equal = i % 2;
        struct rig r = {
            .untimed = true, .deterministic = equal, .script = {.patterns = ~0u, .how = ways[i / 2], .restless = true}};
        open_rig(&r, NULL);
        MUST(make(&r, e));
        for (int p = 0; p < DNN_GRAPHS; p++) {
            char says[128];
            snprintf(says, sizeof says, "barred for --deterministic: %s: %s has other bits when it runs again",
                     cudnn_pattern_name(p),
                     i < 2                     ? "its result"
                     : p == DNN_DGRAD_DRELU_BN ? "the gradient of the shift"
                                               : "the sum of squares");
            const bool barred = equal && r.script.wrong[p][0] && (i < 2 || makes_sums(p));
            if (barred != (strstr(r.c.said, says) != NULL) ||
                (r.script.wrong[p][0] && takes(&r, p, r.script.wrong[p]) == barred))
                fail_msg("%s, case %d: said '%s'", cudnn_pattern_name(p), i, r.c.said);
        }
        assert_true(r.script.wrong[DNN_CONV_STATS][0] && r.script.wrong[DNN_DGRAD_DRELU_BN][0] &&
                    r.script.wrong[DNN_WGRAD][0]);
        close_rig(&r);
    }
    log_init(LOG_WARN, "");
}

static void where_every_engine_errs_it_goes_one_rung_down(void **state)
{
    (void)state;
    static const enum cudnn_pattern fused[] = {DNN_CONV_STATS, DNN_SBR_CONV_STATS, DNN_SBR_WGRAD, DNN_DGRAD_DRELU_BN};
    for (int k = 0; k < 4; k++) {
        struct rig r = {.untimed = true, .script = {.patterns = 1u << fused[k], .how = FAKE_SCALED, .every = true}};
        open_rig(&r, NULL);
        MUST(make(&r, e));
        assert_int_equal(0, count(&r, fused[k]));
        assert_non_null(strstr(r.c.said, "one rung down"));
        close_rig(&r);
    }
    struct rig r = {.untimed = true, .script = {.patterns = 1u << DNN_DGRAD, .how = FAKE_SCALED, .every = true}};
    struct err e = {0};
    open_rig(&r, NULL);
    assert_int_equal(ERR_MISMATCH, make(&r, &e));
    if (!strstr(e.text, "none of") || !strstr(e.text, "its result is 0.0"))
        fail_msg("%s", e.text);
    close_rig(&r);
}

/* By the next program through the cache, by a resumed run through its checkpoint, by another rank through rank 0. */
static void a_barred_engine_is_never_tried_again(void **state)
{
    (void)state;
    char cache[256], *text;
    snprintf(cache, sizeof cache, "%s/barred", card_dir);
    struct rig first = {.script = {.patterns = 1u << DNN_WGRAD, .how = FAKE_NO_TAIL}};
    open_rig(&first, cache);
    MUST(make(&first, e));
    MUST(first.c.d->ops->choices(first.c.d, &text, e));
    for (int k = 0; k < 2; k++) {
        struct rig next = {.script = first.script};
        next.script.of_wrong = 0;
        open_rig(&next, k == 0 ? cache : NULL);
        if (k == 1)
            MUST(next.c.d->ops->choose(next.c.d, text, e));
        MUST(make(&next, e));
        assert_int_equal(0, next.script.of_wrong);
        assert_int_equal(0, next.script.timed - first.script.timed); /* nor is anything timed */
        assert_false(takes(&next, DNN_WGRAD, first.script.wrong[DNN_WGRAD]));
        close_rig(&next);
    }
    free(text);
    close_rig(&first);
}

/* A cache, or a list, of engines that were right once: a card that computes otherwise is found out. */
static void what_was_kept_is_proven_again(void **state)
{
    (void)state;
    char cache[256];
    snprintf(cache, sizeof cache, "%s/kept", card_dir);
    struct rig good = {.untimed = false}, bad = {.script = {.patterns = 1u << DNN_SBR_WGRAD, .how = FAKE_COARSE}};
    open_rig(&good, cache);
    MUST(make(&good, e));
    close_rig(&good);
    open_rig(&bad, cache);
    MUST(make(&bad, e));
    assert_non_null(strstr(bad.c.said, "does not run on this GPU any more"));
    assert_false(takes(&bad, DNN_SBR_WGRAD, bad.script.wrong[DNN_SBR_WGRAD]));
    close_rig(&bad);
}

static void make_and_die(const char *cache)
{
    struct rig r = {.idle = true, .script = {.patterns = 1u << DNN_SBR_CONV_STATS, .channels = WIDTH, .kill = true}};
    struct err e;
    open_rig(&r, cache);
    (void)make(&r, &e);
}

static void an_engine_that_ends_the_process_is_barred_by_the_next(void **state)
{
    (void)state;
    char cache[256];
    snprintf(cache, sizeof cache, "%s/ended", card_dir);
    card_dies(make_and_die, cache);

    struct rig r = {
        .idle = true,
        .script = {.fused_ms = 1, .kernels_ms = 100, .patterns = 1u << DNN_SBR_CONV_STATS, .channels = WIDTH}};
    char *barred = r.script.wrong[DNN_SBR_CONV_STATS];
    open_rig(&r, cache);
    assert_non_null(strstr(r.c.said, "is barred: the process that tried it ended meanwhile"));
    const char *at = strstr(r.c.said, "engine {");
    assert_non_null(at);
    snprintf(barred, ENGINE_BYTES, "%.*s", (int)(strstr(at, " for ") - at - 7), at + 7);
    MUST(make(&r, e));
    assert_int_equal(0, r.script.of_wrong);
    assert_true(count(&r, DNN_SBR_CONV_STATS) > 0);
    close_rig(&r);

    struct rig third = {.idle = true, .script = r.script};
    third.script.of_wrong = 0;
    open_rig(&third, cache);
    MUST(make(&third, e));
    assert_int_equal(0, third.script.of_wrong); /* the cache has it by now */
    assert_string_equal("", third.c.said);
    close_rig(&third);
}

/* Every engine is proven, none timed; what is not timed now may be timed by the next program, but not by a resumed
 * run. */
static void without_time_left_the_first_that_is_proven_is_taken(void **state)
{
    (void)state;
    char cache[256], *text;
    snprintf(cache, sizeof cache, "%s/no time", card_dir);
    struct rig r = {.tune_seconds = 1e-9, .idle = true}, next = {.idle = true}, resumed = {.idle = true};
    open_rig(&r, cache);
    MUST(make(&r, e));
    assert_int_equal(0, r.script.timed);
    MUST(r.c.d->ops->choices(r.c.d, &text, e));
    close_rig(&r);
    open_rig(&next, cache);
    MUST(make(&next, e));
    assert_true(next.script.timed > 0);
    close_rig(&next);
    open_rig(&resumed, NULL);
    MUST(resumed.c.d->ops->choose(resumed.c.d, text, e));
    MUST(make(&resumed, e));
    assert_int_equal(0, resumed.script.timed);
    close_rig(&resumed);
    free(text);
}

/* --- fusions by time */

static void a_fusion_that_takes_longer_than_its_parts_is_left_out(void **state)
{
    (void)state;
    char cache[256];
    snprintf(cache, sizeof cache, "%s/seams", card_dir);
    struct rig slow = {.idle = true, .script = {.fused_ms = 20, .kernels_ms = 1}}, next = slow;
    open_rig(&slow, cache);
    MUST(make(&slow, e));
    assert_int_equal(0,
                     count(&slow, DNN_SBR_CONV_STATS) + count(&slow, DNN_SBR_WGRAD) + count(&slow, DNN_DGRAD_DRELU_BN));
    assert_int_equal(0, count(&slow, DNN_CONV_STATS));
    assert_int_equal(6, count(&slow, DNN_CONV));
    close_rig(&slow);
    open_rig(&next, cache); /* the verdicts are kept: nothing is measured again */
    MUST(make(&next, e));
    assert_int_equal(6, count(&next, DNN_CONV));
    assert_int_equal(0, next.script.timed);
    close_rig(&next);
}

static void a_fusion_that_saves_time_stays_and_is_measured_once(void **state)
{
    (void)state;
    char cache[256];
    snprintf(cache, sizeof cache, "%s/worth it", card_dir);
    struct rig fast = {.idle = true, .script = {.fused_ms = 1, .kernels_ms = 1}}, next = fast;
    open_rig(&fast, cache);
    MUST(make(&fast, e));
    assert_int_equal(2, count(&fast, DNN_SBR_CONV_STATS));
    assert_true(count(&fast, DNN_CONV_STATS) > 0);
    close_rig(&fast);
    open_rig(&next, cache);
    MUST(make(&next, e));
    assert_int_equal(2, count(&next, DNN_SBR_CONV_STATS));
    assert_int_equal(0, next.script.timed);
    close_rig(&next);
}

/* Prologues cost more than they save, statistics do not. */
static void each_rung_is_judged_by_itself(void **state)
{
    (void)state;
    struct rig r = {.idle = true, .script = {.fused_ms = 2.5f, .kernels_ms = 2}};
    open_rig(&r, NULL);
    MUST(make(&r, e));
    assert_int_equal(0, count(&r, DNN_SBR_CONV_STATS)); /* 3 x 2.5 + finalise 2 against 2.5 + 2 + 1 ... */
    assert_true(count(&r, DNN_CONV_STATS) > 0);         /* 2.5 against 1 + 2 */
    close_rig(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_that_are_right_are_taken_in_each_type_and_layout),
        cmocka_unit_test(an_engine_that_errs_is_found_and_barred),
        cmocka_unit_test(an_engine_that_gives_other_bits_is_barred_where_all_runs_are_to_be_equal),
        cmocka_unit_test(where_every_engine_errs_it_goes_one_rung_down),
        cmocka_unit_test(a_barred_engine_is_never_tried_again),
        cmocka_unit_test(what_was_kept_is_proven_again),
        cmocka_unit_test(an_engine_that_ends_the_process_is_barred_by_the_next),
        cmocka_unit_test(without_time_left_the_first_that_is_proven_is_taken),
        cmocka_unit_test(a_fusion_that_takes_longer_than_its_parts_is_left_out),
        cmocka_unit_test(a_fusion_that_saves_time_stays_and_is_measured_once),
        cmocka_unit_test(each_rung_is_judged_by_itself),
    };
    return card_main(argc, argv, "proven engines", tests, sizeof tests / sizeof *tests);
}
