/* Whole networks on the ref device: gradients against finite differences, shards of a batch against the whole batch,
 * samples that do not count, accumulation. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/rig.h"
#include "worker/model/model.h"

/* --- finite differences ---
 *
 * The loss is smooth but for kinks (ReLU at 0, a change of a pool's maximum). Central differences with step h differ
 * from the derivative by about h^2 f''' / 6 + 1e-16 f / h: with h = 1e-5 some 1e-10 of gradients of order 1. A kink
 * within the step would add an error of any size, so the "pattern" (signs behind ReLUs, places of maxima) is taken at
 * both ends of each step and must not change: a seed that fails this is a bad choice of point, told apart from a bad
 * gradient. */

static uint64_t mix(uint64_t h, uint64_t v)
{
    return (h ^ v) * 0x100000001b3u;
}

static uint64_t pattern(struct rig *r, double *values)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < r->p->nfwd; i++) {
        const struct op *op = &r->p->ops[i];
        if (op->kind != OP_RELU && op->kind != OP_MAXPOOL)
            continue;
        /* of a pool the input's elements, in order: between non-negative values that do not change order maxima do not
         * move */
        const struct tensor *t = &r->p->tensors[op->kind == OP_RELU ? op->out : op->in[0]];
        size_t n = (size_t)r->n * (size_t)t->c * (size_t)t->h * (size_t)t->w, plane = (size_t)t->h * (size_t)t->w;
        rig_get(r, t->name, values);
        for (size_t k = 0; k < n; k++)
            h = mix(h, values[k] > 0);
        for (size_t k = 0; k < n && op->kind == OP_MAXPOOL; k++)
            for (int dy = 0; dy < op->kh; dy++)
                for (int dx = 0; dx < op->kw; dx++) {
                    size_t other = k + (size_t)dy * (size_t)t->w + (size_t)dx;
                    if (other / plane == k / plane && other < n)
                        h = mix(h, values[k] >= values[other]);
                }
    }
    return h;
}

static double length(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i] * v[i];
    return sqrt(sum);
}

static double loss_at(struct rig *r, const struct batch *b, double *at, double value, double *values, uint64_t *shape)
{
    double kept = *at;
    *at = value;
    rig_run(r, b, false, NULL);
    *at = kept;
    *shape = pattern(r, values);
    return rig_metrics(r)[METRIC_LOSS];
}

/* Every parameter of a small network; the largest relative error is returned. */
static void check_gradients(struct program *p, uint64_t seed)
{
    const double h = 1e-5, bound = 1e-6;
    struct rig r;
    struct samples s;
    rig_open(&r, p, 5, true, seed);
    samples_make(&s, p, 5, seed + 100);
    s.weights[1] = 0;
    double *gradient = calloc(p->n_train, sizeof *gradient), *values = calloc(1 << 16, sizeof *values);
    assert_true(gradient && values);
    rig_run(&r, &s.b, false, NULL);
    memcpy(gradient, r.reduce, p->n_train * sizeof *gradient);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < p->n_train; i++)
        largest = fmax(largest, fabs(gradient[i]));
    for (int q = 0; q < p->nparams; q++)
        for (size_t k = 0; p->params[q].role == PARAM_TRAIN && k < p->params[q].count; k++) {
            size_t i = p->params[q].offset + k;
            uint64_t left, right;
            double high = loss_at(&r, &s.b, &r.params[i], r.params[i] + h, values, &right);
            double low = loss_at(&r, &s.b, &r.params[i], r.params[i] - h, values, &left);
            if (left != right)
                fail_msg("%s: seed %d puts a kink within %g of %s[%zu]; choose another", p->arch, (int)seed, h,
                         p->params[q].name, k);
            double error = fabs((high - low) / (2 * h) - gradient[i]) / fmax(fabs(gradient[i]), largest / 100);
            worst = fmax(worst, error);
            if (!(error < bound))
                fail_msg("%s: gradient of %s[%zu] is %.12g, finite differences say %.12g", p->arch, p->params[q].name,
                         k, gradient[i], (high - low) / (2 * h));
        }
    print_message("# %s: %zu parameters, largest relative error %.2g (bound %g)\n", p->arch, program_trainable(p),
                  worst, bound);
    free(gradient);
    free(values);
    samples_free(&s);
    rig_close(&r);
    program_destroy(p);
}

