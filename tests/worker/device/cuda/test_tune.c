/* Timing of candidates on a GPU that is not there: cuDNN's own plans, and a script that says how long each takes and
 * which do not run.
 *
 * usage: test_tune PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/card.h"
#include "worker/device/cuda/plan.h"

enum { BATCH = 4, SIZE = 16, CLASSES = 5, SEEN = 256 };

/* What the GPU was asked to time. The later a candidate comes, the faster it is, so that the heuristics' first never
 * wins. */
struct script {
    bool reverse; /* the first is the fastest */
    int spent_at; /* the budget is spent while this candidate runs; 0: it is not */
    int stop_at;  /* likewise: the process is to stop */
    struct cuda *of;
    int refuse; /* the error of every second candidate, 0: all run */
    bool refuse_all;
    const struct cudnn_plan *seen[SEEN];
    int nseen, timed;
};

static int place(struct script *s, const struct cudnn_plan *p)
{
    for (int i = 0; i < s->nseen; i++)
        if (s->seen[i] == p)
            return i;
    assert_true(s->nseen < SEEN);
    s->seen[s->nseen] = p;
    return s->nseen++;
}

static bool stopping;

static bool is_stopping(void)
{
    return stopping;
}

static int answer(void *ctx, const struct gpu_dnn *d)
{
    struct script *s = ctx;
    const int i = place(s, d->plan);
    if (s->spent_at && i == s->spent_at)
        s->of->tuned_ns = INT64_MAX / 2;
    stopping = stopping || (s->stop_at && i == s->stop_at);
    return s->refuse && (s->refuse_all || i % 2) ? s->refuse : 0;
}

static float milliseconds(void *ctx, const struct cudnn_plan *last)
{
    struct script *s = ctx;
    s->timed++;
    const float rank = 0.25f * (float)place(s, last);
    return s->reverse ? 1.0f + rank : 100.0f - rank;
}

struct rig {
    struct script script;
    struct card c;
    bool deterministic;
    enum memory_format format;
};

static struct program *small(void)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("small", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_relu(p, "relu", program_conv(p, "a", program_input(p), 8, 3, 1, 1, false));
    x = program_conv(p, "b", x, 8, 3, 1, 1, false);
    x = program_conv(p, "c", x, 8, 3, 1, 1, false); /* the graph of b once more */
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), CLASSES));
    MUST(program_differentiate(p, e));
    return p;
}

static void open_rig(struct rig *r, const char *cache, size_t memory)
{
    const struct fake_options fake = {
        .memory = memory, .idle = true, .dnn = answer, .cudnn_ms = milliseconds, .ctx = &r->script};
    const struct device_options all = {.gpu = {.tune = true, .deterministic = r->deterministic, .cache_dir = cache}};
    struct cuda_options o;
    struct cudnn_options of_dnn;
    cuda_options_from(&all, &o, &of_dnn);
    of_dnn.props_json = card_props;
    o.stopping = is_stopping;
    stopping = false;
    card_open(&r->c, small(), &fake, &o, &of_dnn);
    r->script.of = (struct cuda *)r->c.d;
    if (r->script.spent_at)
        r->script.of->options.tune_seconds = 3600;
}

/* The caller's, who closes it. */
static int make(struct rig *r, struct plan **ret, struct err *e)
{
    const int rc = card_plan(&r->c, BATCH, DT_F16, r->format, e);
    *ret = r->c.plan;
    r->c.plan = NULL;
    return rc;
}

static void close_rig(struct rig *r)
{
    card_close(&r->c);
}

static bool same_graph(const struct gpu_dnn *a, const struct cudnn_plan *p, struct rig *r)
{
    struct cudnn_plan *found;
    struct cudnn *dnn = ((struct cuda *)r->c.d)->dnn;
    MUST(cudnn_find(dnn, a->pattern, &a->shape, &found, e));
    return found == p;
}

