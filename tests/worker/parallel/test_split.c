/* The last layer and its loss over a tensor group: ranks as threads, each with samples of its own, against ref, one
 * rank with all samples and all of the layer. Sums over ranks are taken here, as parallel/ddp.h would take them.
 *
 * Differences are of norms, tensor by tensor: |a - b| / |b| (equal weights: of gradients that are 0, |a - b|). Ref
 * differs by the order of sums of doubles; cpu computes in fp32, sums over some 100 elements; halves (rounded in
 * other places than ref where sums differ by a rounding) by some 2^-8, or 2^-11, of single values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/group_calls.h"
#include "worker/program/program.h"
#include "worker/program/split.h"

enum { RANKS_MAX = 4, EACH = 3, IMAGE = 3 * 4 * 4 };

struct net {
    int classes, features;
    double scale;            /* of the last layer's weights and biases */
    bool ties;               /* all weights of that layer alike: every logit is the same */
    double smoothing, share; /* of a second label in each sample's target */
    int left_out;            /* a sample that does not count; -1: none */
    enum split_kind kind;
};

struct mode {
    const char *device;
    enum dtype compute;
    bool emulate;
    enum half_rule half;
    double bound;
};
static const struct mode on_ref = {"ref", DT_F64, false, HALF_STORED, 1e-9};

struct side { /* a rank's plan */
    struct device *d;
    struct program *p;
    struct plan *plan;
    void *params, *stats, *reduce;
};

static double get(const struct side *s, const void *arena, size_t i)
{
    return s->d->ops->real == DT_F64 ? ((const double *)arena)[i] : (double)((const float *)arena)[i];
}

static void put(const struct side *s, void *arena, size_t i, double v)
{
    if (s->d->ops->real == DT_F64)
        ((double *)arena)[i] = v;
    else
        ((float *)arena)[i] = (float)v;
}

