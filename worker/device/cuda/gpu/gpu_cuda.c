/* struct gpu_ops on the CUDA runtime, cuDNN and cuBLASLt. */
#include "worker/device/cuda/gpu/gpu.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/cuda/gpu/gpu_details.h"

struct gpu_stream {
    cudaStream_t s;
};
struct gpu_event {
    cudaEvent_t v;
};
struct gpu_graph {
    cudaGraphExec_t exec;
};

enum { ALGOS_MAX = 16 };
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof((struct dnn_algo){0}.opaque), "an algorithm is 64 bytes");

/* What cuBLASLt's heuristics chose for a product; asked once a shape. */
struct gemm_plan {
    struct gemm_plan *next;
    struct gpu_gemm key; /* pointers are NULL */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct cuda_gpu {
    struct gpu base;
    int index;
    cudnnHandle_t dnn;
    cublasLtHandle_t blas;
    struct gemm_plan *gemms;
};

static struct cuda_gpu *self(struct gpu *g)
{
    return (struct cuda_gpu *)g;
}

static int fail(struct err *e, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return 0;
    int code = rc == cudaErrorMemoryAllocation                                ? -ENOMEM
               : rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver ? -ENODEV
                                                                              : -EIO;
    return err_set(e, code, "CUDA: %s: %s (%s)", what, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

static void gemm_plan_free(struct gemm_plan *p)
{
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    free(p);
}

static void cuda_close(struct gpu *g)
{
    struct cuda_gpu *c = self(g);
    while (c->gemms) {
        struct gemm_plan *p = c->gemms;
        c->gemms = p->next;
        gemm_plan_free(p);
    }
    if (c->blas)
        cublasLtDestroy(c->blas);
    if (c->dnn)
        cudnnDestroy(c->dnn);
    free(c);
}

static int cuda_attach(struct gpu *g, struct err *e)
{
    return fail(e, cudaSetDevice(self(g)->index), "choose a device");
}

static int cuda_info(struct gpu *g, struct gpu_info *ret, struct err *e)
{
    struct cudaDeviceProp p;
    TRY(fail(e, cudaGetDeviceProperties(&p, self(g)->index), "device properties"));
    *ret = (struct gpu_info){.capability = p.major * 10 + p.minor, .memory = p.totalGlobalMem, .dnn = cudnn_version()};
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)sizeof ret->name - 1, p.name);
    gpu_uuid(self(g)->index, p.uuid.bytes, ret->uuid);
    TRY(fail(e, cudaRuntimeGetVersion(&ret->runtime), "version"));
    return fail(e, cudaDriverGetVersion(&ret->driver), "version");
}

static void cuda_details(struct gpu *g, char *out, size_t cap)
{
    gpu_details(self(g)->index, out, cap);
}

static int cuda_memory(struct gpu *g, size_t *ret_free, size_t *ret_total, struct err *e)
{
    return fail(e, cudaMemGetInfo(ret_free, ret_total), "memory");
}

static int cuda_alloc(struct gpu *g, size_t bytes, void **ret, struct err *e)
{
    size_t left = 0, total = 0;
    cudaError_t rc = cudaMalloc(ret, bytes ? bytes : 1);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* it does not stick */
        cudaMemGetInfo(&left, &total);
        return err_set(e, -ENOMEM, "%zu MiB of GPU memory are wanted, %zu of %zu MiB are free", bytes >> 20, left >> 20,
                       total >> 20);
    }
    return fail(e, rc, "allocate memory");
}

static void cuda_release(struct gpu *g, void *p)
{
    if (p)
        cudaFree(p);
}

static int cuda_host_alloc(struct gpu *g, size_t bytes, void **ret, struct err *e)
{
    cudaError_t rc = cudaHostAlloc(ret, bytes ? bytes : 1, cudaHostAllocDefault);
    if (rc == cudaErrorMemoryAllocation)
        return err_set(e, -ENOMEM, "%zu MiB of page-locked memory cannot be had (see ulimit -l)", bytes >> 20);
    return fail(e, rc, "allocate page-locked memory");
}

static void cuda_host_release(struct gpu *g, void *p)
{
    if (p)
        cudaFreeHost(p);
}