static void gradients_of_basic_blocks_match_finite_differences(void **state)
{
    check_gradients(net_basic(), 1);
}

static void gradients_of_bottlenecks_match_finite_differences(void **state)
{
    check_gradients(net_bottleneck(), 1);
}

static void gradients_of_pools_biases_and_a_flattened_map_match_finite_differences(void **state)
{
    check_gradients(net_flat(), 1);
}

static void gradients_of_rows_and_attention_match_finite_differences(void **state)
{
    check_gradients(net_rows(), 1);
    check_gradients(net_attention(), 1);
    check_gradients(net_text(), 1);
}

/* A true model is too large to move each parameter: it is moved along random directions. Its bottom layers see maps of
 * 1 x 1, where batch norm over few samples is strongly curved, hence a smaller step; 65,000 rectified values leave
 * little room between kinks. */
static void gradients_of_resnet18_match_finite_differences_along_directions(void **state)
{
    struct model_options o = {.arch = "resnet18", .classes = 10, .input = input_pictures(3, 32, 32, NULL, NULL)};
    struct program *p;
    struct rig r;
    struct samples s;
    assert_int_equal(0, model_build(&p, &o, NULL));
    rig_open(&r, p, 4, true, 3);
    samples_make(&s, p, 4, 4);
    double *gradient = calloc(p->n_train, sizeof *gradient), *way = calloc(p->n_train, sizeof *way);
    double *start = calloc(p->n_train, sizeof *start), *values = calloc(1 << 17, sizeof *values);
    assert_true(gradient && way && start && values);
    rig_run(&r, &s.b, false, NULL);
    memcpy(gradient, r.reduce, p->n_train * sizeof *gradient);
    memcpy(start, r.params, p->n_train * sizeof *start);
    double steep = length(gradient, p->n_train);
    for (uint64_t d = 0; d < 3; d++) {
        const double h = 1e-8;
        double loss[2], slope = 0;
        uint64_t shape[2];
        noise(way, p->n_train, d);
        double long_way = length(way, p->n_train);
        for (size_t i = 0; i < p->n_train; i++) {
            way[i] = way[i] / long_way + gradient[i] / steep; /* not at right angles to the gradient */
            slope += way[i] * gradient[i];
        }
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < p->n_train; i++)
                r.params[i] = start[i] + (side ? h : -h) * way[i];
            rig_run(&r, &s.b, false, NULL);
            loss[side] = rig_metrics(&r)[METRIC_LOSS];
            shape[side] = pattern(&r, values);
        }
        double error = fabs((loss[1] - loss[0]) / (2 * h) - slope) / fabs(slope);
        print_message("# resnet18, direction %d: relative error %.2g (bound 1e-6)\n", (int)d, error);
        assert_true(shape[0] == shape[1]); /* else a kink: choose another seed */
        assert_true(error < 1e-6);
    }
    free(gradient), free(way), free(start), free(values);
    samples_free(&s);
    rig_close(&r);
    program_destroy(p);
}

/* --- ranks as threads, with a sum of their own */

enum { MAX_RANKS = 3 };

struct world {
    int size;
    pthread_barrier_t barrier;
    double *given[MAX_RANKS];
};

struct rank {
    struct world *w;
    int rank, calls;
    struct rig rig;
    struct batch batch;
    struct run_hooks hooks;
    pthread_t thread;
};

/* Every rank adds all buffers in rank order into a buffer of its own, then all go on. */
static int sum_in_order(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct rank *k = ctx;
    double *sum = calloc(n, sizeof *sum);
    k->calls++;
    k->w->given[k->rank] = buf;
    pthread_barrier_wait(&k->w->barrier);
    for (int i = 0; i < k->w->size; i++)
        for (size_t j = 0; sum && j < n; j++)
            sum[j] += k->w->given[i][j];
    pthread_barrier_wait(&k->w->barrier);
    if (sum)
        memcpy(buf, sum, n * sizeof *sum);
    free(sum);
    return sum ? 0 : err_set(e, -12, "no memory in a test");
}

static void *run_rank(void *arg)
{
    struct rank *k = arg;
    rig_run(&k->rig, &k->batch, false, &k->hooks);
    return NULL;
}

