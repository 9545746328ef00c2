/* --tf32 and --no-tf32 as cuDNN hears of them: which engines a plan may take, and under which name what was chosen is
 * kept. Real graphs, planned for a device of which there is a description only.
 *
 * usage: test_cuda_tf32_plans PROPERTIES.json */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/properties.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/config/config.h"
#include "worker/device/cuda/dnn/dnn_impl.h"
#include "worker/device/cuda/plan.h"
#include "worker/program/program.h"

enum { BATCH = 8, SIZE = 32 };

static char *props;

static struct program *small(void)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("small", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_relu(p, "relu", program_conv(p, "a", program_input(p), 64, 3, 1, 1, false));
    x = program_conv(p, "b", x, 128, 3, 1, 1, false);
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), 10));
    MUST(program_differentiate(p, e));
    return p;
}

static bool on_tensor_cores(const struct cudnn_plan *p)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t n = 0;
    bool found = false;
    assert_int_equal(CUDNN_STATUS_SUCCESS, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    assert_int_equal(CUDNN_STATUS_SUCCESS, cudnnBackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    assert_int_equal(CUDNN_STATUS_SUCCESS,
                     cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                              CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes));
    for (int64_t i = 0; i < n; i++)
        found = found || notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    cudnnBackendDestroyDescriptor(engine);
    return found;
}

static struct gpu_options parsed(const char *word, const char *cache)
{
    char *argv[] = {"train", "--train-data", "x", "--plan-cache", (char *)(uintptr_t)cache, (char *)(uintptr_t)word,
                    NULL};
    struct train_config c;
    struct arg_result r;
    struct gpu_options o;
    char folder[CONFIG_CACHE_BYTES];
    memset(&c, 0, sizeof c);
    MUST(args_parse(&train_program, word ? 6 : 5, argv, &c, &r, e));
    train_config_gpu(&c, true, &o, folder);
    o.cache_dir = cache; /* that of c is gone with it */
    return o;
}

struct outcome {
    int graphs, tensor_cores;
    long timed; /* executions: more than one a graph: candidates were measured */
};

static struct outcome plan_with(const char *word, const char *cache)
{
    struct program *p = small();
    struct outcome r = {0};
    struct fake_counts counts;
    struct cuda_options cuda;
    struct cudnn_options d;
    struct cudnn *dnn;
    struct gpu *g;
    struct device *device;
    struct plan *plan;
    void *arena[3];
    const struct device_options o = {.threads = 1, .gpu = parsed(word, cache)};
    const size_t n[] = {p->n_train, p->n_stats, p->n_reduce};
    cuda_options_from(&o, &cuda, &d);
    d.props_json = props;
    MUST(cudnn_open(&dnn, &d, e));
    fake_gpu_open(&g, &(struct fake_options){.idle = true, .at_close = &counts});
    MUST(cuda_open_on(&device, g, dnn, &cuda, e));
    for (int i = 0; i < 3; i++)
        MUST(device->ops->alloc(device, n[i] * sizeof(float), &arena[i], e));
    const struct plan_options po = {
        .batch = BATCH, .training = true, .compute = DT_F32, .params = arena[0], .stats = arena[1], .reduce = arena[2]};
    MUST(device->ops->plan(device, p, &po, &plan, e));
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    for (int i = 0; i < pl->nsteps; i++) {
        if (pl->steps[i]->kind != STEP_DNN)
            continue;
        r.graphs++;
        r.tensor_cores += on_tensor_cores(pl->steps[i]->dnn.plan);
    }
    device->ops->plan_close(plan);
    device->ops->close(device);
    program_destroy(p);
    r.timed = counts.dnns;
    return r;
}

static int files(const char *dir, const char *pattern)
{
    char path[512];
    glob_t found;
    snprintf(path, sizeof path, "%s/*/%s", dir, pattern);
    const int rc = glob(path, 0, NULL, &found);
    const int n = rc == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return n;
}

static void the_option_decides_about_engines_and_where_choices_are_kept(void **state)
{
    const char *dir = *state;
    const struct outcome off = plan_with("--no-tf32", dir);
    assert_int_equal(0, off.tensor_cores);
    assert_int_equal(5, off.graphs);
    assert_true(off.timed > off.graphs);
    assert_int_equal(off.graphs, files(dir, "* F32 nhwc.json"));
    assert_int_equal(0, files(dir, "* TF32 nhwc.json"));

    const struct outcome on = plan_with("--tf32", dir); /* finds nothing of the other's */
    assert_true(on.tensor_cores > 0 && on.timed > on.graphs);
    assert_int_equal(on.graphs, files(dir, "* TF32 nhwc.json"));
    assert_int_equal(off.graphs, files(dir, "* F32 nhwc.json"));

    const struct outcome again = plan_with(NULL, dir), off_again = plan_with("--no-tf32", dir);
    assert_int_equal(on.tensor_cores, again.tensor_cores); /* TF32 is what is meant where nothing is said */
    assert_int_equal(0, off_again.tensor_cores);
    assert_true(again.timed <= again.graphs && off_again.timed <= off_again.graphs); /* tried, not measured */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_option_decides_about_engines_and_where_choices_are_kept, scratch_make,
                                        scratch_drop),
    };
    if (argc < 2) {
        fprintf(stderr, "usage: test_cuda_tf32_plans PROPERTIES.json\n");
        return 2;
    }
    props = properties_read(argv[1]);
    const int rc = cmocka_run_group_tests_name("TF32 and cuDNN's plans", tests, NULL, NULL);
    free(props);
    return rc;
}