/* Every convolution's plan was measured, and is the last candidate of its graph that ran. */
static void check_fastest(struct rig *r, const struct plan *plan)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++) {
        const struct gpu_dnn *d = &pl->steps[i]->dnn;
        if (pl->steps[i]->kind != STEP_DNN)
            continue;
        n++;
        assert_true(cudnn_plan_measured(d->plan));
        assert_true(same_graph(d, d->plan, r));
        assert_true(pl->workspace_bytes >= cudnn_plan_workspace(d->plan));
        /* who was seen right after the winner belongs to the next graph, or was refused */
        const int at = place(&r->script, d->plan);
        if (r->script.refuse)
            assert_int_equal(0, at % 2);
        for (int k = at + 1; k < r->script.nseen; k++)
            if (!(r->script.refuse && k % 2) && cudnn_plan_pattern(r->script.seen[k]) == d->pattern)
                assert_false(same_graph(d, r->script.seen[k], r));
    }
    assert_int_equal(8, n); /* three forward, three of weights, two of data */
}

static void the_fastest_candidate_is_chosen_and_kept(void **state)
{
    struct rig r = {0};
    struct plan *first, *second;
    open_rig(&r, NULL, 0);
    MUST(make(&r, &first, e));
    check_fastest(&r, first);
    const int timed = r.script.timed;
    assert_true(timed > 5); /* five graphs, more than one candidate in all */
    MUST(make(&r, &second, e));
    assert_int_equal(timed, r.script.timed);
    const struct cuda_plan *a = (const struct cuda_plan *)first, *b = (const struct cuda_plan *)second;
    assert_int_equal(a->nsteps, b->nsteps);
    for (int i = 0; i < a->nsteps; i++)
        assert_ptr_equal(a->steps[i]->dnn.plan, b->steps[i]->dnn.plan);
    r.c.d->ops->plan_close(first);
    r.c.d->ops->plan_close(second);
    close_rig(&r);
    (void)state;
}

static void winner_of(const struct plan *plan, char *out, size_t cap)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < pl->nsteps; i++)
        if (pl->steps[i]->kind == STEP_DNN)
            used += (size_t)snprintf(out + used, cap - used, "%s\n", cudnn_plan_choice(pl->steps[i]->dnn.plan));
    assert_true(used < cap);
}

/* The next program on this machine finds them in the cache; a resumed run in its checkpoint. Neither times anything. */
static void what_was_chosen_comes_back(void **state)
{
    static char before[8192], after[8192];
    struct rig r = {0}, cached = {0}, resumed = {0};
    struct plan *plan;
    char *text;
    open_rig(&r, card_dir, 0);
    MUST(make(&r, &plan, e));
    winner_of(plan, before, sizeof before);
    MUST(r.c.d->ops->choices(r.c.d, &text, e));
    r.c.d->ops->plan_close(plan);
    close_rig(&r);

    open_rig(&cached, card_dir, 0);
    MUST(make(&cached, &plan, e));
    winner_of(plan, after, sizeof after);
    assert_string_equal(before, after);
    assert_int_equal(0, cached.script.timed);
    cached.c.d->ops->plan_close(plan);
    close_rig(&cached);

    open_rig(&resumed, NULL, 0);
    MUST(resumed.c.d->ops->choose(resumed.c.d, text, e));
    MUST(make(&resumed, &plan, e));
    winner_of(plan, after, sizeof after);
    assert_string_equal(before, after);
    assert_int_equal(0, resumed.script.timed);
    resumed.c.d->ops->plan_close(plan);
    close_rig(&resumed);
    free(text);
    (void)state;
}

/* Clocks that disagree: equal runs choose equal engines all the same. */
static void deterministic_runs_time_nothing(void **state)
{
    static char winners[2][8192];
    for (int i = 0; i < 2; i++) {
        struct rig r = {.deterministic = true, .script = {.reverse = i}};
        struct plan *plan;
        open_rig(&r, NULL, 0);
        MUST(make(&r, &plan, e));
        winner_of(plan, winners[i], sizeof winners[i]);
        assert_int_equal(0, r.script.timed);
        r.c.d->ops->plan_close(plan);
        close_rig(&r);
    }
    assert_string_equal(winners[0], winners[1]);
    (void)state;
}