/* One run of the samples split as `shares` says (0: the rank runs one sample of weight 0). ranks[] is left open. */
static void run_split(const struct program *p, const struct samples *s, const int *shares, int size, bool sync,
                      struct world *w, struct rank *ranks)
{
    static uint8_t dark[3 * 9 * 9];
    static int32_t label;
    static float nothing;
    static uint32_t number = BATCH_PADDING;
    *w = (struct world){.size = size};
    assert_int_equal(0, pthread_barrier_init(&w->barrier, NULL, (unsigned)size));
    for (int i = 0, first = 0; i < size; first += shares[i++]) {
        ranks[i] = (struct rank){.w = w, .rank = i};
        ranks[i].batch =
            shares[i] ? batch_at(&s->b, &p->input, (size_t)first) : (struct batch){dark, &label, &nothing, &number};
        ranks[i].hooks = (struct run_hooks){.ctx = &ranks[i], .all_sum = sync ? sum_in_order : NULL};
        rig_open(&ranks[i].rig, p, shares[i] ? shares[i] : 1, true, 1);
    }
    for (int i = 0; i < size; i++)
        assert_int_equal(0, pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]));
    for (int i = 0; i < size; i++)
        assert_int_equal(0, pthread_join(ranks[i].thread, NULL));
    pthread_barrier_destroy(&w->barrier);
}

/* Relative distance of the shards' gradients, put together by `weighted` (sum / count) or by an average of averages,
 * from the whole's; of the statistics and metrics too, as *ret_tail. */
static double distance(struct program *p, const int *shares, int size, bool sync, bool weighted, double *ret_tail)
{
    struct world w;
    struct rank ranks[MAX_RANKS];
    struct samples s;
    struct rig whole;
    samples_make(&s, p, 5, 11);
    rig_open(&whole, p, 5, true, 1);
    rig_run(&whole, &s.b, false, NULL);
    run_split(p, &s, shares, size, sync, &w, ranks);
    double *sum = calloc(p->n_reduce, sizeof *sum);
    assert_non_null(sum);
    for (int i = 0; i < size; i++) {
        double mul = weighted ? 1 : 5.0 / size / rig_metrics(&ranks[i].rig)[METRIC_COUNT];
        for (size_t k = 0; k < p->n_reduce; k++)
            sum[k] += mul * ranks[i].rig.reduce[k];
        assert_int_equal(ranks[i].calls, ranks[0].calls);
        rig_close(&ranks[i].rig);
    }
    double error = relative_error(sum, whole.reduce, p->n_train);
    *ret_tail = relative_error(sum + p->n_train, whole.reduce + p->n_train, p->n_reduce - p->n_train);
    free(sum);
    samples_free(&s);
    rig_close(&whole);
    program_destroy(p);
    return error;
}

static void uneven_shards_with_synchronised_statistics_add_up_to_the_whole(void **state)
{
    const int splits[][MAX_RANKS] = {{5}, {2, 3}, {1, 1, 3}, {4, 0, 1}};
    const int sizes[] = {1, 2, 3, 3};
    struct program *(*const nets[])(void) = {net_basic, net_bottleneck, net_rows, net_attention};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int net = 0; net < 4; net++) {
            struct program *p = nets[net]();
            double tail, error = distance(p, splits[i], sizes[i], true, true, &tail);
            print_message("# %d ranks, net %d: gradients %.2g, statistics and metrics %.2g\n", sizes[i], net, error,
                          tail);
            assert_true(error < 1e-10);
            assert_true(tail < 1e-10);
        }
}

static void an_unweighted_average_of_uneven_shards_is_noticed(void **state)
{
    double tail, error = distance(net_basic(), (int[]){1, 4}, 2, true, false, &tail);
    print_message("# distance %.2g\n", error);
    assert_true(error > 1e-3);
}

