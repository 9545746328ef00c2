/* Matrix products have engines, too: algorithms of a cuBLASLt that is not there, and a script that says which of them
 * computes something else, which takes the process with it, and which is fast. What is chosen and barred is kept in the
 * cache, a checkpoint and rank 0's list.
 *
 * usage: test_product_engines PROPERTIES.json */
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
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

enum { BATCH = 2, WIDTH = 8 };

struct script {
    const char *wrong; /* the algorithm that errs, NULL: none; "": every one */
    unsigned patterns; /* of these products, by bits; 0: of all */
    enum fake_wrong how;
    bool restless, kill; /* it errs in every second run alone; it ends the process instead */
    const char *fast;    /* takes 1 ms, the others 2; NULL: the fourth */
    int ran, timed, of_wrong;
};

static enum fake_wrong err_as_told(void *ctx, const struct gpu_dnn *d)
{
    struct script *s = ctx;
    if (!cudnn_pattern_product(d->pattern))
        return FAKE_RIGHT;
    s->ran++;
    if (!s->wrong || (s->patterns && !(s->patterns & 1u << d->pattern)) ||
        (*s->wrong && strcmp(s->wrong, cudnn_plan_name(d->plan)) != 0))
        return FAKE_RIGHT;
    if (s->kill)
        raise(SIGKILL);
    return s->restless && ++s->of_wrong % 2 ? FAKE_RIGHT : s->how;
}

static float milliseconds(void *ctx, const struct cudnn_plan *last)
{
    struct script *s = ctx;
    if (!last || !cudnn_pattern_product(cudnn_plan_pattern(last)))
        return 1;
    s->timed++;
    return strcmp(cudnn_plan_name(last), s->fast ? s->fast : "fake3") == 0 ? 1 : 2;
}

struct rig {
    struct script script;
    bool untimed, idle, deterministic, tf32;
    double tune_seconds;
    enum dtype type;
    struct card c;
};

static void open_rig(struct rig *r, const char *cache)
{
    struct program *p;
    const struct fake_options fake = {
        .idle = r->idle, .wrong = err_as_told, .cudnn_ms = milliseconds, .ctx = &r->script};
    const struct cuda_options o = {.graphs = true,
                                   .tune = !r->untimed && !r->deterministic,
                                   .tune_seconds = r->tune_seconds,
                                   .tf32 = r->tf32,
                                   .fused_patterns = true};
    MUST(bottlenecks_build(&p, WIDTH, e));
    card_open(&r->c, p, &fake, &o,
              &(struct cudnn_options){.props_json = card_props, .cache_dir = cache, .deterministic = r->deterministic});
}

static void make(struct rig *r)
{
    MUST(card_plan(&r->c, BATCH, r->type ? r->type : DT_F16, MEMORY_NHWC, e));
}

static void close_rig(struct rig *r)
{
    card_close(&r->c);
}

/* How many products of this pattern (DNN_PATTERN_COUNT: all) run by this algorithm; NULL: by none in particular. */
static int by(const struct rig *r, enum cudnn_pattern pattern, const char *name)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)r->c.plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++) {
        struct gpu_dnn d;
        const struct step *s = pl->steps[i];
        if (s->kind != STEP_GEMM)
            continue;
        assert_true(graph_of_gemm(&s->gemm, &d));
        if (pattern == DNN_PATTERN_COUNT || pattern == d.pattern)
            n += name ? d.plan && !strcmp(cudnn_plan_name(d.plan), name) : !d.plan;
    }
    return n;
}

static int products(const struct rig *r)
{
    int n = by(r, DNN_PATTERN_COUNT, NULL);
    for (int i = 0; i < FAKE_ALGOS; i++) {
        char name[16];
        snprintf(name, sizeof name, "fake%d", i);
        n += by(r, DNN_PATTERN_COUNT, name);
    }
    return n;
}

static void the_fastest_of_those_that_are_right_is_taken(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        bool tf32;
    } cases[] = {{DT_F16, false}, {DT_BF16, false}, {DT_F32, false}, {DT_F32, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r = {.type = cases[i].type, .tf32 = cases[i].tf32};
        open_rig(&r, NULL);
        make(&r);
        if (r.c.said[0])
            fail_msg("case %zu: %s", i, r.c.said);
        assert_true(by(&r, DNN_PRODUCT, "fake3") == 1 && by(&r, DNN_PRODUCT_WEIGHT, "fake3") == 1);
        assert_true(by(&r, DNN_PRODUCT_DATA, "fake3") >= (r.type == DT_F32 ? 1 : 2)); /* halves: onto a shortcut */
        assert_int_equal(products(&r), by(&r, DNN_PATTERN_COUNT, "fake3"));
        MUST(card_run(&r.c, e));
        close_rig(&r);
    }
}

