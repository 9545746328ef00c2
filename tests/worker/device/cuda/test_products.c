/* gpu_cuda.c with a GPU's doors answered here: what cuBLASLt is asked for, how often, and what becomes of a shape that
 * it does not have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/device/cuda/dnn/dnn_impl.h"
#include "worker/device/cuda/gpu/gpu.h"

static struct {
    int asked, run, named; /* named: how many algorithms it knows, 0: one */
    bool refuse;
    cublasComputeType_t compute;
    uint32_t reductions;         /* that were allowed */
    int64_t rows[2];             /* elements from one to the next: of the last product's second factor, its result */
    uint64_t ran;                /* the first word of the algorithm that ran last */
    cublasLtEpilogue_t epilogue; /* that it ran with, and the bias */
    void *bias;
} lt;

/* The runtime has a device. */
cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = NULL;
    return CUDNN_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t want, int cap,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    size_t n;
    lt.asked++;
    cublasLtMatrixLayoutGetAttribute(b, CUBLASLT_MATRIX_LAYOUT_LD, &lt.rows[0], sizeof lt.rows[0], &n);
    cublasLtMatrixLayoutGetAttribute(c, CUBLASLT_MATRIX_LAYOUT_LD, &lt.rows[1], sizeof lt.rows[1], &n);
    memset(results, 0, (size_t)cap * sizeof *results);
    *found = lt.refuse ? 0 : lt.named > 1 && cap > 1 ? (lt.named < cap ? lt.named : cap) : 1;
    for (int i = 0; i < *found; i++) {
        memcpy(&results[i].algo, &(uint64_t){100 + (uint64_t)i}, sizeof(uint64_t));
        results[i].workspaceSize = (size_t)i;
        results[i].state = i == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    cublasLtMatmulPreferenceGetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &lt.reductions,
                                         sizeof lt.reductions, &n);
    return cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &lt.compute, sizeof lt.compute, &n);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    size_t n;
    lt.run++;
    cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &lt.epilogue, sizeof lt.epilogue, &n);
    cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &lt.bias, sizeof lt.bias, &n);
    memcpy(&lt.ran, algo, sizeof lt.ran);
    return CUBLAS_STATUS_SUCCESS;
}

int kernel_launch(enum kernel k, const void *args, void *stream)
{
    return cudaErrorNotSupported;
}

static struct gpu *open_gpu(void)
{
    struct gpu *g;
    MUST(gpu_open(&g, 0, e));
    memset(&lt, 0, sizeof lt);
    return g;
}

static int product(struct gpu *g, int64_t m, enum dtype in, bool tf32, struct err *e)
{
    static max_align_t stream; /* nobody looks at it */
    const struct gpu_gemm x = {.in = in, .out = DT_F32, .tf32 = tf32, .m = m, .n = 10, .k = 64, .alpha = 1};
    return g->ops->gemm(g, (struct gpu_stream *)(void *)&stream, &x, NULL, 0, e);
}

static void every_shape_is_asked_for_once_however_many_there_are(void **state)
{
    struct gpu *g = open_gpu();
    (void)state;
    for (int round = 0; round < 2; round++)
        for (int m = 1; m <= 100; m++)
            MUST(product(g, m, DT_F16, false, e));
    assert_int_equal(lt.asked, 100);
    assert_int_equal(lt.run, 200);
    g->ops->close(g);
}

static void a_shape_that_was_refused_is_refused_again_and_had_later(void **state)
{
    struct gpu *g = open_gpu();
    struct err why = {0};
    (void)state;
    lt.refuse = true;
    assert_int_equal(product(g, 7, DT_F16, false, &why), -ENOTSUP);
    assert_non_null(strstr(why.text, "7 x 10 x 64"));
    assert_int_equal(product(g, 7, DT_F16, false, &why), -ENOTSUP);
    assert_int_equal(lt.run, 0);
    lt.refuse = false;
    MUST(product(g, 7, DT_F16, false, e));
    assert_int_equal(lt.run, 1);
    g->ops->close(g);
}

/* TF32 is for single precision alone, and only where it is allowed; the same shape with and without are two plans. */
static void tf32_is_what_the_product_says(void **state)
{
    struct gpu *g = open_gpu();
    (void)state;
    MUST(product(g, 8, DT_F32, true, e));
    assert_int_equal(lt.compute, CUBLAS_COMPUTE_32F_FAST_TF32);
    MUST(product(g, 8, DT_F32, false, e));
    assert_int_equal(lt.compute, CUBLAS_COMPUTE_32F);
    assert_int_equal(lt.asked, 2);
    MUST(product(g, 8, DT_F16, true, e));
    assert_int_equal(lt.compute, CUBLAS_COMPUTE_32F);
    g->ops->close(g);
}