/* Numbers of samples, not their places, say what is dropped; and so do seed and step. */
static void what_is_dropped_follows_the_sample_the_seed_and_the_step(void **state)
{
    struct program *p = net_rows();
    struct samples s;
    struct rig r;
    double kept[4 * 5 * 4], again[4 * 5 * 4];
    samples_make(&s, p, 4, 12);
    rig_open(&r, p, 4, true, 1);
    struct run_args a = {.batch = s.b, .grad_scale = 1, .seed = 3, .step = 9};
    for (int change = 0; change < 5; change++) {
        struct run_args b = a;
        b.seed += change == 1;
        b.step += change == 2;
        s.numbers[1] += change == 3;
        b.batch.samples = s.numbers;
        assert_int_equal(0, r.plan->ops->run(r.plan, &b, NULL));
        s.numbers[1] -= change == 3;
        rig_get(&r, "out", change ? again : kept);
        size_t differ[4] = {0};
        for (size_t i = 0; change && i < sizeof kept / sizeof *kept; i++)
            differ[i / 20] += (kept[i] == 0) != (again[i] == 0);
        for (int i = 0; change && i < 4; i++)
            assert_int_equal(differ[i] > 0, change < 3 || (change == 3 && i == 1));
    }
    a.batch.samples = NULL;
    struct err e = {0};
    assert_int_equal(-EINVAL, r.plan->ops->run(r.plan, &a, &e));
    assert_string_equal(e.text, "the batch has no numbers of samples");
    rig_close(&r);
    samples_free(&s);
    program_destroy(p);
}

static void statistics_that_are_not_synchronised_are_noticed(void **state)
{
    double tail, error = distance(net_basic(), (int[]){1, 4}, 2, false, true, &tail);
    print_message("# distance %.2g\n", error);
    assert_true(error > 1e-3);
}

/* --- samples of weight 0 */

static void a_sample_of_weight_0_changes_no_bit_of_anything_else(void **state)
{
    struct program *p = net_basic();
    struct samples s;
    struct rig r;
    samples_make(&s, p, 5, 21);
    s.weights[2] = 0;
    rig_open(&r, p, 5, true, 1);
    rig_run(&r, &s.b, false, NULL);
    double *before = calloc(p->n_reduce, sizeof *before);
    assert_non_null(before);
    memcpy(before, r.reduce, p->n_reduce * sizeof *before);
    for (size_t i = 0; i < 243; i++)
        s.images[2 * 243 + i] = (uint8_t)(255 - s.images[2 * 243 + i]);
    s.labels[2] = -1;
    rig_run(&r, &s.b, false, NULL);
    assert_memory_equal(before, r.reduce, p->n_reduce * sizeof *before);
    assert_near("count", rig_metrics(&r)[METRIC_COUNT], 4, 0);
    s.labels[2] = 0;
    s.weights[2] = 1;
    rig_run(&r, &s.b, false, NULL);
    assert_memory_not_equal(before, r.reduce, p->n_reduce * sizeof *before);
    free(before);
    rig_close(&r);
    samples_free(&s);
    program_destroy(p);
}

static void a_sample_of_weight_0_is_as_good_as_absent(void **state)
{
    struct program *p = net_basic();
    struct samples s;
    struct rig with, without;
    samples_make(&s, p, 5, 22);
    s.weights[4] = 0;
    rig_open(&with, p, 5, true, 1);
    rig_open(&without, p, 4, true, 1);
    rig_run(&with, &s.b, false, NULL);
    rig_run(&without, &s.b, false, NULL);
    double error = relative_error(with.reduce, without.reduce, p->n_reduce);
    assert_near("distance", error, 0, 1e-13);
    rig_close(&with);
    rig_close(&without);
    samples_free(&s);
    program_destroy(p);
}

static void a_batch_without_any_sample_gives_zeros(void **state)
{
    struct program *p = net_bottleneck();
    struct samples s;
    struct rig r;
    samples_make(&s, p, 3, 23);
    memset(s.weights, 0, 3 * sizeof *s.weights);
    rig_open(&r, p, 3, true, 1);
    rig_run(&r, &s.b, false, NULL);
    for (size_t i = 0; i < p->n_reduce; i++)
        assert_near("sum", r.reduce[i], 0, 0);
    rig_close(&r);
    samples_free(&s);
    program_destroy(p);
}

/* --- the arena */

