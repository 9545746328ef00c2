/* Parts of a model, and parameters that come and go, on a GPU that is not there: planned by cuDNN for an H200 whose
 * properties are given as JSON; and run with messages and gathers that are only enqueued, as NCCL's are, while the GPU
 * does all work as late and in as odd an order as CUDA allows. What is computed is what comes of doing one thing after
 * another; an event that is not waited for is noticed.
 *
 * usage: test_cuda_parts PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/properties.h"
#include "tests/worker/run/exact_net.h"
#include "worker/comm/comm.h"
#include "worker/device/cuda/plan.h"
#include "worker/model/model.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/pipeline.h"
#include "worker/pipeline/stage.h"
#include "worker/program/stages.h"

static char *props;

/* --- planned without a device */

enum { PIPE = 4, CHUNKS = 2, PARTS = PIPE * CHUNKS, MICRO = 8, IMAGES = 32, RANKS = 8 };

static void open_idle(struct device **ret)
{
    struct gpu *g;
    struct cudnn *dnn;
    MUST(cudnn_open(&dnn, &(struct cudnn_options){.props_json = props}, e));
    fake_gpu_open(&g, &(struct fake_options){.idle = true, .memory = (size_t)1 << 40});
    MUST(cuda_open_on(ret, g, dnn, &(struct cuda_options){.graphs = true, .fused_patterns = true}, e));
}

/* Of ResNet-50. */
static struct program *stage_of(int stage, size_t align)
{
    const struct model_options o = {
        .arch = "resnet50", .classes = 1000, .input = input_pictures(3, 224, 224, NULL, NULL), .align = align};
    struct program *whole, *p;
    int cuts[STAGES_PARTS_MAX];
    MUST(model_build(&whole, &o, e));
    MUST(stages_cut(whole, PARTS, cuts, e));
    MUST(stages_program(&p, whole, cuts, PARTS, PIPE, stage, e));
    program_destroy(whole);
    return p;
}

struct counts {
    int forward, filter, data, reads;
    size_t set, activations, weights, windows;
};

static void count_steps(const struct cuda_plan *pl, struct counts *c)
{
    for (int i = 0; i < pl->nsteps; i++) {
        const struct step *s = pl->steps[i];
        const enum cudnn_pattern p = s->dnn.pattern;
        const bool dnn = s->kind == STEP_DNN, adds = s->kind == STEP_GEMM && s->adds;
        c->forward += dnn && (p == DNN_CONV || p == DNN_CONV_STATS || p == DNN_SBR_CONV_STATS);
        c->filter += dnn && (p == DNN_WGRAD || p == DNN_SBR_WGRAD);
        c->data += adds || (dnn && (p == DNN_DGRAD || p == DNN_DGRAD_DRELU_BN));
    }
    c->reads += pl->nreads;
}

/* One chunk with so many sets; needs: NULL, or two. */
static void plan_chunk(struct device *d, const struct program *p, int chunk, int sets, struct residency **needs,
                       struct counts *c)
{
    void *arena = (void *)(uintptr_t)(1u << 20); /* of no memory: nothing runs */
    const struct plan_options o = {.batch = IMAGES,
                                   .training = true,
                                   .compute = DT_F16,
                                   .chunk = &p->chunks[chunk],
                                   .sets = sets,
                                   .params = arena,
                                   .stats = arena,
                                   .reduce = arena,
                                   .needs = needs ? residency_needs(needs[0]) : NULL,
                                   .needs_back = needs ? residency_needs(needs[1]) : NULL};
    struct plan_memory m;
    struct plan *plan;
    MUST(d->ops->plan(d, p, &o, &plan, e));
    d->ops->plan_memory(plan, &m);
    count_steps((const struct cuda_plan *)plan, c);
    c->set = ((const struct cuda_plan *)plan)->set_bytes;
    c->activations += m.activations;
    c->weights += m.weights;
    d->ops->plan_close(plan);
}