/* As many as are wanted, without what the library itself gives up; where bits must repeat, none that sums in place. */
static void algorithms_are_named_in_order(void **state)
{
    struct gpu *g = open_gpu();
    struct dnn_algo all[8];
    const struct gpu_gemm m = {.in = DT_F16, .out = DT_F16, .m = 9, .n = 10, .k = 64, .alpha = 1};
    int n;
    (void)state;
    lt.named = 5;
    for (int strict = 0; strict < 2; strict++) {
        MUST(g->ops->gemm_algos(g, &m, 1 << 20, strict, all, 8, &n, e));
        assert_int_equal(4, n);
        assert_true(all[0].opaque[0] == 100 && all[1].opaque[0] == 102 && all[3].workspace == 4);
        assert_int_equal(0, strncmp(all[0].name, "lt", 2));
        assert_int_equal(lt.reductions, CUBLASLT_REDUCTION_SCHEME_MASK & (strict ? ~1u : ~0u));
    }
    MUST(g->ops->gemm_algos(g, &m, 1 << 20, false, all, 1, &n, e));
    assert_int_equal(1, n);
    lt.refuse = true;
    assert_int_equal(-ENOTSUP, g->ops->gemm_algos(g, &m, 1 << 20, false, all, 8, &n, NULL));
    assert_int_equal(0, n);
    g->ops->close(g);
}

static void the_algorithm_that_is_asked_for_runs(void **state)
{
    static max_align_t stream;
    struct gpu *g = open_gpu();
    struct cudnn_plan plan = {.algo = {.opaque = {107}}};
    struct gpu_gemm m = {.in = DT_F16, .out = DT_F16, .m = 9, .n = 10, .k = 64, .alpha = 1};
    (void)state;
    MUST(g->ops->gemm(g, (struct gpu_stream *)(void *)&stream, &m, NULL, 0, e));
    assert_int_equal(100, lt.ran);
    m.plan = &plan;
    MUST(g->ops->gemm(g, (struct gpu_stream *)(void *)&stream, &m, NULL, 0, e));
    assert_int_equal(107, lt.ran);
    assert_int_equal(1, lt.asked);
    g->ops->close(g);
}

/* An epilogue is a plan of its own; its vector may be another one each time. */
static void biases_are_added_and_summed_on_the_way(void **state)
{
    static max_align_t stream, vectors[2];
    static const struct {
        enum gemm_epilogue how;
        cublasLtEpilogue_t want;
    } all[] = {{GEMM_PLAIN, CUBLASLT_EPILOGUE_DEFAULT},
               {GEMM_BIAS, CUBLASLT_EPILOGUE_BIAS},
               {GEMM_BIAS_GRADIENT, CUBLASLT_EPILOGUE_BGRADB}};
    struct gpu *g = open_gpu();
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct gpu_gemm m = {.in = DT_F16, .out = DT_F16, .m = 9, .n = 10, .k = 64, .alpha = 1};
        m.epilogue = all[i / 2].how;
        m.bias = i < 2 ? NULL : &vectors[i % 2];
        MUST(g->ops->gemm(g, (struct gpu_stream *)(void *)&stream, &m, NULL, 0, e));
        assert_int_equal(all[i / 2].want, lt.epilogue);
        assert_ptr_equal(m.bias, lt.bias);
    }
    assert_int_equal(3, lt.asked);
    g->ops->close(g);
}

/* Padding between rows makes another plan; bits that must repeat rule out sums in place. */
static void rows_may_lie_apart_and_bits_repeat(void **state)
{
    static max_align_t stream;
    struct gpu *g = open_gpu();
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct gpu_gemm m = {.in = DT_F16, .out = DT_F32, .trans_a = i & 1, .m = 9, .n = 10, .k = 64, .alpha = 1};
        m.a_row = i < 2 ? 0 : 128;
        m.c_row = i < 2 ? 0 : 16;
        m.repeats = i == 3;
        MUST(g->ops->gemm(g, (struct gpu_stream *)(void *)&stream, &m, NULL, 0, e));
        assert_int_equal(lt.rows[0], i < 2 ? (i ? 9 : 64) : 128);
        assert_int_equal(lt.rows[1], i < 2 ? 10 : 16);
        assert_int_equal(lt.reductions, CUBLASLT_REDUCTION_SCHEME_MASK & (i == 3 ? ~1u : ~0u));
    }
    assert_int_equal(4, lt.asked);
    g->ops->close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_asked_for_once_however_many_there_are),
        cmocka_unit_test(a_shape_that_was_refused_is_refused_again_and_had_later),
        cmocka_unit_test(tf32_is_what_the_product_says),
        cmocka_unit_test(algorithms_are_named_in_order),
        cmocka_unit_test(the_algorithm_that_is_asked_for_runs),
        cmocka_unit_test(biases_are_added_and_summed_on_the_way),
        cmocka_unit_test(rows_may_lie_apart_and_bits_repeat),
    };
    return cmocka_run_group_tests_name("products of the GPU", tests, NULL, NULL);
}