static void check_accumulation(struct program *p, bool emulate)
{
    struct samples s, t;
    struct rig r;
    samples_make(&s, p, 4, 31);
    samples_make(&t, p, 4, 32);
    rig_open(&r, p, 4, true, 1);
    if (emulate)
        rig_emulate_fp16(&r);
    double *sum = calloc(p->n_reduce, sizeof *sum);
    assert_non_null(sum);
    rig_run(&r, &s.b, false, NULL);
    for (size_t i = 0; i < p->n_reduce; i++)
        sum[i] += r.reduce[i];
    rig_run(&r, &t.b, false, NULL);
    for (size_t i = 0; i < p->n_reduce; i++)
        sum[i] += r.reduce[i];
    rig_run(&r, &s.b, false, NULL);
    rig_run(&r, &t.b, true, NULL);
    assert_near("distance", relative_error(r.reduce, sum, p->n_reduce), 0, 1e-14);
    assert_near("count", rig_metrics(&r)[METRIC_COUNT], 8, 0);
    free(sum);
    rig_close(&r);
    samples_free(&s);
    samples_free(&t);
    program_destroy(p);
}

static void accumulation_adds_gradients_statistics_and_metrics(void **state)
{
    check_accumulation(net_basic(), false);
    check_accumulation(net_rows(), false);
    check_accumulation(net_attention(), false);
}

static void accumulation_adds_gradients_that_are_rounded(void **state)
{
    check_accumulation(net_basic(), true);
    check_accumulation(net_rows(), true);
}

/* What was announced, as it was then. */
struct announced {
    const struct rig *r;
    double *then;
};

static int keep_announced(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    struct announced *a = ctx;
    memcpy(a->then + first, a->r->reduce + first, (end - first) * sizeof *a->then);
    for (size_t i = first; i < end; i++)
        a->r->reduce[i] = 77; /* as a sum over ranks may be there at once */
    return 0;
}

static void gradients_that_were_announced_are_left_alone(void **state)
{
    for (int emulate = 0; emulate < 2; emulate++) {
        struct program *p = net_basic();
        struct samples s;
        struct rig r;
        samples_make(&s, p, 2, 51);
        rig_open(&r, p, 2, true, 1);
        if (emulate)
            rig_emulate_fp16(&r);
        struct announced a = {&r, calloc(p->n_train, sizeof(double))};
        assert_non_null(a.then);
        rig_run(&r, &s.b, false, &(struct run_hooks){.ctx = &a, .ready = keep_announced});
        for (size_t i = 0; i < p->n_train; i++)
            assert_true(r.reduce[i] == 77);
        memset(r.reduce, 0, p->n_reduce * sizeof *r.reduce); /* nobody writes padding */
        rig_run(&r, &s.b, false, NULL);
        assert_memory_equal(r.reduce, a.then, p->n_train * sizeof(double));
        free(a.then);
        rig_close(&r);
        samples_free(&s);
        program_destroy(p);
    }
}

static void statistics_of_the_batch_reach_evaluation(void **state)
{
    struct program *p = net_basic();
    struct samples s;
    struct rig train, eval;
    samples_make(&s, p, 5, 41);
    rig_open(&train, p, 5, true, 1);
    rig_open(&eval, p, 5, false, 1);
    rig_run(&train, &s.b, false, NULL);
    assert_int_equal(0, eval.dev->ops->update_stats(eval.dev, eval.stats, train.reduce + p->n_train, p->n_stats, 1,
                                                    &rig_metrics(&train)[METRIC_COUNT], NULL));
    /* unbiased variances differ from the biased ones that training normalises by: undo that, per layer */
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].kind == OP_BN) {
            const struct tensor *t = &p->tensors[p->ops[i].out];
            double m = 5.0 * t->h * t->w, *var = eval.stats + p->params[p->ops[i].param[3]].offset;
            for (int c = 0; c < t->c; c++)
                var[c] *= (m - 1) / m;
        }
    rig_run(&eval, &s.b, false, NULL);
    assert_near("loss", rig_metrics(&eval)[METRIC_LOSS], rig_metrics(&train)[METRIC_LOSS], 1e-12);
    assert_near("count", rig_metrics(&eval)[METRIC_COUNT], 5, 0);
    for (size_t i = 0; i < p->n_train; i++)
        assert_near("gradient of an evaluation", eval.reduce[i], 0, 0);
    rig_close(&train);
    rig_close(&eval);
    samples_free(&s);
    program_destroy(p);
}

