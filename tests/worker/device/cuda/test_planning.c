/* With no GPU in the machine: every graph that the engine would run for a ResNet has a finalised plan for an H200,
 * whose properties are given as JSON, and as much is fused as there is to fuse. The plans are those of real cuda plans,
 * made over an idle fake of the GPU; prints what was chosen.
 *
 * usage: test_planning PROPERTIES.json [MODEL...] */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/properties.h"
#include "worker/device/cuda/plan.h"
#include "worker/model/model.h"

struct kind {
    const char *name;
    enum dtype type;
    bool tf32;
    enum memory_format format;
};
static const struct kind kinds[] = {
    {"TF32", DT_F32, true, MEMORY_NHWC},        {"fp16", DT_F16, false, MEMORY_NHWC},
    {"bf16", DT_BF16, false, MEMORY_NHWC},      {"fp32", DT_F32, false, MEMORY_NHWC},
    {"TF32 nchw", DT_F32, true, MEMORY_NCHW},   {"fp16 nchw", DT_F16, false, MEMORY_NCHW},
    {"bf16 nchw", DT_BF16, false, MEMORY_NCHW}, {"fp32 nchw", DT_F32, false, MEMORY_NCHW}};
static const int batches[] = {32, 256};

/* What of the engine is planned: its training step as it comes, the one of --no-conv-fusion, evaluation. */
enum use { TRAINING, UNFUSED, EVALUATION, USES };
static const char *const uses[USES] = {"training", "unfused", "evaluation"};
static char *props;

/* What a training step in fp16 NHWC must fuse: statistics go with every convolution, the folded stem (device/fold.h)
 * among them. Where a convolution alone reads a batch norm with ReLU (a seam), it takes that along as well, forward and
 * backward. In halves, the gradient that reaches a block's first convolution, 1x1, is added to the shortcut's by its
 * product, no graph. */
static const struct fusion {
    const char *arch;
    int stats, seams, sums; /* convolutions with statistics alone; those with all of it; blocks with such a sum */
} fusions[] = {{"resnet18", 12, 8, 0},
               {"resnet34", 20, 16, 0},
               {"resnet50", 21, 32, 16},
               {"resnet101", 38, 66, 33},
               {"resnet152", 55, 100, 50}};

static bool may_fuse(const struct kind *k)
{
    return k->type == DT_F16 && k->format == MEMORY_NHWC;
}

static bool may_add(const struct kind *k)
{
    return k->type != DT_F32 && k->format == MEMORY_NHWC;
}

struct tally {
    int count, distinct;
    size_t workspace;
    struct seen {
        const struct gpu_dnn *graph;
        int count;
    } seen[64];
};