/* Products of layers read parameters and write gradients where those lie: not so while they are tried. */
static void arenas_are_left_alone(void **state)
{
    (void)state;
    struct rig r = {.type = DT_F32};
    open_rig(&r, NULL);
    const struct program *p = r.c.p;
    const size_t n[] = {p->n_train, p->n_train};
    float *const at[] = {r.c.at.params, r.c.at.reduce};
    float *before[2];
    memset(at[1], 0x11, n[1] * sizeof(float));
    for (int i = 0; i < 2; i++) {
        before[i] = malloc(n[i] * sizeof(float));
        memcpy(before[i], at[i], n[i] * sizeof(float));
    }
    make(&r);
    fake_gpu_wait(r.c.gpu, NULL);
    assert_true(r.script.ran > 0);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(before[i], at[i], n[i] * sizeof(float));
        free(before[i]);
    }
    close_rig(&r);
}

static void an_algorithm_that_errs_is_found_and_barred(void **state)
{
    (void)state;
    static const enum cudnn_pattern each[] = {DNN_PRODUCT, DNN_PRODUCT_DATA, DNN_PRODUCT_WEIGHT};
    for (int how = FAKE_RIGHT + 1; how <= FAKE_INFINITE; how++) {
        struct rig r = {.script = {.wrong = "fake3", .how = how}};
        open_rig(&r, NULL);
        make(&r);
        for (int i = 0; i < 3; i++) {
            char says[64];
            snprintf(says, sizeof says, "fake3 is wrong and never taken again: %s: ", cudnn_pattern_name(each[i]));
            if (!strstr(r.c.said, says) || by(&r, each[i], "fake3") || by(&r, each[i], NULL))
                fail_msg("error %d, %s: said '%s'", how, cudnn_pattern_name(each[i]), r.c.said);
        }
        close_rig(&r);
    }
}

static void where_every_one_errs_the_library_has_its_way(void **state)
{
    (void)state;
    char *text;
    struct rig r = {.script = {.wrong = "", .how = FAKE_SCALED, .patterns = 1u << DNN_PRODUCT_DATA}};
    open_rig(&r, NULL);
    make(&r);
    assert_non_null(strstr(r.c.said, "take what cuBLASLt names first"));
    assert_int_equal(by(&r, DNN_PRODUCT_DATA, NULL), products(&r) - 2);
    assert_int_equal(1, by(&r, DNN_PRODUCT, "fake3"));
    MUST(card_run(&r.c, e));
    MUST(r.c.d->ops->choices(r.c.d, &text, e));
    close_rig(&r);

    struct rig next = {0}; /* another rank, or a resumed run */
    open_rig(&next, NULL);
    MUST(next.c.d->ops->choose(next.c.d, text, e));
    make(&next);
    assert_int_equal(by(&next, DNN_PRODUCT_DATA, NULL), products(&next) - 2);
    assert_int_equal(0, next.script.timed);
    close_rig(&next);
    free(text);
}

static void equal_bits_are_asked_of_products(void **state)
{
    (void)state;
    log_init(LOG_INFO, ""); /* it is no fault */
    struct rig r = {.deterministic = true, .script = {.wrong = "fake0", .how = FAKE_BIT, .restless = true}};
    open_rig(&r, NULL);
    make(&r);
    log_init(LOG_WARN, "");
    assert_non_null(strstr(r.c.said, "fake0 is barred for --deterministic: product: its result has other bits"));
    assert_int_equal(0, r.script.timed);
    assert_int_equal(products(&r), by(&r, DNN_PATTERN_COUNT, "fake2")); /* fake1 leaves an order to chance */
    close_rig(&r);
}

/* As before there was anything to choose from; a resumed run that may tune keeps to it. */
static void where_nothing_is_tuned_the_first_is_taken_unseen(void **state)
{
    (void)state;
    char *text;
    struct rig r = {.untimed = true}, resumed = {.idle = true};
    open_rig(&r, NULL);
    make(&r);
    assert_int_equal(0, r.script.ran);
    assert_int_equal(products(&r), by(&r, DNN_PATTERN_COUNT, "fake0"));
    MUST(r.c.d->ops->choices(r.c.d, &text, e));
    close_rig(&r);
    open_rig(&resumed, NULL);
    MUST(resumed.c.d->ops->choose(resumed.c.d, text, e));
    make(&resumed);
    assert_int_equal(0, resumed.script.timed);
    assert_int_equal(products(&resumed), by(&resumed, DNN_PATTERN_COUNT, "fake0"));
    close_rig(&resumed);
    free(text);
}

static void without_time_left_the_first_that_is_proven_is_taken(void **state)
{
    (void)state;
    struct rig r = {.tune_seconds = 1e-9, .script = {.wrong = "fake0", .how = FAKE_COARSE}};
    open_rig(&r, NULL);
    make(&r);
    assert_int_equal(0, r.script.timed);
    assert_int_equal(products(&r), by(&r, DNN_PATTERN_COUNT, "fake1"));
    close_rig(&r);
}