static int follow(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    size_t *done = ctx;
    if (first != *done || end <= first)
        return err_set(e, -22, "range [%zu, %zu) after %zu", first, end, *done);
    *done = end;
    return 0;
}

static void gradients_are_announced_once_each_in_the_order_of_the_arena(void **state)
{
    struct program *p = net_basic();
    struct samples s;
    struct rig r;
    size_t done = 0;
    samples_make(&s, p, 2, 51);
    rig_open(&r, p, 2, true, 1);
    rig_run(&r, &s.b, false, &(struct run_hooks){.ctx = &done, .ready = follow});
    assert_int_equal(p->n_train, done);
    rig_close(&r);
    samples_free(&s);
    program_destroy(p);
}

static int refuse(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    return err_set(e, -104, "the peer went away");
}

static void an_error_of_a_hook_ends_the_run(void **state)
{
    struct program *p = net_basic();
    struct samples s;
    struct rig r;
    struct err e = {0};
    samples_make(&s, p, 2, 52);
    rig_open(&r, p, 2, true, 1);
    struct run_args a = {.batch = s.b, .grad_scale = 1, .hooks = &(struct run_hooks){.all_sum = refuse}};
    assert_int_equal(-104, r.plan->ops->run(r.plan, &a, &e));
    assert_non_null(strstr(e.text, "the peer went away"));
    rig_close(&r);
    samples_free(&s);
    program_destroy(p);
}

/* Each op of the list planned alone, its inputs put there by hand, does what it does in the whole. */
static void check_slices(struct program *p)
{
    struct samples s;
    struct rig whole, slice;
    static double values[1 << 14], expected[1 << 14];
    samples_make(&s, p, 3, 61);
    rig_open(&whole, p, 3, true, 1);
    rig_run(&whole, &s.b, false, NULL);
    for (int i = 0; i < p->nops; i++) {
        const struct op *op = &p->ops[i];
        rig_open_slice(&slice, p, 3, true, 1, i, i + 1);
        for (int k = 0; k < 2 && op->in[k] >= 0; k++) {
            rig_get(&whole, p->tensors[op->in[k]].name, values);
            rig_put(&slice, p->tensors[op->in[k]].name, values);
        }
        rig_run(&slice, &s.b, false, NULL);
        for (int k = 0; k < 2 && op_writes_gradients(op->kind) && op->param[k] >= 0; k++) {
            const char *name = p->params[op->param[k]].name;
            assert_memory_equal(rig_gradient(&slice, name), rig_gradient(&whole, name),
                                p->params[op->param[k]].count * 8);
        }
        if (op->out >= 0) {
            const struct tensor *t = &p->tensors[op->out];
            rig_get(&slice, t->name, values);
            rig_get(&whole, t->name, expected);
            assert_memory_equal(values, expected, (size_t)(3 * t->c * t->h * t->w) * sizeof *values);
        }
        rig_close(&slice);
    }
    rig_close(&whole);
    samples_free(&s);
    program_destroy(p);
}

static void every_slice_of_one_operation_gives_what_the_whole_gives(void **state)
{
    check_slices(net_basic());
    check_slices(net_rows());
    check_slices(net_attention());
}

static void check_threads(struct program *p)
{
    struct samples s;
    struct rig two;
    struct device *one;
    struct plan *plan;
    samples_make(&s, p, 5, 71);
    rig_open(&two, p, 5, true, 1);
    rig_run(&two, &s.b, false, NULL);
    double *reduce = calloc(p->n_reduce, sizeof *reduce);
    assert_non_null(reduce);
    assert_int_equal(0, device_open(&one, "ref", &(struct device_options){.threads = 1}, NULL));
    struct plan_options o = {
        .batch = 5, .training = true, .compute = DT_F64, .params = two.params, .stats = two.stats, .reduce = reduce};
    assert_int_equal(0, one->ops->plan(one, p, &o, &plan, NULL));
    assert_int_equal(0, plan->ops->run(plan, &(struct run_args){.batch = s.b, .grad_scale = 1}, NULL));
    assert_memory_equal(reduce, two.reduce, p->n_reduce * sizeof *reduce);
    plan->ops->plan_close(plan);
    one->ops->close(one);
    free(reduce);
    rig_close(&two);
    samples_free(&s);
    program_destroy(p);
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    check_threads(net_basic());
    check_threads(net_rows());
    check_threads(net_attention());
    check_threads(net_text());
}