/* What the log says of a plan's engines. */
static void engines_of(struct rig *r, char out[64])
{
    static const char says[] = "the plan runs 11 graphs, by engines ";
    struct plan *plan;
    log_init(LOG_INFO, "");
    open_rig(r, NULL, 0);
    MUST(make(r, &plan, e));
    log_init(LOG_WARN, "");
    const char *at = strstr(r->c.said, says);
    if (!at)
        fail_msg("%s", r->c.said);
    snprintf(out, 64, "%.16s", at + strlen(says));
    assert_int_equal(16, strspn(out, "0123456789abcdef"));
    r->c.d->ops->plan_close(plan);
    close_rig(r);
}

static void the_log_tells_plans_of_other_engines_apart(void **state)
{
    (void)state;
    char first[64], same[64], fastest[64];
    engines_of(&(struct rig){.deterministic = true}, first);
    engines_of(&(struct rig){.deterministic = true, .script = {.reverse = true}}, same);
    engines_of(&(struct rig){.deterministic = false}, fastest);
    assert_string_equal(first, same);
    assert_string_not_equal(first, fastest);
}

/* The second candidate of the first graph runs when the time is up, or the process is to stop: it was not timed, and
 * the first, which was, is taken. Nothing more is timed, and what was not is counted. */
static void an_engine_that_was_not_timed_does_not_win(void **state)
{
    for (int stop = 0; stop < 2; stop++) {
        struct rig r = {.script = {.spent_at = !stop, .stop_at = stop}};
        struct plan *plan;
        log_init(LOG_WARN, "");
        open_rig(&r, NULL, 0);
        r.script.of->tell_ms = -1; /* each graph */
        MUST(make(&r, &plan, e));
        const struct gpu_dnn *first = NULL;
        for (int i = 0; !first && i < ((struct cuda_plan *)plan)->nsteps; i++)
            if (((struct cuda_plan *)plan)->steps[i]->kind == STEP_DNN)
                first = &((struct cuda_plan *)plan)->steps[i]->dnn;
        assert_non_null(first);
        assert_ptr_equal(first->plan, r.script.seen[0]);
        assert_true(cudnn_plan_measured(first->plan));
        assert_int_equal(r.script.timed, 1);
        if (!strstr(r.c.said, "tuning 1 of 11 graphs") || !strstr(r.c.said, "tuned 11 of 11 graphs") ||
            !strstr(r.c.said, "0 barred in these trials, 7 graphs not timed"))
            fail_msg("%s", r.c.said);
        r.c.d->ops->plan_close(plan);
        close_rig(&r);
    }
    (void)state;
}

static void candidates_that_do_not_run_are_passed_over(void **state)
{
    static const int errors[] = {-ENOTSUP, -ENOMEM};
    for (int i = 0; i < 2; i++) {
        struct rig r = {.script = {.refuse = errors[i]}};
        struct plan *plan;
        open_rig(&r, NULL, 0);
        MUST(make(&r, &plan, e));
        check_fastest(&r, plan);
        r.c.d->ops->plan_close(plan);
        close_rig(&r);
    }
    (void)state;
}

static void errors_of_the_card_end_the_search(void **state)
{
    static const struct {
        int code;
        const char *want;
    } cases[] = {{-ENOTSUP, "runs on this GPU"}, {-EIO, "as the test wants it"}};
    for (int i = 0; i < 2; i++) {
        struct rig r = {.script = {.refuse = cases[i].code, .refuse_all = true}};
        struct plan *plan;
        struct err e = {0};
        open_rig(&r, NULL, 0);
        assert_int_equal(cases[i].code, make(&r, &plan, &e));
        if (!strstr(e.text, cases[i].want))
            fail_msg("%s", e.text);
        close_rig(&r);
    }
    (void)state;
}

