/* Small language models as they are shipped, GPT-2 (tied head) and Llama, on the device under test: against ref, and
 * against themselves where fusing, accumulating, parts of the model or parameters that come and go must change
 * nothing. */
#include "tests/conformance/device_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/model/model.h"
#include "worker/program/stages.h"

enum { N = 3, LENGTH = 24, VOCABULARY = 301, ROWS = N * LENGTH };

static const char *const archs[] = {"gpt2", "tinyllama"};
enum { ARCHS = sizeof archs / sizeof *archs };

/* rows of its table of positions: 40, more than there are positions. */
static struct program *build(const char *arch)
{
    static const char sets[] = "set width=32 layers=2 heads=4 context=40 vocabulary=301\n",
                      llama[] = "set kv_heads=2 mlp=48\n";
    struct program *p;
    char *shipped, text[8192];
    MUST(model_text(&shipped, arch, NET_TORCH, false, e));
    snprintf(text, sizeof text, "%s%s%s", shipped, sets, strcmp(arch, "gpt2") ? llama : "");
    free(shipped);
    const struct model_options o = {
        .arch = arch, .text = text, .input = {.rows = INPUT_TOKENS, .length = LENGTH, .vocabulary = VOCABULARY}};
    MUST(model_build(&p, &o, e));
    return p;
}

struct text {
    struct batch b;
    int32_t tokens[ROWS], labels[ROWS];
    float weights[N];
    uint32_t numbers[N];
};

/* Some tokens come often, most never; some positions do not count, and the last sample may not. */
static void text_make(struct text *t, bool all)
{
    for (int i = 0; i < ROWS; i++) {
        t->tokens[i] = i % 5 == 2 ? 7 : (i * i / 3) % VOCABULARY;
        t->labels[i] = i % 11 == 4 ? -1 : (7 * i) % VOCABULARY;
    }
    for (int i = 0; i < N; i++) {
        t->weights[i] = all || i < N - 1;
        t->numbers[i] = (uint32_t)i;
    }
    t->b = (struct batch){t->tokens, t->labels, t->weights, t->numbers};
}

static double *reduce_of(const struct side *s)
{
    double *v = malloc(sizeof(*v) * s->p->n_reduce);
    arena_get(s, s->reduce, 0, v, s->p->n_reduce);
    return v;
}

/* Gradients and metrics of the first step. */
static double *first_step(const char *device, const struct program *p, const struct mode *m, const struct text *t,
                          bool keep_all)
{
    struct side s;
    side_open(&s, device, p, m, N, true, keep_all, 2);
    side_initialise(&s, 3);
    side_run(&s, &t->b, 1, false, 1, NULL);
    double *r = reduce_of(&s);
    side_close(&s);
    return r;
}

static void expect_equal(const struct program *p, const char *what, const double *a, const double *b)
{
    for (size_t i = 0; i < p->n_reduce; i++)
        if (a[i] != b[i])
            fail_msg("%s of %s: sum %zu is %.9g, and %.9g", what, p->arch, i, a[i], b[i]);
}

/* As ref has them, of single precision within what sums of it lose, of halves within some of their units in the last
 * place, as each value of a layer may fall to either side. */
static void gradients_match_ref(void **state)
{
    const struct mode *m = *state;
    struct mode of_ref = m->compute == DT_F32 ? mode_f64 : *m;
    const double bound = m->compute == DT_BF16 ? 8 * 0x1p-8 : m->compute == DT_F16 ? 8 * 0x1p-11 : 1e-5;
    struct text t;
    of_ref.emulate = of_ref.compute != DT_F64;
    text_make(&t, false);
    for (int i = 0; i < ARCHS; i++) {
        struct program *p = build(archs[i]);
        const size_t at = p->n_train + p->n_stats;
        double *want = first_step("ref", p, &of_ref, &t, false), *got = first_step(rig_device, p, m, &t, false);
        const double apart = relative_distance(got, want, p->n_train);
        print_message("# %s in %s: gradients differ by %.2g (bound %.2g), the loss by %.2g\n", p->arch, m->name, apart,
                      bound, relative_distance(got + at, want + at, 1));
        assert_true(apart <= bound && relative_distance(got + at, want + at, 1) <= bound);
        assert_true(got[at + METRIC_COUNT] == want[at + METRIC_COUNT] && got[at + METRIC_COUNT] > 40);
        for (int k = 0; k < p->nparams; k++) { /* each by itself: small ones, too */
            const struct param *q = &p->params[k];
            const double d = relative_distance(got + q->offset, want + q->offset, q->count);
            if (!(d <= 8 * bound))
                fail_msg("%s of %s differs by %.2g", q->name, p->arch, d);
        }
        free(want);
        free(got);
        program_destroy(p);
    }
}