/* Ten steps on one batch: the loop of a training in small. */
static void a_network_learns_a_batch_by_heart(void **state)
{
    struct program *p = net_basic();
    struct samples s;
    struct rig r;
    samples_make(&s, p, 8, 81);
    rig_open(&r, p, 8, true, 1);
    double *momentum = calloc(p->n_train, sizeof *momentum), first = 0, loss = 0;
    assert_non_null(momentum);
    for (int step = 0; step < 40; step++) {
        rig_run(&r, &s.b, false, NULL);
        loss = rig_metrics(&r)[METRIC_LOSS] / rig_metrics(&r)[METRIC_COUNT];
        first = step ? first : loss;
        struct update u = {.n = p->n_train, .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4, .grad_mul = 1};
        const double *count = &rig_metrics(&r)[METRIC_COUNT];
        assert_int_equal(0, r.dev->ops->update(r.dev, &u, r.params, r.reduce, momentum, count, NULL));
        assert_int_equal(0,
                         r.dev->ops->update_stats(r.dev, r.stats, r.reduce + p->n_train, p->n_stats, 0.1, count, NULL));
    }
    print_message("# loss %.3f -> %.4f\n", first, loss);
    assert_true(loss < first / 20);
    free(momentum);
    rig_close(&r);
    samples_free(&s);
    program_destroy(p);
}

static void tokens_and_labels_beyond_the_vocabulary_are_refused(void **state)
{
    struct program *p = net_text();
    struct rig r;
    struct samples s;
    struct err e = {0};
    (void)state;
    rig_open(&r, p, 3, true, 1);
    samples_make(&s, p, 3, 1);
    struct run_args a = {.batch = s.b, .grad_scale = 1, .params_version = 1};
    assert_int_equal(r.dev->ops->run(r.plan, &a, &e), 0);
    ((int32_t *)(void *)s.images)[7] = 7;
    assert_int_equal(r.dev->ops->run(r.plan, &a, &e), -EINVAL);
    assert_string_equal(e.text, "sample 1 of the batch has token 7 (expected 0 to 6)");
    ((int32_t *)(void *)s.images)[7] = 6;
    s.labels[14] = -2;
    assert_int_equal(r.dev->ops->run(r.plan, &a, &e), -EINVAL);
    assert_string_equal(e.text, "sample 2 of the batch has label -2 (expected -1 to 6)");
    samples_free(&s);
    rig_close(&r);
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_basic_blocks_match_finite_differences),
        cmocka_unit_test(gradients_of_bottlenecks_match_finite_differences),
        cmocka_unit_test(gradients_of_pools_biases_and_a_flattened_map_match_finite_differences),
        cmocka_unit_test(gradients_of_rows_and_attention_match_finite_differences),
        cmocka_unit_test(tokens_and_labels_beyond_the_vocabulary_are_refused),
        cmocka_unit_test(gradients_of_resnet18_match_finite_differences_along_directions),
        cmocka_unit_test(uneven_shards_with_synchronised_statistics_add_up_to_the_whole),
        cmocka_unit_test(an_unweighted_average_of_uneven_shards_is_noticed),
        cmocka_unit_test(what_is_dropped_follows_the_sample_the_seed_and_the_step),
        cmocka_unit_test(statistics_that_are_not_synchronised_are_noticed),
        cmocka_unit_test(a_sample_of_weight_0_changes_no_bit_of_anything_else),
        cmocka_unit_test(a_sample_of_weight_0_is_as_good_as_absent),
        cmocka_unit_test(a_batch_without_any_sample_gives_zeros),
        cmocka_unit_test(accumulation_adds_gradients_statistics_and_metrics),
        cmocka_unit_test(accumulation_adds_gradients_that_are_rounded),
        cmocka_unit_test(gradients_that_were_announced_are_left_alone),
        cmocka_unit_test(statistics_of_the_batch_reach_evaluation),
        cmocka_unit_test(gradients_are_announced_once_each_in_the_order_of_the_arena),
        cmocka_unit_test(an_error_of_a_hook_ends_the_run),
        cmocka_unit_test(every_slice_of_one_operation_gives_what_the_whole_gives),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(a_network_learns_a_batch_by_heart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