static struct program *model(const char *arch)
{
    struct program *p;
    struct err e = {0};
    const struct model_options o = {
        .arch = arch,
        .classes = 1000,
        .input = input_pictures(3, 224, 224, (float[4]){0.5f, 0.5f, 0.5f, 0}, (float[4]){0.25f, 0.25f, 0.25f, 1})};
    if (model_build(&p, &o, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static struct device *open_idle(const struct kind *k, bool fused)
{
    struct gpu *g;
    struct cudnn *dnn;
    struct device *d;
    struct err e = {0};
    if (cudnn_open(&dnn, &(struct cudnn_options){.props_json = props}, &e) < 0)
        fail_msg("%s", e.text);
    fake_gpu_open(&g, &(struct fake_options){.idle = true, .memory = (size_t)1 << 40});
    const struct cuda_options o = {.graphs = true, .tf32 = k->tf32, .fused_patterns = fused};
    if (cuda_open_on(&d, g, dnn, &o, &e) < 0)
        fail_msg("%s", e.text);
    return d;
}

static void count(struct tally *t, const struct gpu_dnn *d)
{
    const size_t w = cudnn_plan_workspace(d->plan);
    int i = 0;
    t->count++;
    t->workspace = w > t->workspace ? w : t->workspace;
    while (i < t->distinct && t->seen[i].graph->plan != d->plan)
        i++;
    assert_true(i < (int)(sizeof t->seen / sizeof *t->seen));
    t->distinct = i == t->distinct ? i + 1 : t->distinct;
    t->seen[i].graph = d;
    t->seen[i].count++;
}

static int ops_of(const struct program *p, enum op_kind kind)
{
    int n = 0;
    for (int i = 0; i < p->nops; i++)
        n += p->ops[i].kind == kind;
    return n;
}

static const struct fusion *fusion_of(const char *arch)
{
    for (size_t i = 0; i < sizeof fusions / sizeof *fusions; i++)
        if (strcmp(fusions[i].arch, arch) == 0)
            return &fusions[i];
    fail_msg("the test does not know what %s must fuse", arch);
    return NULL;
}

/* How many graphs of each pattern there must be. */
static void expect(const struct program *p, const char *arch, const struct kind *k, enum use use, int *ret)
{
    const bool fuses = use == TRAINING && may_fuse(k);
    const int seams = fuses ? fusion_of(arch)->seams : 0, stats = fuses ? fusion_of(arch)->stats : 0,
              sums = use == TRAINING && may_add(k) ? fusion_of(arch)->sums : 0;
    ret[DNN_CONV] = ops_of(p, OP_CONV) - stats - seams;
    ret[DNN_CONV_STATS] = stats;
    ret[DNN_SBR_CONV_STATS] = ret[DNN_SBR_WGRAD] = ret[DNN_DGRAD_DRELU_BN] = seams;
    ret[DNN_DGRAD] = use == EVALUATION ? 0 : ops_of(p, OP_CONV_BWD_DATA) - seams - sums;
    ret[DNN_WGRAD] = use == EVALUATION ? 0 : ops_of(p, OP_CONV_BWD_PARAM) - seams;
}

static void print_tally(const char *arch, const struct kind *k, int batch, enum use use, const struct tally *t)
{
    char graph[128];
    for (int i = 0; i < DNN_GRAPHS; i++) {
        if (t[i].count == 0)
            continue;
        print_message("# %-10s %-9s %5d  %-10s  %-15s %6d %9d %10zu KiB\n", arch, k->name, batch, uses[use],
                      cudnn_pattern_name(i), t[i].count, t[i].distinct, t[i].workspace >> 10);
        for (int s = 0; s < t[i].distinct; s++) {
            const struct gpu_dnn *d = t[i].seen[s].graph;
            cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
            print_message("#   %-60s %6d %19zu KiB  %s\n", graph, t[i].seen[s].count,
                          cudnn_plan_workspace(d->plan) >> 10, cudnn_plan_name(d->plan));
        }
    }
}

/* Every convolution of the program is a step with a plan, of the pattern that it must have. */
static void examine(const struct program *p, const char *arch, const struct kind *k, int batch, enum use use,
                    const struct cuda_plan *pl)
{
    struct tally *t = calloc(DNN_GRAPHS, sizeof *t);
    int want[DNN_GRAPHS];
    expect(p, arch, k, use, want);
    for (int i = 0; i < pl->nsteps; i++) {
        const struct step *s = pl->steps[i];
        if (s->kind != STEP_DNN)
            continue;
        if (!s->dnn.plan)
            fail_msg("%s %s batch %d %s: op %d has no plan for %s", arch, k->name, batch, uses[use], s->op,
                     cudnn_pattern_name(s->dnn.pattern));
        assert_int_equal(s->dnn.pattern, cudnn_plan_pattern(s->dnn.plan));
        assert_true(pl->workspace_bytes >= cudnn_plan_workspace(s->dnn.plan));
        count(&t[s->dnn.pattern], &s->dnn);
    }
    print_tally(arch, k, batch, use, t);
    for (int i = 0; i < DNN_GRAPHS; i++)
        if (t[i].count != want[i])
            fail_msg("%s %s batch %d %s: %d graphs are %s, expected %d", arch, k->name, batch, uses[use], t[i].count,
                     cudnn_pattern_name(i), want[i]);
    free(t);
}

static void plan_one(const struct program *p, const char *arch, const struct kind *k, int batch, enum use use)
{
    struct device *d = open_idle(k, use != UNFUSED);
    struct plan *plan;
    struct err e = {0};
    void *arena[3];
    const size_t n[] = {p->n_train, p->n_stats, p->n_reduce};
    for (int i = 0; i < 3; i++)
        assert_int_equal(0, d->ops->alloc(d, n[i] * sizeof(float), &arena[i], &e));
    const struct plan_options o = {.batch = batch,
                                   .training = use != EVALUATION,
                                   .compute = k->type,
                                   .format = k->format,
                                   .params = arena[0],
                                   .stats = arena[1],
                                   .reduce = arena[2]};
    if (d->ops->plan(d, p, &o, &plan, &e) < 0)
        fail_msg("%s %s batch %d %s: %s", arch, k->name, batch, uses[use], e.text);
    examine(p, arch, k, batch, use, (const struct cuda_plan *)plan);
    d->ops->plan_close(plan);
    d->ops->close(d);
}

static void every_graph_has_a_plan(void **state)
{
    const char *arch = *state;
    struct program *p = model(arch);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
            for (enum use use = TRAINING; use < USES; use++)
                if (use != UNFUSED || may_fuse(&kinds[k]))
                    plan_one(p, arch, &kinds[k], batches[b], use);
    program_destroy(p);
}

int main(int argc, char **argv)
{
    enum { MODELS_MAX = 8 };
    static char names[MODELS_MAX][64];
    struct CMUnitTest tests[MODELS_MAX];
    int n = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: test_planning PROPERTIES.json MODEL...\n");
        return 2;
    }
    props = properties_read(argv[1]);
    printf("# %-10s %-9s %5s  %-10s  %-15s %6s %9s %14s\n", "model", "type", "batch", "of", "pattern", "graphs",
           "distinct", "workspace");
    printf("#   %-60s %6s %23s  %s\n", "each graph", "times", "workspace", "engine and its knobs");
    for (int i = 2; i < argc && n < MODELS_MAX; i++, n++) {
        snprintf(names[n], sizeof names[n], "every_graph_of_%s_has_a_plan", argv[i]);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = every_graph_has_a_plan, .initial_state = argv[i]};
    }
    const int rc = _cmocka_run_group_tests("planning for an H200", tests, (size_t)n, NULL, NULL);
    free(props);
    return rc;
}
