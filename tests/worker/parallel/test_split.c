/* The last layer and its loss over a tensor group, on ref: ranks as threads, each with samples of its own, against one
 * rank with all samples and all of the layer. Sums over ranks are taken here, as parallel/ddp.h would take them. */
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
    double scale; /* of the last layer's weights and biases */
    bool ties;    /* all weights of that layer alike: every logit is the same */
    double smoothing;
    int left_out; /* a sample that does not count; -1: none */
    enum split_kind kind;
};

struct side { /* a rank's plan */
    struct device *d;
    struct program *p;
    struct plan *plan;
    double *params, *stats, *reduce;
};

static struct program *build(const struct net *n, int ranks, int index)
{
    struct program *p = program_create("split", 3, 4, 4, NULL, NULL);
    struct err e;
    int x = program_relu(p, "relu", program_conv(p, "conv", program_input(p), n->features, 3, 1, 1, true));
    x = program_avgpool(p, "pool", x);
    program_classifier(p, "fc", x, n->classes, &(struct split){n->kind, ranks, index});
    if (program_differentiate(p, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static double *arena(struct side *s, size_t n)
{
    void *p;
    assert_int_equal(s->d->ops->alloc(s->d, n * sizeof(double), &p, NULL), 0);
    return p;
}

static void fill(struct side *s, const struct net *n)
{
    for (int i = 0; i < s->p->nparams; i++) {
        const struct param *q = &s->p->params[i];
        double *to = s->params + q->offset;
        param_initial_fill(q, 5, 0, q->count, to);
        for (size_t k = 0; k < q->count && strncmp(q->name, "fc", 2) == 0; k++)
            to[k] = n->ties ? 0.25 : to[k] * n->scale;
    }
}

static void open_side(struct side *s, const struct net *n, int batch, const struct plan_group *g)
{
    struct err e;
    assert_int_equal(device_open(&s->d, "ref", &(struct device_options){.threads = 1}, &e), 0);
    s->p = build(n, g ? g->ranks : 1, g ? g->index : 0);
    s->params = arena(s, s->p->n_train);
    s->stats = arena(s, s->p->n_stats + 1);
    s->reduce = arena(s, s->p->n_reduce);
    fill(s, n);
    const struct plan_options o = {.batch = batch,
                                   .training = true,
                                   .compute = DT_F64,
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
};

static void draw(struct samples *s, const struct net *n)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof s->images; i++)
        s->images[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (int i = 0; i < RANKS_MAX * EACH; i++) {
        s->labels[i] = i == n->left_out ? -7 : (i * 7 + 3) % n->classes;
        s->weights[i] = i == n->left_out ? 0 : 1;
    }
}

static void run_side(struct side *s, const struct samples *all, int first, double smoothing, bool again)
{
    struct err e;
    for (int i = 0; i <= again; i++) {
        const struct run_args a = {.batch = {all->images + first * IMAGE, all->labels + first, all->weights + first},
                                   .grad_scale = 1,
                                   .smoothing = smoothing,
                                   .accumulate = i > 0};
        if (s->d->ops->run(s->plan, &a, &e) < 0)
            fail_msg("%s", e.text);
    }
}

struct rank {
    const struct net *n;
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
    open_side(&r->side, r->n, EACH, &r->group);
    run_side(&r->side, r->samples, r->comm->rank * EACH, r->n->smoothing, r->again);
    return NULL;
}

static void assert_near(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
        fail_msg("%s is %.17g, expected %.17g", what, got, want);
}

/* Gradients of one tensor, summed over the ranks that have the element, are those of the whole. */
static void compare_param(const struct rank *ranks, int n, const struct side *one, int i)
{
    const struct param *whole = &one->p->params[i];
    double *sum = calloc(whole->count, sizeof *sum);
    for (int r = 0; r < n; r++) {
        const struct program *p = ranks[r].side.p;
        const struct param *q = &p->params[program_find_param(p, whole->name)];
        for (size_t k = 0; k < q->count; k++)
            sum[param_run_at(q, k).whole] += ranks[r].side.reduce[q->offset + k];
    }
    for (size_t k = 0; k < whole->count; k++)
        assert_near(whole->name, sum[k], one->reduce[whole->offset + k]);
    free(sum);
}

static void compare(const struct rank *ranks, int n, const struct side *one)
{
    static const enum metric metrics[] = {METRIC_LOSS, METRIC_TOP1, METRIC_TOP5, METRIC_COUNT};
    static const char *const names[] = {"the loss", "top-1", "top-5", "the count"};
    for (int i = 0; i < one->p->nparams; i++)
        compare_param(ranks, n, one, i);
    for (int m = 0; m < 4; m++) {
        double sum = 0;
        for (int r = 0; r < n; r++) {
            const struct program *p = ranks[r].side.p;
            sum += ranks[r].side.reduce[p->n_train + p->n_stats + metrics[m]];
        }
        assert_near(names[m], sum, one->reduce[one->p->n_train + one->p->n_stats + metrics[m]]);
    }
}

static void check(const struct net *n, int ranks, bool again)
{
    struct samples s;
    struct side one;
    struct comm *comms[RANKS_MAX];
    struct rank all[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    draw(&s, n);
    open_side(&one, n, ranks * EACH, NULL);
    run_side(&one, &s, 0, n->smoothing, again);
    assert_int_equal(comm_local_open_threads(comms, ranks, 60000, NULL), 0);
    for (int i = 0; i < ranks; i++) {
        all[i] = (struct rank){.n = n, .samples = &s, .comm = comms[i], .again = again};
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

static void assert_refused(const struct net *n, int ranks, const char *why)
{
    struct program *p = program_create("split", 3, 4, 4, NULL, NULL);
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
        cmocka_unit_test(a_sample_that_does_not_count_moves_nothing_on_any_rank),
        cmocka_unit_test(logits_a_thousand_times_as_large_overflow_nothing),
        cmocka_unit_test(equal_logits_are_ranked_by_class_over_all_ranks),
        cmocka_unit_test(a_second_run_adds_to_the_first),
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(a_plan_without_the_group_of_its_program_is_refused),
    };
    return cmocka_run_group_tests_name("split layer", tests, NULL, NULL);
}