static int cuda_stream_open(struct gpu *g, bool urgent, struct gpu_stream **ret, struct err *e)
{
    int least = 0, greatest = 0;
    struct gpu_stream *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a stream");
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    int rc = fail(e, cudaStreamCreateWithPriority(&s->s, cudaStreamNonBlocking, urgent ? greatest : least), "stream");
    if (rc < 0)
        free(s);
    else
        *ret = s;
    return rc;
}

static void cuda_stream_close(struct gpu *g, struct gpu_stream *s)
{
    if (s)
        cudaStreamDestroy(s->s);
    free(s);
}

static void *cuda_stream_native(struct gpu_stream *s)
{
    return s->s;
}

static int cuda_stream_sync(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    return fail(e, cudaStreamSynchronize(s->s), "wait for a stream");
}

static int cuda_stream_query(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    const cudaError_t rc = cudaStreamQuery(s->s);
    return rc == cudaErrorNotReady ? -EAGAIN : fail(e, rc, "ask a stream");
}

static int cuda_event_open(struct gpu *g, bool timed, struct gpu_event **ret, struct err *e)
{
    struct gpu_event *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(e, -ENOMEM, "no memory for an event");
    /* who waits sleeps: loader threads have the core meanwhile */
    const unsigned flags = cudaEventBlockingSync | (timed ? cudaEventDefault : cudaEventDisableTiming);
    int rc = fail(e, cudaEventCreateWithFlags(&v->v, flags), "event");
    if (rc < 0)
        free(v);
    else
        *ret = v;
    return rc;
}

static void cuda_event_close(struct gpu *g, struct gpu_event *v)
{
    if (v)
        cudaEventDestroy(v->v);
    free(v);
}

static int cuda_event_record(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    return fail(e, cudaEventRecord(v->v, s->s), "record an event");
}

static int cuda_event_wait(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    return fail(e, cudaStreamWaitEvent(s->s, v->v, 0), "wait for an event");
}

static int cuda_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    return fail(e, cudaEventSynchronize(v->v), "wait for an event");
}

static int cuda_event_ms(struct gpu *g, struct gpu_event *from, struct gpu_event *to, float *ret, struct err *e)
{
    return fail(e, cudaEventElapsedTime(ret, from->v, to->v), "time between events");
}

static int copy_async(struct gpu_stream *s, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                      struct err *e)
{
    return bytes ? fail(e, cudaMemcpyAsync(to, from, bytes, kind, s->s), "copy") : 0;
}

static int cuda_copy_in(struct gpu *g, struct gpu_stream *s, void *to, const void *host, size_t bytes, struct err *e)
{
    return copy_async(s, to, host, bytes, cudaMemcpyHostToDevice, e);
}

static int cuda_copy_out(struct gpu *g, struct gpu_stream *s, void *host, const void *from, size_t bytes, struct err *e)
{
    return copy_async(s, host, from, bytes, cudaMemcpyDeviceToHost, e);
}

static int cuda_copy(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e)
{
    return copy_async(s, to, from, bytes, cudaMemcpyDeviceToDevice, e);
}

static int cuda_fill(struct gpu *g, struct gpu_stream *s, void *to, int byte, size_t bytes, struct err *e)
{
    return bytes ? fail(e, cudaMemsetAsync(to, byte, bytes, s->s), "fill memory") : 0;
}

static int cuda_capture_begin(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    return fail(e, cudaStreamBeginCapture(s->s, cudaStreamCaptureModeThreadLocal), "capture");
}

/* Not uploaded ahead of its first launch: cudaGraphUpload() of a graph with calls of NCCL 2.28 ends in SIGSEGV within
 * driver 580.159. */
static int cuda_capture_end(struct gpu *g, struct gpu_stream *s, struct gpu_graph **ret, struct err *e)
{
    cudaGraph_t graph = NULL;
    TRY(fail(e, cudaStreamEndCapture(s->s, &graph), "end of capture"));
    struct gpu_graph *x = calloc(1, sizeof *x);
    int rc = x ? fail(e, cudaGraphInstantiate(&x->exec, graph, 0), "instantiate a graph")
               : err_set(e, -ENOMEM, "no memory for a graph");
    cudaGraphDestroy(graph);
    if (rc < 0)
        free(x);
    else
        *ret = x;
    return rc;
}

