/* Plans of layers that ranks share: with no GPU in the machine, for an H200 whose properties are given as JSON; and
 * captured, where the group's calls are enqueued as NCCL's are.
 *
 * usage: test_cuda_group_plans PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/properties.h"
#include "tests/worker/run/exact_net.h"
#include "worker/device/cuda/plan.h"
#include "worker/model/model.h"

enum { RANKS = 8, CLASSES = 2000000, FEATURES = 2048, IMAGES = 32 };

static char *props;

/* --- planned without a device */

static struct program *split_resnet50(enum split_kind kind)
{
    struct program *p;
    const struct model_options o = {.arch = "resnet50",
                                    .classes = CLASSES,
                                    .input = input_pictures(3, 224, 224, NULL, NULL),
                                    .split = {.kind = kind, .ranks = RANKS, .index = 1}};
    MUST(model_build(&p, &o, e));
    return p;
}

/* The layer's share of the arenas, in elements. */
static const size_t SHARE = (size_t)CLASSES / RANKS * FEATURES;

static void plan_split(enum split_kind kind, enum dtype type, size_t copies)
{
    struct gpu *g;
    struct cudnn *dnn;
    struct device *d;
    struct plan *plan;
    struct plan_memory m;
    void *params, *stats, *reduce;
    struct program *p = split_resnet50(kind);
    const struct plan_group group = {.ranks = RANKS, .index = 1};
    MUST(cudnn_open(&dnn, &(struct cudnn_options){.props_json = props}, e));
    fake_gpu_open(&g, &(struct fake_options){.idle = true, .memory = (size_t)1 << 40});
    MUST(cuda_open_on(&d, g, dnn, &(struct cuda_options){.graphs = true, .fused_patterns = true}, e));
    MUST(d->ops->alloc(d, p->n_train * sizeof(float), &params, e));
    MUST(d->ops->alloc(d, p->n_stats * sizeof(float), &stats, e));
    MUST(d->ops->alloc(d, p->n_reduce * sizeof(float), &reduce, e));
    const struct plan_options o = {.batch = IMAGES,
                                   .training = true,
                                   .compute = type,
                                   .params = params,
                                   .stats = stats,
                                   .reduce = reduce,
                                   .group = &group};
    MUST(d->ops->plan(d, p, &o, &plan, e));
    d->ops->plan_memory(plan, &m);
    const size_t rest = 40u << 20; /* copies of the other weights, 23.5 million of them */
    print_message("# %s, split over %s: copies of weights %zu MiB, activations %zu MiB, arena %zu MiB\n",
                  dtype_name(type), kind == SPLIT_CLASSES ? "classes" : "features", m.weights >> 20,
                  m.activations >> 20, p->n_train * sizeof(float) >> 20);
    assert_in_range(m.weights, copies, copies + (type == DT_F32 ? 100u << 20 : 2 * rest));
    for (int i = 0; i < p->nparams; i++) /* gradients of the layer are made where they belong */
        if (p->params[i].sharded && p->params[i].ndim == 2)
            assert_int_equal(((struct cuda_plan *)plan)->weights[i].gradient, NO_BUFFER);
    d->ops->plan_close(plan);
    d->ops->close(d);
    program_destroy(p);
}

static void a_layer_of_two_million_classes_is_not_copied(void **state)
{
    (void)state;
    plan_split(SPLIT_CLASSES, DT_F32, 0);
    plan_split(SPLIT_FEATURES, DT_F32, 0);
}

static void halves_take_one_copy_of_what_they_make_of_its_weights(void **state)
{
    (void)state;
    plan_split(SPLIT_CLASSES, DT_F16, SHARE * 2);
    plan_split(SPLIT_FEATURES, DT_BF16, SHARE * 2);
}

/* --- a language model whose blocks and vocabulary are shared */

enum { SEQUENCES = 8, LENGTH = 1024, VOCABULARY = 50257 };