/* By the cache, by a checkpoint, by rank 0's list: the same, and nothing is timed; but proven. */
static void what_was_chosen_comes_back(void **state)
{
    (void)state;
    char cache[256], *text;
    snprintf(cache, sizeof cache, "%s/chosen", card_dir);
    struct rig first = {.script = {.wrong = "fake3", .how = FAKE_NO_TAIL, .fast = "fake2"}};
    open_rig(&first, cache);
    make(&first);
    assert_int_equal(products(&first), by(&first, DNN_PATTERN_COUNT, "fake2"));
    MUST(first.c.d->ops->choices(first.c.d, &text, e));
    for (int k = 0; k < 2; k++) {
        struct rig next = {.script = {.wrong = "fake3", .how = FAKE_NO_TAIL}};
        open_rig(&next, k == 0 ? cache : NULL);
        if (k == 1)
            MUST(next.c.d->ops->choose(next.c.d, text, e));
        make(&next);
        assert_int_equal(products(&next), by(&next, DNN_PATTERN_COUNT, "fake2"));
        assert_int_equal(0, next.script.timed);
        assert_true(next.script.ran > 0);
        assert_string_equal("", next.c.said);
        close_rig(&next);
    }
    struct rig bad = {.script = {.wrong = "fake2", .how = FAKE_CHANNEL}};
    open_rig(&bad, cache);
    make(&bad);
    assert_non_null(strstr(bad.c.said, "fake2 does not run on this GPU any more"));
    assert_int_equal(0, by(&bad, DNN_PATTERN_COUNT, "fake2") + by(&bad, DNN_PATTERN_COUNT, "fake3"));
    close_rig(&bad);
    free(text);
    close_rig(&first);
}

static void make_and_die(const char *cache)
{
    struct rig r = {.idle = true, .script = {.wrong = "fake1", .patterns = 1u << DNN_PRODUCT, .kill = true}};
    open_rig(&r, cache);
    make(&r);
}

static void one_that_ends_the_process_is_barred_by_the_next(void **state)
{
    (void)state;
    char cache[256];
    snprintf(cache, sizeof cache, "%s/ended", card_dir);
    card_dies(make_and_die, cache);
    for (int k = 0; k < 2; k++) {
        struct rig r = {.idle = true, .script = {.fast = "fake1"}};
        open_rig(&r, cache);
        if (k == 0 && (!strstr(r.c.said, "\"name\":\"fake1\"") || !strstr(r.c.said, "for product n2 ") ||
                       !strstr(r.c.said, "is barred: the process that tried it ended meanwhile")))
            fail_msg("%s", r.c.said);
        make(&r);
        assert_int_equal(0, by(&r, DNN_PRODUCT, "fake1"));
        assert_int_equal(products(&r) - 1, by(&r, DNN_PATTERN_COUNT, "fake1"));
        close_rig(&r);
    }
}

/* `text` with all numbers behind "cublaslt" one higher. */
static char *of_another_library(const char *text)
{
    static const char key[] = "\"cublaslt\":";
    char *out = strdup(text);
    for (char *at = out; (at = strstr(at, key)); at += strlen(key))
        at[strlen(key)] = (char)(at[strlen(key)] == '9' ? '8' : at[strlen(key)] + 1);
    return out;
}

static void what_cannot_be_had_here_is_told_of(void **state)
{
    (void)state;
    char *text;
    struct rig r = {.idle = true, .script = {.fast = "fake1"}};
    open_rig(&r, NULL);
    make(&r);
    MUST(r.c.d->ops->choices(r.c.d, &text, e));
    close_rig(&r);
    char *other = of_another_library(text);
    assert_string_not_equal(text, other);
    for (int k = 0; k < 2; k++) {
        struct err e = {0};
        struct rig next = {.idle = true, .deterministic = k == 1};
        open_rig(&next, NULL);
        assert_true(next.c.d->ops->choose(next.c.d, k == 0 ? other : text, &e) < 0);
        if (!strstr(e.text, k == 0 ? "was chosen with cuBLASLt" : "deterministic"))
            fail_msg("%s", e.text);
        make(&next);
        assert_int_equal(0, by(&next, DNN_PATTERN_COUNT, "fake1"));
        close_rig(&next);
    }
    free(other);
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_of_those_that_are_right_is_taken),
        cmocka_unit_test(arenas_are_left_alone),
        cmocka_unit_test(an_algorithm_that_errs_is_found_and_barred),
        cmocka_unit_test(where_every_one_errs_the_library_has_its_way),
        cmocka_unit_test(equal_bits_are_asked_of_products),
        cmocka_unit_test(where_nothing_is_tuned_the_first_is_taken_unseen),
        cmocka_unit_test(without_time_left_the_first_that_is_proven_is_taken),
        cmocka_unit_test(what_was_chosen_comes_back),
        cmocka_unit_test(one_that_ends_the_process_is_barred_by_the_next),
        cmocka_unit_test(what_cannot_be_had_here_is_told_of),
    };
    return card_main(argc, argv, "engines of products", tests, sizeof tests / sizeof *tests);
}