/* Memory of what lives from the forward to the backward pass comes once a set, all else once. */
static void sets_take_the_memory_of_what_they_keep(void **state)
{
    (void)state;
    struct device *d;
    struct program *p = stage_of(1, 0);
    struct counts two = {0}, five = {0};
    open_idle(&d);
    plan_chunk(d, p, 0, 2, NULL, &two);
    plan_chunk(d, p, 0, 5, NULL, &five);
    print_message("# a set of activations: %zu MiB, all else %zu MiB\n", two.set >> 20,
                  (two.activations - 2 * two.set) >> 20);
    assert_int_equal(two.set, five.set);
    assert_int_equal(five.activations - two.activations, 3 * two.set);
    program_destroy(p);
    d->ops->close(d);
}

/* All of the model's convolutions are in some chunk, each once. zero: parameters are cut over RANKS. */
static void plan_all(bool zero, struct counts *c, size_t *ret_params)
{
    const struct pipeline order = {PIPELINE_INTERLEAVED, PIPE, MICRO, CHUNKS};
    struct device *d;
    open_idle(&d);
    for (int s = 0; s < PIPE; s++) {
        struct program *p = stage_of(s, zero ? OWNERSHIP_ALIGN * RANKS : 0);
        const struct ownership_options o = {.elem_bytes = sizeof(float), .whole_gradients = true, .compact = true};
        struct ownership own;
        struct layout l;
        MUST(layout_plan(&l, RANKS * PIPE, 1, PIPE, zero ? 3 : 0, e));
        MUST(ownership_init(&own, &l, RANKS * s + 3, p, &o, e));
        *ret_params += ownership_elements(&own, OWNERSHIP_PARAMS) * sizeof(float);
        for (int k = 0; k < CHUNKS; k++) {
            struct residency *needs[2] = {0};
            for (int i = 0; i < 2 && zero; i++)
                MUST(residency_create(&needs[i], &own, NULL, d, NULL, e));
            plan_chunk(d, p, k, pipeline_live(&order, s, k), zero ? needs : NULL, c);
            for (int i = 0; i < 2 && zero; i++) {
                c->windows += residency_peak(needs[i]) * sizeof(float);
                residency_destroy(needs[i]);
            }
        }
        ownership_finish(&own);
        program_destroy(p);
    }
    d->ops->close(d);
}

static void resnet50_is_planned_in_stages(void **state)
{
    (void)state;
    struct counts plain = {0}, cut = {0};
    size_t params = 0, own = 0;
    plan_all(false, &plain, &params);
    plan_all(true, &cut, &own);
    print_message("# all stages: activations %zu MiB, copies of weights %zu MiB, parameters %zu MiB\n",
                  plain.activations >> 20, plain.weights >> 20, params >> 20);
    print_message("# zero 3, of %d ranks: activations %zu MiB, windows %zu MiB, parameters %zu MiB, %d reads\n", RANKS,
                  cut.activations >> 20, cut.windows >> 20, own >> 20, cut.reads);
    for (int i = 0; i < 2; i++) {
        const struct counts *c = i ? &cut : &plain;
        assert_int_equal(53, c->forward);
        assert_int_equal(53, c->filter);
        assert_int_equal(52, c->data); /* the stem needs none */
    }
    assert_int_equal(0, plain.reads);
    assert_int_equal(0, cut.weights); /* no copy is kept */
    /* forward: convolutions, batch norms, the last layer's weight and bias; backward: convolutions, the last layer */
    assert_int_equal(53 + 53 + 2 + 52 + 1, cut.reads);
    assert_true(own < params / RANKS + (params >> 6)); /* with padding */
    assert_true(cut.windows > 0);
}

/* --- run: a GPU that does everything late */

enum { SIDE = 16, BATCH = 3, LINE = 3, STEP = 4, STEPS = 3 };

static const uint8_t no_images[1];

struct bench {
    struct gpu *gpu;
    struct device *d;
    struct program *p;
    void *params, *stats, *reduce;
};