/* GPT-2 1558M: 25 heads over 8 ranks, of which the first has four; a vocabulary that 8 does not divide. */
static struct program *split_gpt2(void)
{
    struct program *p;
    char *shipped, text[8192];
    MUST(model_text(&shipped, "gpt2", NET_TORCH, false, e));
    snprintf(text, sizeof text, "%sset width=1600 layers=48 heads=25\n", shipped);
    free(shipped);
    const struct model_options o = {.arch = "gpt2",
                                    .text = text,
                                    .input = input_tokens(LENGTH, VOCABULARY),
                                    .split = {.kind = SPLIT_CLASSES, .ranks = RANKS, .index = 0}};
    MUST(model_build(&p, &o, e));
    return p;
}

/* What a plan has of a kind of step, of operations of a kind. */
static int count_steps(const struct cuda_plan *pl, enum step_kind step, enum op_kind op)
{
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++)
        n += pl->steps[i]->kind == step && pl->p->ops[pl->steps[i]->op].kind == op;
    return n;
}

static void a_shared_language_model_is_planned_and_has_no_logits(void **state)
{
    struct gpu *g;
    struct cudnn *dnn;
    struct device *d;
    struct plan *plan;
    void *params, *stats, *reduce;
    const struct plan_group group = {.ranks = RANKS};
    struct program *p = split_gpt2();
    size_t most = 0;
    (void)state;
    MUST(cudnn_open(&dnn, &(struct cudnn_options){.props_json = props}, e));
    fake_gpu_open(&g, &(struct fake_options){.idle = true, .memory = (size_t)1 << 40});
    MUST(cuda_open_on(&d, g, dnn, &(struct cuda_options){.graphs = true, .fused_patterns = true}, e));
    MUST(d->ops->alloc(d, p->n_train * sizeof(float), &params, e));
    MUST(d->ops->alloc(d, sizeof(float), &stats, e));
    MUST(d->ops->alloc(d, p->n_reduce * sizeof(float), &reduce, e));
    const struct plan_options o = {.batch = SEQUENCES,
                                   .training = true,
                                   .compute = DT_BF16,
                                   .params = params,
                                   .stats = stats,
                                   .reduce = reduce,
                                   .group = &group};
    MUST(d->ops->plan(d, p, &o, &plan, e));
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    for (int i = 0; i < pl->nbuffers; i++)
        most = pl->buffers[i].bytes > most ? pl->buffers[i].bytes : most;
    const size_t logits = (size_t)RANKS * SEQUENCES * LENGTH * (VOCABULARY / RANKS + 1) * sizeof(float);
    const int blocks = count_steps(pl, STEP_GROUP, OP_HEAD_BWD) / 2;
    print_message("# largest buffer %zu MiB, all logits %zu MiB, in %d blocks; arena %zu MiB\n", most >> 20,
                  logits >> 20, blocks, p->n_train * sizeof(float) >> 20);
    assert_true(most < logits / 2);
    assert_in_range(blocks, logits >> 29, (logits >> 29) + 1);
    assert_int_equal(count_steps(pl, STEP_KERNEL, OP_ATTENTION), 48); /* cuDNN finishes its graphs on a card alone */
    for (int i = 0; i < pl->nsteps; i++)
        if (pl->steps[i]->kind == STEP_KERNEL && pl->steps[i]->kernel == KERNEL_ATTENTION)
            assert_int_equal(pl->steps[i]->args.as_KERNEL_ATTENTION.heads, 4);
    assert_in_range(p->n_train, 1558000000 / RANKS, 1558000000 * 1.2 / RANKS);
    d->ops->plan_close(plan);
    d->ops->close(d);
    program_destroy(p);
}

/* --- captured: a group of two whose other rank has and does the same */

static int twice(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct device *d = ctx;
    const size_t bytes = n * dtype_size(t);
    TRY(d->ops->async->copy(d, stream, out, in, bytes, e));
    return d->ops->async->copy(d, stream, (char *)out + bytes, in, bytes, e);
}

static int first_part(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct device *d = ctx;
    return d->ops->async->convert(d, stream, out, t, in, t, n, 2, e);
}

static int doubled(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct device *d = ctx;
    return d->ops->async->convert(d, stream, buf, t, buf, t, n, 2, e);
}

static int same(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    return 0;
}

enum { BATCH = 3, RUNS = 5 };