static void fusing_and_running_again_change_no_bit(void **state)
{
    const struct mode *m = *state;
    struct text t;
    text_make(&t, true);
    for (int i = 0; i < ARCHS; i++) {
        struct program *p = build(archs[i]);
        double *fused = first_step(rig_device, p, m, &t, false), *plain = first_step(rig_device, p, m, &t, true),
               *again = first_step(rig_device, p, m, &t, false);
        expect_equal(p, "fusing", fused, plain);
        expect_equal(p, "running again", fused, again);
        free(fused);
        free(plain);
        free(again);
        program_destroy(p);
    }
}

/* Whatever stands there. */
static void samples_of_weight_0_count_nowhere(void **state)
{
    struct text t;
    (void)state;
    for (int i = 0; i < ARCHS; i++) {
        struct program *p = build(archs[i]);
        text_make(&t, false);
        double *a = first_step(rig_device, p, &mode_f32, &t, false);
        for (int k = ROWS - LENGTH; k < ROWS; k++)
            t.labels[k] = -7;
        double *b = first_step(rig_device, p, &mode_f32, &t, false);
        expect_equal(p, "other labels", a, b);
        free(a);
        free(b);
        program_destroy(p);
    }
}

static void accumulating_doubles_every_sum(void **state)
{
    struct text t;
    (void)state;
    text_make(&t, false);
    for (int i = 0; i < ARCHS; i++) {
        struct program *p = build(archs[i]);
        struct side s;
        side_open(&s, rig_device, p, &mode_f32, N, true, false, 2);
        side_initialise(&s, 3);
        side_run(&s, &t.b, 1, false, 1, NULL);
        double *once = reduce_of(&s);
        side_run(&s, &t.b, 1, true, 1, NULL);
        double *twice = reduce_of(&s);
        for (size_t k = 0; k < p->n_reduce; k++)
            once[k] *= 2;
        assert_true(relative_distance(twice, once, p->n_train) <= 1e-6);
        for (size_t k = p->n_train; k < p->n_reduce; k++)
            assert_true(twice[k] == once[k]);
        free(once);
        free(twice);
        side_close(&s);
        program_destroy(p);
    }
}

/* The head makes them forward there, and on the way back in training. */
static void an_evaluation_has_the_metrics_of_training(void **state)
{
    struct text t;
    (void)state;
    text_make(&t, false);
    for (int i = 0; i < ARCHS; i++) {
        struct program *p = build(archs[i]);
        const size_t at = p->n_train + p->n_stats;
        struct side s;
        double *train = first_step(rig_device, p, &mode_f32, &t, false);
        side_open(&s, rig_device, p, &mode_f32, N, false, false, 2);
        side_initialise(&s, 3);
        side_run(&s, &t.b, 1, false, 1, NULL);
        double *eval = reduce_of(&s);
        assert_memory_equal(eval + at, train + at, METRIC_N * sizeof *eval);
        assert_true(eval[at + METRIC_LOSS] > 0);
        side_close(&s);
        free(train);
        free(eval);
        program_destroy(p);
    }
}

/* --- a model in parts: the last has the head, and makes its metrics on the way back, which add up over passes */

enum { PARTS = 2 };

static void part_open(struct side *s)
{
    const struct device_options options = {.threads = 2, .gpu = {.deterministic = true}};
    MUST(rig_open(&s->d, rig_device, &options, e));
    MUST(s->d->ops->alloc(s->d, program_params(s->p) * sizeof(float), &s->params, e));
    MUST(s->d->ops->alloc(s->d, sizeof(float), &s->stats, e));
    MUST(s->d->ops->alloc(s->d, s->p->n_reduce * sizeof(float), &s->reduce, e));
    MUST(s->d->ops->alloc(s->d, sizeof(float), &s->momentum, e));
    const struct plan_options o = {.batch = N,
                                   .training = true,
                                   .compute = DT_F32,
                                   .chunk = &s->p->chunks[0],
                                   .sets = 2,
                                   .params = s->params,
                                   .stats = s->stats,
                                   .reduce = s->reduce};
    MUST(s->d->ops->plan(s->d, s->p, &o, &s->plan, e));
    side_initialise(s, 3);
}

static void part_run(const struct side *s, const struct text *t, enum run_pass pass, bool more, const void *in,
                     void *out)
{
    const struct run_args a = {.batch = t->b,
                               .grad_scale = 1,
                               .pass = pass,
                               .set = 1,
                               .accumulate = more && pass == RUN_FORWARD,
                               .add_metrics = more,
                               .boundary = {in, out},
                               .params_version = 1};
    MUST(s->d->ops->run(s->plan, &a, e));
    MUST(s->d->ops->sync(s->d, e)); /* the next part is on a device of its own */
}