static int cuda_graph_launch(struct gpu *g, struct gpu_graph *x, struct gpu_stream *s, struct err *e)
{
    return fail(e, cudaGraphLaunch(x->exec, s->s), "launch a graph");
}

static void cuda_graph_close(struct gpu *g, struct gpu_graph *x)
{
    if (x)
        cudaGraphExecDestroy(x->exec);
    free(x);
}

static const char *const kernel_names[] = {
#define X(id, args) #id,
    KERNELS(X)
#undef X
};

static int cuda_kernel(struct gpu *g, struct gpu_stream *s, enum kernel k, const void *args, struct err *e)
{
    return fail(e, (cudaError_t)kernel_launch(k, args, s->s), kernel_names[k]);
}

static int cuda_dnn(struct gpu *g, struct gpu_stream *s, const struct gpu_dnn *d, void *workspace, struct err *e)
{
    cudnnStatus_t rc = cudnnSetStream(self(g)->dnn, s->s);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = (cudnnStatus_t)cudnn_execute(d->plan, self(g)->dnn, d->slot, workspace);
    return rc == CUDNN_STATUS_SUCCESS ? 0 : cudnn_failed(d->plan, (int)rc, e);
}

static cudaDataType_t data_type(enum dtype t)
{
    return t == DT_F16 ? CUDA_R_16F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static int blas_fail(struct err *e, cublasStatus_t rc, const struct gpu_gemm *m)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(e, rc == CUBLAS_STATUS_NOT_SUPPORTED ? -ENOTSUP : -EIO, "cuBLASLt: product %lld x %lld x %lld: %s",
                   (long long)m->m, (long long)m->n, (long long)m->k, cublasLtGetStatusString(rc));
}

/* Before there is a vector the heuristics are told of one that is aligned as all are. */
static cublasStatus_t set_bias(struct gemm_plan *p, const struct gpu_gemm *m)
{
    const void *at = m->bias ? m->bias : (const void *)(uintptr_t)256;
    return cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at, sizeof at);
}

/* cuBLAS counts columns first: row-major C = A * B is column-major C' = B' * A', so the operands change places. */
static cublasStatus_t describe(struct gemm_plan *p, const struct gpu_gemm *m)
{
    const cublasComputeType_t compute = m->in == DT_F32 && m->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasLtEpilogue_t epilogue = m->epilogue == GEMM_BIAS            ? CUBLASLT_EPILOGUE_BIAS
                                        : m->epilogue == GEMM_BIAS_GRADIENT ? CUBLASLT_EPILOGUE_BGRADB
                                                                            : CUBLASLT_EPILOGUE_DEFAULT;
    const cublasOperation_t ta = m->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, tb = m->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t rc = cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (rc == CUBLAS_STATUS_SUCCESS && m->epilogue != GEMM_PLAIN)
        rc = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (rc == CUBLAS_STATUS_SUCCESS && m->epilogue != GEMM_PLAIN)
        rc = set_bias(p, m);
    if (rc == CUBLAS_STATUS_SUCCESS) /* B' has n rows, or k if B is stored (n, k) */
        rc = cublasLtMatrixLayoutCreate(&p->a, data_type(m->in), (uint64_t)(m->trans_b ? m->k : m->n),
                                        (uint64_t)(m->trans_b ? m->n : m->k), m->trans_b ? m->k : m->n);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&p->b, data_type(m->in), (uint64_t)(m->trans_a ? m->m : m->k),
                                        (uint64_t)(m->trans_a ? m->k : m->m),
                                        m->a_row     ? m->a_row
                                        : m->trans_a ? m->m
                                                     : m->k);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&p->c, data_type(m->out), (uint64_t)m->n, (uint64_t)m->m,
                                        m->c_row ? m->c_row : m->n);
    return rc;
}