/* Where memory is short, candidates with much workspace are not tried: with a little more memory than the untuned plan
 * takes there is a plan. */
static void workspace_that_does_not_fit_is_passed_over(void **state)
{
    struct rig r = {0};
    struct plan *plan;
    open_rig(&r, NULL, 0);
    const size_t before = fake_gpu_counts(r.c.gpu)->bytes;
    MUST(make(&r, &plan, e));
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    const size_t whole = fake_gpu_counts(r.c.gpu)->bytes, bare = whole - pl->workspace_bytes;
    const int all = r.script.timed;
    r.c.d->ops->plan_close(plan);
    assert_int_equal(before, fake_gpu_counts(r.c.gpu)->bytes);
    close_rig(&r);

    size_t most = 0;
    int greedy = 0;
    struct rig wide = {0};
    open_rig(&wide, NULL, 0);
    MUST(make(&wide, &plan, e));
    for (int i = 0; i < wide.script.nseen; i++) {
        const size_t n = cudnn_plan_workspace(wide.script.seen[i]);
        greedy += n > PLAN_GEMM_WORKSPACE;
        most = n > most ? n : most;
    }
    wide.c.d->ops->plan_close(plan);
    close_rig(&wide);
    print_message("# %d candidates timed, largest workspace %zu KiB, %d above that of products\n", all, most >> 10,
                  greedy);
    assert_true(most > 0);

    struct rig tight = {0};
    struct err e = {0};
    open_rig(&tight, NULL, bare + most - 1);
    const int rc =
        make(&tight, &plan, &e); /* products may want more than is there after the tuning: that is told of, too */
    assert_true(rc == 0 || rc == -ENOMEM);
    assert_true(tight.script.timed > 0);
    assert_true(tight.script.timed < all);
    for (int i = 0; i < tight.script.nseen; i++)
        assert_true(cudnn_plan_workspace(tight.script.seen[i]) < most);
    if (rc == 0)
        tight.c.d->ops->plan_close(plan);
    close_rig(&tight);
    (void)state;
}

/* No candidate of a plain convolution fits (halves in planes are turned around first, all need some): no less is said
 * than where the plan itself does not. */
static void a_workspace_that_never_fits_is_said_of_the_whole_plan(void **state)
{
    struct rig r = {.format = MEMORY_NCHW}, tight = {.format = MEMORY_NCHW};
    struct plan *plan;
    struct err why = {0};
    open_rig(&r, NULL, 0);
    MUST(make(&r, &plan, e));
    const size_t bare = fake_gpu_counts(r.c.gpu)->bytes - ((const struct cuda_plan *)plan)->workspace_bytes;
    r.c.d->ops->plan_close(plan);
    close_rig(&r);

    open_rig(&tight, NULL, bare);
    assert_int_equal(-ENOMEM, make(&tight, &plan, &why));
    if (!strstr(why.text, "(largest: ") || !strstr(why.text, "samples would fit"))
        fail_msg("%s", why.text);
    close_rig(&tight);
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_candidate_is_chosen_and_kept),
        cmocka_unit_test(what_was_chosen_comes_back),
        cmocka_unit_test(deterministic_runs_time_nothing),
        cmocka_unit_test(the_log_tells_plans_of_other_engines_apart),
        cmocka_unit_test(an_engine_that_was_not_timed_does_not_win),
        cmocka_unit_test(candidates_that_do_not_run_are_passed_over),
        cmocka_unit_test(errors_of_the_card_end_the_search),
        cmocka_unit_test(workspace_that_does_not_fit_is_passed_over),
        cmocka_unit_test(a_workspace_that_never_fits_is_said_of_the_whole_plan),
    };
    return card_main(argc, argv, "tuning", tests, sizeof tests / sizeof *tests);
}