static void open_bench(struct bench *b, bool graphs, uint64_t seed, bool lazy)
{
    fake_gpu_open(&b->gpu, &(struct fake_options){.seed = seed, .lazy = lazy});
    MUST(cuda_open_on(&b->d, b->gpu, NULL, &(struct cuda_options){.graphs = graphs}, e));
}

static void take_arenas(struct bench *b, size_t params)
{
    struct device *d = b->d;
    MUST(d->ops->alloc(d, params * sizeof(float), &b->params, e));
    MUST(d->ops->alloc(d, (b->p->n_stats + 1) * sizeof(float), &b->stats, e));
    MUST(d->ops->alloc(d, b->p->n_reduce * sizeof(float), &b->reduce, e));
    fake_gpu_wait(b->gpu, NULL);
}

static void close_bench(struct bench *b)
{
    struct device *d = b->d;
    d->ops->release(d, b->params);
    d->ops->release(d, b->stats);
    d->ops->release(d, b->reduce);
    d->ops->close(d);
    program_destroy(b->p);
}

static float weight_of(size_t i)
{
    return (float)((int)(i * 7 % 13) - 6) / 16;
}

/* Waits that are left out: those of the computing stream, or those of all others. */
enum mutant { RIGHT, NO_WAIT_ON_COMPUTE, NO_WAIT_BESIDE };

static struct device_ops wrong_ops;
static struct device_async wrong_async;
static const struct device_async *right_async;
static enum mutant mutant;

static int some_follow(struct device *d, void *event, void *stream, struct err *e)
{
    const bool compute = stream == right_async->compute(d);
    if (compute == (mutant == NO_WAIT_ON_COMPUTE))
        return 0;
    return right_async->follow(d, event, stream, e);
}

static int some_order(struct device *d, void *before, void *after, struct err *e)
{
    const bool compute = after == right_async->compute(d);
    if (compute == (mutant == NO_WAIT_ON_COMPUTE))
        return 0;
    return right_async->order(d, before, after, e);
}

static void mutate(struct device *d, enum mutant m)
{
    mutant = m;
    right_async = d->ops->async;
    if (m == RIGHT)
        return;
    wrong_async = *right_async;
    wrong_async.follow = some_follow;
    wrong_async.order = some_order;
    wrong_ops = *d->ops;
    wrong_ops.async = &wrong_async;
    d->ops = &wrong_ops;
}

/* --- the stage in the middle of three, whose neighbours say what they always say */

/* A neighbour: the k-th message of a channel comes from, or goes to, slot k. */
struct neighbour {
    struct comm base;
    struct device *d;
    char *sent, *received; /* (STEPS * STEP) of device memory each */
    size_t bytes;
    int nsent, nreceived;
};

static int come(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                struct comm_request **ret, struct err *e)
{
    struct neighbour *n = (struct neighbour *)c;
    const char *from = n->received + (size_t)n->nreceived++ % (STEPS * STEP) * n->bytes;
    *ret = NULL;
    return right_async->copy(n->d, stream, buf, from, bytes, e);
}

static int go(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
              struct comm_request **ret, struct err *e)
{
    struct neighbour *n = (struct neighbour *)c;
    char *to = n->sent + (size_t)n->nsent++ * n->bytes;
    *ret = NULL;
    return right_async->copy(n->d, stream, to, buf, bytes, e);
}

static const struct comm_ops neighbour_ops = {.irecv = come, .isend = go};

static void open_neighbour(struct neighbour *n, struct device *d, int rank, size_t elements, int salt)
{
    void *p;
    *n = (struct neighbour){
        .base = {.ops = &neighbour_ops, .rank = rank, .world = 2}, .d = d, .bytes = elements * sizeof(float)};
    MUST(d->ops->alloc(d, STEPS * STEP * n->bytes, &p, e));
    n->sent = p;
    MUST(d->ops->alloc(d, STEPS * STEP * n->bytes, &p, e));
    n->received = p;
    float *values = malloc(STEPS * STEP * n->bytes);
    for (size_t i = 0; i < STEPS * STEP * elements; i++)
        values[i] = (float)((int)((i * 11 + (size_t)salt) % 31) - 15) / 32;
    MUST(d->ops->upload(d, p, values, STEPS * STEP * n->bytes, e));
    free(values);
}