/* What the heuristics name, best first; reductions: bits of cublasLtReductionScheme_t that may be. */
static cublasStatus_t ask(struct cuda_gpu *c, struct gemm_plan *p, size_t workspace_bytes, uint32_t reductions,
                          cublasLtMatmulHeuristicResult_t *ret, int cap, int *ret_n)
{
    cublasLtMatmulPreference_t want = NULL;
    cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&want);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                                  sizeof workspace_bytes);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                  sizeof reductions);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(c->blas, p->op, p->a, p->b, p->c, p->c, want, cap, ret, ret_n);
    if (rc == CUBLAS_STATUS_SUCCESS && *ret_n == 0)
        rc = CUBLAS_STATUS_NOT_SUPPORTED;
    if (want)
        cublasLtMatmulPreferenceDestroy(want);
    return rc;
}

static uint32_t reductions_of(bool repeats)
{
    return CUBLASLT_REDUCTION_SCHEME_MASK & ~(repeats ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_INPLACE : 0);
}

static cublasStatus_t choose(struct cuda_gpu *c, struct gemm_plan *p, size_t workspace_bytes)
{
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    const cublasStatus_t rc = ask(c, p, workspace_bytes, reductions_of(p->key.repeats), &best, 1, &found);
    if (rc == CUBLAS_STATUS_SUCCESS)
        p->algo = best.algo;
    return rc;
}

static struct gpu_gemm key_of(const struct gpu_gemm *m)
{
    struct gpu_gemm k;
    memset(&k, 0, sizeof k); /* padding is compared, too */
    k.in = m->in;
    k.out = m->out;
    k.tf32 = m->tf32;
    k.trans_a = m->trans_a;
    k.trans_b = m->trans_b;
    k.m = m->m;
    k.n = m->n;
    k.k = m->k;
    k.a_row = m->a_row;
    k.c_row = m->c_row;
    k.repeats = m->repeats;
    k.epilogue = m->epilogue;
    return k;
}

/* A shape that has no plan is asked for again the next time. */
static int gemm_plan_new(struct cuda_gpu *c, const struct gpu_gemm *m, const struct gpu_gemm *key,
                         size_t workspace_bytes, struct gemm_plan **ret, struct err *e)
{
    struct gemm_plan *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for the plan of a matrix product");
    memcpy(&p->key, key, sizeof *key);
    cublasStatus_t rc = describe(p, m);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = choose(c, p, workspace_bytes);
    if (rc != CUBLAS_STATUS_SUCCESS) {
        gemm_plan_free(p);
        return blas_fail(e, rc, m);
    }
    p->next = c->gemms;
    *ret = c->gemms = p;
    return 0;
}

static int gemm_plan(struct cuda_gpu *c, const struct gpu_gemm *m, size_t workspace_bytes, struct gemm_plan **ret,
                     struct err *e)
{
    const struct gpu_gemm key = key_of(m);
    for (struct gemm_plan *p = c->gemms; p; p = p->next) {
        if (memcmp(&p->key, &key, sizeof key) == 0) {
            *ret = p;
            return 0;
        }
    }
    return gemm_plan_new(c, m, &key, workspace_bytes, ret, e);
}

static int cuda_gemm(struct gpu *g, struct gpu_stream *s, const struct gpu_gemm *m, void *workspace,
                     size_t workspace_bytes, struct err *e)
{
    struct cuda_gpu *c = self(g);
    struct gemm_plan *p = NULL;
    const float beta = m->add ? 1 : 0;
    cublasLtMatmulAlgo_t chosen;
    TRY(gemm_plan(c, m, workspace_bytes, &p, e));
    if (m->epilogue != GEMM_PLAIN)
        TRY(blas_fail(e, set_bias(p, m), m));
    if (m->plan)
        memcpy(&chosen, cudnn_plan_algo(m->plan)->opaque, sizeof chosen);
    return blas_fail(e,
                     cublasLtMatmul(c->blas, p->op, &m->alpha, m->b, p->a, m->a, p->b, &beta, m->c, p->c, m->c, p->c,
                                    m->plan ? &chosen : &p->algo, workspace, workspace_bytes, s->s),
                     m);
}