static void parts_make_what_the_whole_makes(void **state)
{
    static float boundary[2 * PARTS + 1][ROWS * 32];
    struct program *whole = build("tinyllama");
    struct side part[PARTS];
    struct text t;
    int cuts[PARTS - 1];
    (void)state;
    text_make(&t, false);
    double *want = first_step(rig_device, whole, &mode_f32, &t, false);
    MUST(stages_cut(whole, PARTS, cuts, e));
    for (int i = 0; i < PARTS; i++) {
        struct program *p;
        MUST(stages_program(&p, whole, cuts, PARTS, PARTS, i, e));
        part[i] = (struct side){.p = p, .n = N};
        part_open(&part[i]);
    }
    for (int more = 0; more < 2; more++) { /* gradients once more, metrics added */
        for (int i = 0; i < PARTS; i++)
            part_run(&part[i], &t, RUN_FORWARD, more, boundary[i], boundary[i + 1]);
        for (int i = PARTS - 1; i >= 0; i--)
            part_run(&part[i], &t, RUN_BACKWARD, more, boundary[PARTS + i + 1], boundary[PARTS + i]);
    }
    for (int i = 0; i < PARTS; i++) {
        double *got = reduce_of(&part[i]);
        for (int k = 0; k < part[i].p->nparams; k++) {
            const struct param *q = &part[i].p->params[k], *w = &whole->params[program_find_param(whole, q->name)];
            assert_true(relative_distance(got + q->offset, want + w->offset, q->count) <= 1e-5);
        }
        for (int k = METRIC_LOSS; k <= METRIC_COUNT && i == PARTS - 1; k++)
            assert_true(got[part[i].p->n_train + (size_t)k] == 2 * want[whole->n_train + (size_t)k]);
        free(got);
        side_close(&part[i]);
        program_destroy((struct program *)(uintptr_t)part[i].p);
    }
    free(want);
    program_destroy(whole);
}

/* --- parameters that come for each read and go again */

struct visitors {
    struct device *d;
    float *arena, *kept;
    struct plan_range reads[128];
    int n;
};

static int expect_reads(void *ctx, const struct plan_range *reads, int n, struct err *e)
{
    struct visitors *v = ctx;
    (void)e;
    assert_true(n > 0 && n <= 128);
    memcpy(v->reads, reads, (size_t)n * sizeof *reads);
    v->n = n;
    return 0;
}

static int come(void *ctx, int k, struct err *e)
{
    struct visitors *v = ctx;
    const struct plan_range r = v->reads[k];
    (void)e;
    memcpy(v->arena + r.first, v->kept + r.first, (r.end - r.first) * sizeof(float));
    return 0;
}

static void leave(void *ctx, int k)
{
    const struct visitors *v = ctx;
    MUST(v->d->ops->sync(v->d, e)); /* what reads them has done so */
    for (size_t i = v->reads[k].first; i < v->reads[k].end; i++)
        v->arena[i] = NAN;
}

static void parameters_are_read_while_they_are_there(void **state)
{
    struct text t;
    (void)state;
    text_make(&t, false);
    for (int i = 0; i < ARCHS; i++) {
        struct program *p = build(archs[i]);
        struct side s;
        struct visitors v = {0};
        const struct plan_needs needs = {
            .ctx = &v, .order = expect_reads, .need = come, .release = leave, .on_host = true};
        double *want = first_step(rig_device, p, &mode_f32, &t, false);
        side_open(&s, rig_device, p, &mode_f32, N, true, false, 2);
        side_initialise(&s, 3);
        v.d = s.d;
        v.arena = s.params;
        v.kept = malloc(program_params(p) * sizeof(float));
        memcpy(v.kept, v.arena, program_params(p) * sizeof(float));
        for (size_t k = 0; k < program_params(p); k++)
            v.arena[k] = NAN;
        const struct plan_options o = {.batch = N,
                                       .training = true,
                                       .compute = DT_F32,
                                       .params = s.params,
                                       .stats = s.stats,
                                       .reduce = s.reduce,
                                       .needs = &needs};
        s.d->ops->plan_close(s.plan);
        MUST(s.d->ops->plan(s.d, p, &o, &s.plan, e));
        side_run(&s, &t.b, 1, false, 1, NULL);
        double *got = reduce_of(&s);
        expect_equal(p, "reads that come and go", got, want);
        free(v.kept);
        free(got);
        free(want);
        side_close(&s);
        program_destroy(p);
    }
}

#define IN_MODE(test, mode)                                                                                            \
    {                                                                                                                  \
#test "_in_" #mode, test, NULL, NULL, (void *)(uintptr_t)&mode_##mode                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MODE(gradients_match_ref, f32),
        IN_MODE(gradients_match_ref, fp16),
        IN_MODE(gradients_match_ref, bf16),
        IN_MODE(gradients_match_ref, native_fp16_o1),
        IN_MODE(gradients_match_ref, native_bf16_o1),
        IN_MODE(fusing_and_running_again_change_no_bit, f32),
        IN_MODE(fusing_and_running_again_change_no_bit, bf16),
        cmocka_unit_test(samples_of_weight_0_count_nowhere),
        cmocka_unit_test(accumulating_doubles_every_sum),
        cmocka_unit_test(an_evaluation_has_the_metrics_of_training),
        cmocka_unit_test(parts_make_what_the_whole_makes),
        cmocka_unit_test(parameters_are_read_while_they_are_there),
    };
    return cmocka_run_group_tests_name("language models on a device", tests, NULL, NULL);
}