static struct program *build(const struct net *n, int ranks, int index)
{
    struct program *p = program_create("split", input_pictures(3, 4, 4, NULL, NULL));
    struct err e;
    int x = program_relu(p, "relu", program_conv(p, "conv", program_input(p), n->features, 3, 1, 1, true));
    x = program_avgpool(p, "pool", x);
    program_classifier(p, "fc", x, n->classes, &(struct split){n->kind, ranks, index});
    if (program_differentiate(p, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static void *arena(struct side *s, size_t n)
{
    void *p;
    assert_int_equal(s->d->ops->alloc(s->d, n * sizeof(double), &p, NULL), 0);
    return p;
}

static void fill(struct side *s, const struct net *n)
{
    for (int i = 0; i < s->p->nparams; i++) {
        const struct param *q = &s->p->params[i];
        double v[1024];
        assert_true(q->count <= 1024);
        param_initial_fill(q, 5, 0, q->count, v);
        for (size_t k = 0; k < q->count; k++) {
            const bool last = strncmp(q->name, "fc", 2) == 0;
            put(s, s->params, q->offset + k, (double)(float)(!last ? v[k] : n->ties ? 0.25 : v[k] * n->scale));
        }
    }
}

static void open_side(struct side *s, const struct net *n, const struct mode *m, int batch, const struct plan_group *g)
{
    struct err e;
    assert_int_equal(device_open(&s->d, m->device, &(struct device_options){.threads = 1}, &e), 0);
    s->p = build(n, g ? g->ranks : 1, g ? g->index : 0);
    s->params = arena(s, s->p->n_train);
    s->stats = arena(s, s->p->n_stats + 1);
    s->reduce = arena(s, s->p->n_reduce);
    fill(s, n);
    const struct plan_options o = {.batch = batch,
                                   .training = true,
                                   .mixes = n->share > 0,
                                   .compute = m->compute,
                                   .emulate = m->emulate,
                                   .half = m->half,
                                   .params = s->params,
                                   .stats = s->stats,
                                   .reduce = s->reduce,
                                   .group = g};
    if (s->d->ops->plan(s->d, s->p, &o, &s->plan, &e) < 0)
        fail_msg("%s", e.text);
}

static void close_side(struct side *s)
{
    s->d->ops->plan_close(s->plan);
    s->d->ops->release(s->d, s->params);
    s->d->ops->release(s->d, s->stats);
    s->d->ops->release(s->d, s->reduce);
    s->d->ops->close(s->d);
    program_destroy(s->p);
}

struct samples {
    uint8_t images[RANKS_MAX * EACH * IMAGE];
    int32_t labels[RANKS_MAX * EACH];
    float weights[RANKS_MAX * EACH];
    struct batch_mix mix[RANKS_MAX * EACH];
};

static void draw(struct samples *s, const struct net *n)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof s->images; i++)
        s->images[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (int i = 0; i < RANKS_MAX * EACH; i++) {
        s->labels[i] = i == n->left_out ? -7 : (i * 7 + 3) % n->classes;
        s->weights[i] = i == n->left_out ? 0 : 1;
        s->mix[i] = (struct batch_mix){.second = (i * 5 + 1) % n->classes, .share = (float)n->share};
    }
}

static void run_side(struct side *s, const struct samples *all, int first, const struct net *n, bool again)
{
    struct err e;
    for (int i = 0; i <= again; i++) {
        const struct run_args a = {.batch = {.rows = all->images + first * IMAGE,
                                             .labels = all->labels + first,
                                             .weights = all->weights + first,
                                             .mix = n->share > 0 ? all->mix + first : NULL},
                                   .grad_scale = 1,
                                   .smoothing = n->smoothing,
                                   .accumulate = i > 0};
        if (s->d->ops->run(s->plan, &a, &e) < 0)
            fail_msg("%s", e.text);
    }
}

struct rank {
    const struct net *n;
    const struct mode *m;
    const struct samples *samples;
    struct comm *comm;
    struct plan_group group;
    struct side side;
    bool again;
};

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    group_calls(&r->group, r->comm);
    open_side(&r->side, r->n, r->m, EACH, &r->group);
    run_side(&r->side, r->samples, r->comm->rank * EACH, r->n, r->again);
    return NULL;
}

/* least: what is smaller than that is as good as 0. */
static void assert_near(const struct mode *m, double least, const char *what, const double *got, const double *want,
                        size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    const double d = sqrt(difference) / fmax(sqrt(size), least);
    if (!(d <= m->bound))
        fail_msg("%s: %s is %.3g away, expected at most %.0e", m->device, what, d, m->bound);
}

/* Gradients of one tensor, summed over the ranks that have the element, are those of the whole. */
static void compare_param(const struct rank *ranks, int n, const struct side *one, int i)
{
    const struct param *whole = &one->p->params[i];
    double *sum = calloc(whole->count * 2, sizeof *sum), *want = sum + whole->count;
    for (int r = 0; r < n; r++) {
        const struct side *s = &ranks[r].side;
        const struct param *q = &s->p->params[program_find_param(s->p, whole->name)];
        for (size_t k = 0; k < q->count; k++)
            sum[param_run_at(q, k).whole] += get(s, s->reduce, q->offset + k);
    }
    for (size_t k = 0; k < whole->count; k++)
        want[k] = get(one, one->reduce, whole->offset + k);
    assert_near(ranks->m, ranks->n->ties ? 1 : 1e-6, whole->name, sum, want, whole->count);
    free(sum);
}

static double metric(const struct side *s, enum metric m)
{
    return get(s, s->reduce, s->p->n_train + s->p->n_stats + m);
}

/* Halves may change who wins, of logits that are as good as equal. */
static void compare(const struct rank *ranks, int n, const struct side *one)
{
    static const enum metric metrics[] = {METRIC_LOSS, METRIC_COUNT, METRIC_TOP1, METRIC_TOP5};
    static const char *const names[] = {"the loss", "the count", "top-1", "top-5"};
    for (int i = 0; i < one->p->nparams; i++)
        compare_param(ranks, n, one, i);
    for (int m = 0; m < (ranks->m->bound > 1e-3 ? 2 : 4); m++) {
        double sum = 0, want = metric(one, metrics[m]);
        for (int r = 0; r < n; r++)
            sum += metric(&ranks[r].side, metrics[m]);
        assert_near(ranks->m, 1e-6, names[m], &sum, &want, 1);
    }
}

static void check_in(const struct mode *m, const struct net *n, int ranks, bool again)
{
    const struct mode like = {"ref", m->compute == DT_F32 ? DT_F64 : m->compute, m->emulate || m->compute == DT_BF16,
                              m->half, 0};
    struct samples s;
    struct side one;
    struct comm *comms[RANKS_MAX];
    struct rank all[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    draw(&s, n);
    open_side(&one, n, &like, ranks * EACH, NULL);
    run_side(&one, &s, 0, n, again);
    assert_int_equal(comm_local_open_threads(comms, ranks, 60000, NULL), 0);
    for (int i = 0; i < ranks; i++) {
        all[i] = (struct rank){.n = n, .m = m, .samples = &s, .comm = comms[i], .again = again};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &all[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    compare(all, ranks, &one);
    for (int i = 0; i < ranks; i++) {
        close_side(&all[i].side);
        comms[i]->ops->close(comms[i]);
    }
    close_side(&one);
}

static void check(const struct net *n, int ranks, bool again)
{
    check_in(&on_ref, n, ranks, again);
#ifdef HAVE_CPU_DEVICE
    static const struct mode on_cpu = {"cpu", DT_F32, false, HALF_STORED, 2e-5};
    check_in(&on_cpu, n, ranks, again);
#endif
}

static const enum split_kind kinds[] = {SPLIT_CLASSES, SPLIT_FEATURES};

/* X1: TorchShard under DDP left the layers below the split one 1/W of their gradient. */
static void X1_gradients_below_a_split_layer_are_those_of_the_whole_batch(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int ranks = 2; ranks <= RANKS_MAX; ranks++)
            check(&(struct net){.classes = 12, .features = 12, .scale = 1, .left_out = -1, .kind = kinds[k]}, ranks,
                  false);
}

static void parts_may_be_uneven(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
            check(&(struct net){.classes = 10, .features = 7, .scale = 1, .left_out = -1, .kind = kinds[k]}, ranks,
                  false);
            check(&(struct net){.classes = ranks, .features = ranks, .scale = 1, .left_out = -1, .kind = kinds[k]},
                  ranks, false);
        }
}

static void a_label_is_smoothed_over_the_classes_of_all_ranks(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        check(
            &(struct net){.classes = 11, .features = 5, .scale = 1, .smoothing = 0.1, .left_out = -1, .kind = kinds[k]},
            3, false);
}

static void a_second_label_may_be_another_ranks_class(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        check(&(struct net){.classes = 11,
                            .features = 5,
                            .scale = 1,
                            .smoothing = 0.1,
                            .share = 0.4,
                            .left_out = 2,
                            .kind = kinds[k]},
              3, false);
}

static void a_sample_that_does_not_count_moves_nothing_on_any_rank(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        check(&(struct net){.classes = 11, .features = 5, .scale = 1, .left_out = 4, .kind = kinds[k]}, 3, false);
}

static void logits_a_thousand_times_as_large_overflow_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        check(&(struct net){.classes = 11, .features = 5, .scale = 1000, .left_out = -1, .kind = kinds[k]}, 3, false);
}

/* The lower class wins: label 0 is a hit, label 5 is the sixth. */
static void equal_logits_are_ranked_by_class_over_all_ranks(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        check(&(struct net){.classes = 9, .features = 5, .ties = true, .left_out = -1, .kind = kinds[k]}, 4, false);
}

static void a_second_run_adds_to_the_first(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        check(&(struct net){.classes = 11, .features = 5, .scale = 1, .left_out = -1, .kind = kinds[k]}, 2, true);
}

#ifdef HAVE_CPU_DEVICE
static void halves_are_rounded_where_a_whole_layer_rounds_them(void **state)
{
    (void)state;
    static const struct mode modes[] = {{"cpu", DT_BF16, true, HALF_STORED, 4e-2},
                                        {"cpu", DT_BF16, true, HALF_OPERANDS, 4e-2},
                                        {"cpu", DT_F16, true, HALF_STORED, 5e-3},
                                        {"cpu", DT_BF16, false, HALF_STORED, 4e-2}};
    const struct net nets[] = {{.classes = 11, .features = 16, .scale = 1, .left_out = 4, .kind = SPLIT_CLASSES},
                               {.classes = 11, .features = 16, .scale = 1, .left_out = -1, .kind = SPLIT_FEATURES}};
    struct device *d;
    assert_int_equal(device_open(&d, "cpu", &(struct device_options){.threads = 1}, NULL), 0);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            if (modes[i].emulate || d->ops->native(d, modes[i].compute, modes[i].half))
                check_in(&modes[i], &nets[k], 3, true);
    d->ops->close(d);
}
#endif

static void assert_refused(const struct net *n, int ranks, const char *why)
{
    struct program *p = program_create("split", input_pictures(3, 4, 4, NULL, NULL));
    struct err e;
    int x = program_conv(p, "conv", program_input(p), n->features, 3, 1, 1, true);
    program_classifier(p, "fc", x, n->classes, &(struct split){n->kind, ranks, 0});
    assert_true(program_differentiate(p, &e) < 0);
    assert_string_equal(e.text, why);
    program_destroy(p);
}

static void what_cannot_be_split_is_refused(void **state)
{
    (void)state;
    assert_refused(&(struct net){.classes = 3, .features = 5, .kind = SPLIT_CLASSES}, 4,
                   "3 classes cannot be split over 4 ranks");
    assert_refused(&(struct net){.classes = 8, .features = 3, .kind = SPLIT_FEATURES}, 4,
                   "3 features cannot be split over 4 ranks");
    assert_refused(&(struct net){.classes = 8, .features = 5, .kind = SPLIT_FEATURES}, 4,
                   "'fc' reads maps of 4 x 4 (expected 1 x 1 where features are split)");
}

static void a_plan_without_the_group_of_its_program_is_refused(void **state)
{
    (void)state;
    const struct net n = {.classes = 8, .features = 4, .kind = SPLIT_CLASSES};
    struct program *p = build(&n, 2, 0);
    struct device *d;
    struct plan *plan;
    struct err e;
    double reduce[1], params[1];
    assert_int_equal(device_open(&d, "ref", &(struct device_options){.threads = 1}, &e), 0);
    const struct plan_options o = {.batch = 1, .compute = DT_F64, .params = params, .reduce = reduce};
    assert_true(d->ops->plan(d, p, &o, &plan, &e) < 0);
    assert_string_equal(e.text, "operation 'gather' is over a group of 2 ranks, but the plan has one of 1");
    d->ops->close(d);
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(X1_gradients_below_a_split_layer_are_those_of_the_whole_batch),
        cmocka_unit_test(parts_may_be_uneven),
        cmocka_unit_test(a_label_is_smoothed_over_the_classes_of_all_ranks),
        cmocka_unit_test(a_second_label_may_be_another_ranks_class),
        cmocka_unit_test(a_sample_that_does_not_count_moves_nothing_on_any_rank),
        cmocka_unit_test(logits_a_thousand_times_as_large_overflow_nothing),
        cmocka_unit_test(equal_logits_are_ranked_by_class_over_all_ranks),
        cmocka_unit_test(a_second_run_adds_to_the_first),
#ifdef HAVE_CPU_DEVICE
        cmocka_unit_test(halves_are_rounded_where_a_whole_layer_rounds_them),
#endif
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(a_plan_without_the_group_of_its_program_is_refused),
    };
    return cmocka_run_group_tests_name("split layer", tests, NULL, NULL);
}