struct outcome {
    char *bytes; /* what was sent both ways, then the reduce arena */
    size_t n;
};

static void note(struct outcome *o, struct device *d, const void *from, size_t bytes)
{
    o->bytes = realloc(o->bytes, o->n + bytes);
    MUST(d->ops->download(d, o->bytes + o->n, from, bytes, e));
    o->n += bytes;
}

static size_t boundary(const struct program *p, int tensor)
{
    const struct tensor *t = &p->tensors[tensor];
    return (size_t)BATCH * (size_t)t->c * (size_t)t->h * (size_t)t->w;
}

static void build_middle(struct bench *b)
{
    struct program *whole;
    int cuts[LINE];
    MUST(exact_net(&whole, &(struct split){SPLIT_NONE, 1, 0}, e));
    MUST(stages_cut(whole, LINE, cuts, e));
    MUST(stages_program(&b->p, whole, cuts, LINE, LINE, 1, e));
    program_destroy(whole);
}

static struct outcome run_middle(enum pipeline_kind kind, bool recompute, bool graphs, uint64_t seed, bool lazy,
                                 enum mutant m)
{
    struct bench b;
    struct neighbour before, behind;
    struct outcome o = {0};
    struct ownership own;
    struct ddp *ddp;
    struct stage *g;
    struct comm *const groups[LAYOUT_GROUPS] = {0};
    static const int32_t labels[STEP * BATCH];
    float weights[STEP * BATCH];
    for (int i = 0; i < STEP * BATCH; i++)
        weights[i] = i % 5 != 2;
    open_bench(&b, graphs, seed, lazy);
    build_middle(&b);
    take_arenas(&b, b.p->n_train);
    for (size_t i = 0; i < b.p->n_train; i++)
        ((float *)b.params)[i] = weight_of(i);
    mutate(b.d, m);
    const struct program_chunk *c = &b.p->chunks[0];
    open_neighbour(&before, b.d, 1, boundary(b.p, c->in), 3);
    open_neighbour(&behind, b.d, 0, boundary(b.p, c->out), 17);
    MUST(ownership_init_alone(&own, b.p, e));
    MUST(ddp_create(&ddp, groups, &own, b.reduce, b.p->n_reduce - b.p->n_train, DT_F32,
                    &(struct ddp_options){.wire = DT_F32, .device = b.d}, e));
    const struct stage_options so = {.order = {kind, LINE, STEP, 1},
                                     .index = 1,
                                     .comm = &before.base,
                                     .before = &before.base,
                                     .behind = &behind.base,
                                     .device = b.d,
                                     .program = b.p,
                                     .own = &own,
                                     .ddp = ddp,
                                     .recompute = recompute,
                                     .plan = {.batch = BATCH,
                                              .training = true,
                                              .compute = DT_F32,
                                              .params = b.params,
                                              .stats = b.stats,
                                              .reduce = b.reduce}};
    MUST(stage_open(&g, &so, e));
    for (int i = 0; i < STEPS; i++) {
        const struct run_args all = {
            .batch = {.rows = no_images, .labels = labels, .weights = weights}, .grad_scale = 1, .params_version = 1};
        MUST(stage_train(g, &all, e));
        MUST(ddp_wait(ddp, e));
    }
    MUST(b.d->ops->sync(b.d, e));
    stage_close(g); /* what is on its way has gone */
    note(&o, b.d, before.sent, STEPS * STEP * before.bytes);
    note(&o, b.d, behind.sent, STEPS * STEP * behind.bytes);
    note(&o, b.d, b.reduce, b.p->n_train * sizeof(float));
    ddp_destroy(ddp);
    ownership_finish(&own);
    struct neighbour *both[] = {&before, &behind};
    for (int i = 0; i < 2; i++) {
        b.d->ops->release(b.d, both[i]->sent);
        b.d->ops->release(b.d, both[i]->received);
    }
    close_bench(&b);
    return o;
}