/* The sums of some runs, of which each but the first adds to those before. */
static float *run_captured(enum exact_kind net, enum split_kind kind, bool graphs, uint64_t seed, size_t *ret_n,
                           long *ret_launches)
{
    enum { POSITIONS = 8 };
    struct gpu *g;
    struct device *d;
    struct program *p;
    struct plan *plan;
    void *params, *stats, *reduce;
    uint8_t images[BATCH * 3 * 16 * 16];
    int32_t tokens[BATCH * POSITIONS], labels[BATCH * POSITIONS];
    const uint32_t numbers[BATCH] = {7, 70000, 9};
    const float weights[BATCH] = {1, 1, 0};
    MUST(exact_aligned(&p, net, &(struct split){kind, 2, 0}, 0, e));
    for (int i = 0; i < BATCH * POSITIONS; i++) {
        labels[i] = (1 + 19 * i) % 37;
        tokens[i] = 5 * i % 37;
    }
    fake_gpu_open(&g, &(struct fake_options){.seed = seed});
    MUST(cuda_open_on(&d, g, NULL, &(struct cuda_options){.graphs = graphs}, e));
    MUST(d->ops->alloc(d, p->n_train * sizeof(float), &params, e));
    MUST(d->ops->alloc(d, p->n_stats * sizeof(float), &stats, e));
    MUST(d->ops->alloc(d, p->n_reduce * sizeof(float), &reduce, e));
    fake_gpu_wait(g, NULL);
    for (size_t i = 0; i < p->n_train; i++) /* device memory is plain memory here */
        ((float *)params)[i] = (float)((int)(i * 7 % 13) - 6) / 16;
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 31 + i / 7);
    const struct plan_group group = {
        .ctx = d, .ranks = 2, .gather = twice, .scatter = first_part, .sum = doubled, .max = same};
    const struct plan_options o = {.batch = BATCH,
                                   .training = true,
                                   .compute = DT_F32,
                                   .params = params,
                                   .stats = stats,
                                   .reduce = reduce,
                                   .group = &group};
    MUST(d->ops->plan(d, p, &o, &plan, e));
    for (int i = 0; i < RUNS; i++) {
        const struct run_args a = {.batch = {net == EXACT_TIED ? (void *)tokens : images, labels, weights, numbers},
                                   .grad_scale = 1,
                                   .accumulate = i > 0,
                                   .params_version = 1};
        MUST(d->ops->run(plan, &a, e));
    }
    fake_gpu_wait(g, NULL);
    *ret_n = p->n_reduce;
    *ret_launches = fake_gpu_counts(g)->launches;
    float *sums = malloc(*ret_n * sizeof *sums);
    memcpy(sums, reduce, *ret_n * sizeof *sums);
    d->ops->plan_close(plan);
    d->ops->release(d, params);
    d->ops->release(d, stats);
    d->ops->release(d, reduce);
    d->ops->close(d);
    program_destroy(p);
    return sums;
}

static void calls_that_are_enqueued_are_captured_and_launched(void **state)
{
    (void)state;
    static const enum split_kind kinds[] = {SPLIT_CLASSES, SPLIT_FEATURES, SPLIT_CLASSES};
    static const enum exact_kind nets[] = {EXACT_RESIDUAL, EXACT_RESIDUAL, EXACT_TIED};
    for (int k = 0; k < 3; k++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            size_t n;
            long walks, launches;
            float *want = run_captured(nets[k], kinds[k], false, 0, &n, &walks),
                  *got = run_captured(nets[k], kinds[k], true, seed, &n, &launches);
            assert_int_equal(walks, 0);
            assert_int_equal(launches, RUNS - 2); /* the first run alone; the second, which accumulates, is walked */
            assert_memory_equal(got, want, n * sizeof *want);
            free(got);
            free(want);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_of_two_million_classes_is_not_copied),
        cmocka_unit_test(halves_take_one_copy_of_what_they_make_of_its_weights),
        cmocka_unit_test(a_shared_language_model_is_planned_and_has_no_logits),
        cmocka_unit_test(calls_that_are_enqueued_are_captured_and_launched),
    };
    props = properties_read(argv[argc - 1]);
    const int rc = cmocka_run_group_tests_name("plans over a group", tests, NULL, NULL);
    free(props);
    return rc;
}