/* A knob of an algorithm, of two or four bytes; 0 where it has none. */
static uint32_t config(const cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t what)
{
    const bool small = what == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    uint32_t word = 0;
    uint16_t half = 0;
    size_t n;
    if (cublasLtMatmulAlgoConfigGetAttribute(a, what, small ? (void *)&half : &word, small ? sizeof half : sizeof word,
                                             &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    return small ? half : word;
}

static void describe_algo(const cublasLtMatmulHeuristicResult_t *r, struct dnn_algo *ret)
{
    const cublasLtMatmulAlgo_t *a = &r->algo;
    const uint32_t splits = config(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                   reduction = config(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    memset(ret, 0, sizeof *ret);
    memcpy(ret->opaque, a, sizeof ret->opaque);
    ret->workspace = r->workspaceSize;
    ret->atomic = (reduction & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0;
    snprintf(ret->name, sizeof ret->name,
             "lt%u{tile=%u,stages=%u,splitk=%u,sum=%u,swizzle=%u,custom=%u,inner=%u,cluster=%u}",
             config(a, CUBLASLT_ALGO_CONFIG_ID), config(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
             config(a, CUBLASLT_ALGO_CONFIG_STAGES_ID), splits, reduction,
             config(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING), config(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
             config(a, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID), config(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
}

static int cuda_gemm_algos(struct gpu *g, const struct gpu_gemm *m, size_t workspace_bytes, bool deterministic,
                           struct dnn_algo *ret, int cap, int *ret_n, struct err *e)
{
    cublasLtMatmulHeuristicResult_t all[ALGOS_MAX];
    struct gemm_plan *p = NULL;
    const uint32_t reductions = reductions_of(deterministic);
    int n = 0;
    *ret_n = 0;
    memset(all, 0, sizeof all); /* bytes that nobody sets are compared, too */
    TRY(gemm_plan(self(g), m, workspace_bytes, &p, e));
    TRY(blas_fail(e, ask(self(g), p, workspace_bytes, reductions, all, cap < ALGOS_MAX ? cap : ALGOS_MAX, &n), m));
    for (int i = 0; i < n; i++)
        if (all[i].state == CUBLAS_STATUS_SUCCESS)
            describe_algo(&all[i], &ret[(*ret_n)++]);
    return 0;
}

static const struct gpu_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .attach = cuda_attach,
    .info = cuda_info,
    .details = cuda_details,
    .memory = cuda_memory,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .host_alloc = cuda_host_alloc,
    .host_release = cuda_host_release,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_native = cuda_stream_native,
    .stream_sync = cuda_stream_sync,
    .stream_query = cuda_stream_query,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_ms = cuda_event_ms,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_close = cuda_graph_close,
    .kernel = cuda_kernel,
    .dnn = cuda_dnn,
    .gemm = cuda_gemm,
    .gemm_algos = cuda_gemm_algos,
};

int gpu_count(struct err *e)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaSuccess && n > 0)
        return n;
    if (rc == cudaErrorInsufficientDriver)
        err_set(e, -ENODEV, "no NVIDIA driver is installed here, or it is older than this build's CUDA %d.%d",
                CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else if (rc == cudaSuccess || rc == cudaErrorNoDevice)
        err_set(e, -ENODEV, "no GPU can be used here%s",
                getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES is set)" : "");
    else
        err_set(e, -ENODEV, "no GPU can be used: %s (%s)", cudaGetErrorString(rc), cudaGetErrorName(rc));
    return 0;
}

int gpu_open(struct gpu **ret, int index, struct err *e)
{
    int n = gpu_count(e);
    if (n == 0)
        return -ENODEV;
    if (index < 0 || index >= n)
        return err_set(e, -ENODEV, "GPU %d was asked for, %d can be used here (0 to %d)", index, n, n - 1);
    struct cuda_gpu *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, -ENOMEM, "no memory for a device");
    c->base.ops = &cuda_ops;
    c->index = index;
    int rc = fail(e, cudaSetDevice(index), "choose a device");
    if (rc == 0 && cudnnCreate(&c->dnn) != CUDNN_STATUS_SUCCESS)
        rc = err_set(e, -ENODEV, "cuDNN %zu cannot use GPU %d", cudnnGetVersion(), index);
    if (rc == 0 && cublasLtCreate(&c->blas) != CUBLAS_STATUS_SUCCESS)
        rc = err_set(e, -ENODEV, "cuBLASLt cannot use GPU %d", index);
    if (rc < 0) {
        cuda_close(&c->base);
        return rc;
    }
    *ret = &c->base;
    return 0;
}