static bool same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n, b->n);
    return memcmp(a->bytes, b->bytes, a->n) == 0;
}

/* One after another, and as odd as can be: the same bits, walked, captured and launched. */
static void messages_that_are_enqueued_come_and_go_in_time(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        const enum pipeline_kind kind = k % 2 ? PIPELINE_1F1B : PIPELINE_GPIPE;
        struct outcome want = run_middle(kind, k / 2, false, 0, true, RIGHT);
        for (uint64_t seed = 0; seed < 6; seed++) {
            struct outcome got = run_middle(kind, k / 2, true, seed, false, RIGHT);
            assert_true(same(&got, &want));
            free(got.bytes);
        }
        free(want.bytes);
    }
}

static void a_message_that_nobody_waits_for_is_noticed(void **state)
{
    (void)state;
    struct outcome want = run_middle(PIPELINE_1F1B, false, false, 0, true, RIGHT);
    for (int m = NO_WAIT_ON_COMPUTE; m <= NO_WAIT_BESIDE; m++) {
        bool seen = false;
        for (uint64_t seed = 0; seed < 12 && !seen; seed++) {
            struct outcome got = run_middle(PIPELINE_1F1B, false, false, seed, false, m);
            seen = !same(&got, &want);
            free(got.bytes);
        }
        if (!seen)
            fail_msg("mutant %d goes unseen", m);
    }
    free(want.bytes);
}

/* --- parameters that come and go: of two ranks whose parts are alike */

static int gather_twice(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes, void *stream,
                        struct err *e)
{
    const struct neighbour *n = (const struct neighbour *)c;
    TRY(right_async->copy(n->d, stream, out, in, bytes, e));
    return right_async->copy(n->d, stream, (char *)out + bytes, in, bytes, e);
}

static int all_reduce_nothing(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                              void *stream, struct err *e)
{
    return 0;
}

static int scatter_own(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                       enum comm_op op, void *stream, struct err *e)
{
    const struct neighbour *k = (const struct neighbour *)c;
    return right_async->copy(k->d, stream, out, in, n * dtype_size(t), e);
}

static const struct comm_ops twin_ops = {
    .all_gather = gather_twice, .all_reduce = all_reduce_nothing, .reduce_scatter = scatter_own};

static void own_two(struct ownership *own, const struct program *p)
{
    struct layout l;
    const struct ownership_options o = {
        .elem_bytes = sizeof(float), .bucket_bytes = 6000, .first_bucket_bytes = 1500, .compact = true};
    MUST(layout_plan(&l, 2, 1, 1, 3, e));
    MUST(ownership_init(own, &l, 0, p, &o, e));
}

/* Whole parameters of which both ranks' parts of each piece are alike. */
static float *twin_params(const struct ownership *own)
{
    float *v = calloc(own->n_train, sizeof *v);
    for (int k = 0; k < own->npieces; k++) {
        const struct ownership_piece *p = &own->pieces[k];
        for (size_t i = p->first; i < p->end; i++)
            v[i] = weight_of(p->part ? (i - p->first) % p->part : i);
    }
    return v;
}

/* Gradients that this rank owns, after some runs of which all but the first add. cut: parameters come and go. */
static struct outcome run_windows(bool cut, bool graphs, uint64_t seed, bool lazy, enum mutant m)
{
    struct bench b;
    struct neighbour twin = {.base = {.ops = &twin_ops, .world = 2}};
    struct outcome o = {0};
    struct ownership own;
    struct ddp *ddp = NULL;
    struct residency *needs = NULL;
    struct plan *plan;
    uint8_t images[BATCH * 3 * SIDE * SIDE];
    const int32_t labels[BATCH] = {1, 20, 36};
    const float weights[BATCH] = {1, 1, 0};
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = &twin.base};
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 31 + i / 7);
    open_bench(&b, graphs, seed, lazy);
    MUST(exact_aligned(&b.p, EXACT_RESIDUAL, &(struct split){SPLIT_NONE, 1, 0}, 2 * OWNERSHIP_ALIGN, e));
    own_two(&own, b.p);
    take_arenas(&b, b.p->n_train);
    float *v = twin_params(&own);
    for (int k = 0; k < own.nowned; k++)
        for (size_t i = own.owned[k].first; i < own.owned[k].end && cut; i++)
            ((float *)b.params)[ownership_place(&own, OWNERSHIP_PARAMS, i)] = v[i];
    if (!cut)
        memcpy(b.params, v, b.p->n_train * sizeof *v);
    free(v);
    mutate(b.d, m);
    twin.d = b.d;
    if (cut) {
        MUST(ddp_create(&ddp, groups, &own, b.reduce, b.p->n_reduce - b.p->n_train, DT_F32,
                        &(struct ddp_options){.wire = DT_F32, .device = b.d}, e));
        MUST(residency_create(&needs, &own, ddp, b.d, b.params, e));
    }
    const struct plan_options po = {.batch = BATCH,
                                    .training = true,
                                    .compute = DT_F32,
                                    .params = b.params,
                                    .stats = b.stats,
                                    .reduce = b.reduce,
                                    .needs = needs ? residency_needs(needs) : NULL};
    MUST(b.d->ops->plan(b.d, b.p, &po, &plan, e));
    for (int i = 0; i < 5; i++) {
        const struct run_args a = {
            .batch = {images, labels, weights}, .grad_scale = 1, .accumulate = i > 0, .params_version = 1};
        MUST(b.d->ops->run(plan, &a, e));
    }
    MUST(b.d->ops->sync(b.d, e));
    fake_gpu_wait(b.gpu, NULL);
    note(&o, b.d, b.reduce, b.p->n_reduce * sizeof(float));
    b.d->ops->plan_close(plan);
    residency_destroy(needs);
    ddp_destroy(ddp);
    ownership_finish(&own);
    close_bench(&b);
    return o;
}

static void windows_have_what_arenas_would_have(void **state)
{
    (void)state;
    struct outcome want = run_windows(false, false, 0, true, RIGHT);
    for (uint64_t seed = 0; seed < 8; seed++)
        for (int graphs = 0; graphs < 2; graphs++) {
            struct outcome got = run_windows(true, graphs, seed, false, RIGHT);
            assert_true(same(&got, &want));
            free(got.bytes);
        }
    free(want.bytes);
}

static void a_window_that_nobody_waits_for_is_noticed(void **state)
{
    (void)state;
    struct outcome want = run_windows(false, false, 0, true, RIGHT);
    for (int m = NO_WAIT_ON_COMPUTE; m <= NO_WAIT_BESIDE; m++) {
        bool seen = false;
        for (uint64_t seed = 0; seed < 12 && !seen; seed++) {
            struct outcome got = run_windows(true, false, seed, false, m);
            seen = !same(&got, &want);
            free(got.bytes);
        }
        if (!seen)
            fail_msg("mutant %d goes unseen", m);
    }
    free(want.bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_take_the_memory_of_what_they_keep),
        cmocka_unit_test(resnet50_is_planned_in_stages),
        cmocka_unit_test(messages_that_are_enqueued_come_and_go_in_time),
        cmocka_unit_test(a_message_that_nobody_waits_for_is_noticed),
        cmocka_unit_test(windows_have_what_arenas_would_have),
        cmocka_unit_test(a_window_that_nobody_waits_for_is_noticed),
    };
    props = properties_read(argv[argc - 1]);
    const int rc = cmocka_run_group_tests_name("parts of a model", tests, NULL, NULL);
    free(props);
    return rc;
}
