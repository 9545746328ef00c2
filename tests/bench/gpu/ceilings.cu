/* What this GPU can do at most, measured: bytes a second through memory and operations a second of matrix products.
 * Prints a line of JSON: GB/s read and written by a plain copy kernel and by cudaMemcpy; TFLOP/s of an 8192^3 product
 * in fp16, bf16 and TF32. Buffers are far larger than the caches and hold random numbers: products of zeros run faster.
 * Times are medians, by events. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime.h>

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "ceilings: %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

__global__ void copy_kernel(uint4 *to, const uint4 *from, size_t n)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) { /* four loads under way before the first store */
        const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
        to[i] = a, to[i + stride] = b, to[i + 2 * stride] = c, to[i + 3 * stride] = d;
    }
    for (; i < n; i += stride)
        to[i] = from[i];
}

/* Uniform in [-1, 1): an exponent that all types have. */
template <typename T> __global__ void random_kernel(T *x, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned v = (unsigned)i * 2654435761u + 12345u;
        v ^= v >> 16, v *= 0x85ebca6bu, v ^= v >> 13; /* MurmurHash3's finaliser */
        if (sizeof(T) == 2)
            x[i] = (T)((v & 0x80ff) | 0x3800); /* fp16 0.5..0.62, bf16 about 3e-5, both signs */
        else
            x[i] = (T)((v & 0x807fffff) | 0x3f000000);
    }
}

template <typename F> static double median_ms(F run)
{
    std::vector<float> times;
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    for (int i = 0; i < 13; i++) {
        float ms;
        cudaEventRecord(a);
        run();
        cudaEventRecord(b);
        must(cudaEventSynchronize(b) == cudaSuccess, "run");
        cudaEventElapsedTime(&ms, a, b);
        if (i >= 3)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static double product_tflops(cudaDataType_t type, cublasComputeType_t compute)
{
    const int n = 8192;
    const size_t size = type == CUDA_R_32F ? 4 : 2, count = (size_t)n * n, scratch = (size_t)64 << 20;
    void *a, *b, *c, *workspace;
    must(cudaMalloc(&a, count * size) == cudaSuccess && cudaMalloc(&b, count * size) == cudaSuccess &&
             cudaMalloc(&c, count * size) == cudaSuccess && cudaMalloc(&workspace, scratch) == cudaSuccess,
         "memory of a product");
    for (void *x : {a, b}) {
        if (size == 2)
            random_kernel<<<1024, 256>>>((unsigned short *)x, count);
        else
            random_kernel<<<1024, 256>>>((unsigned *)x, count);
    }
    cublasLtHandle_t blas;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t square;
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    must(cublasLtCreate(&blas) == CUBLAS_STATUS_SUCCESS, "cuBLASLt");
    cublasLtMatmulDescCreate(&op, compute, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&square, type, n, n, n);
    cublasLtMatmulPreferenceCreate(&want);
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch, sizeof scratch);
    cublasLtMatmulAlgoGetHeuristic(blas, op, square, square, square, square, want, 1, &best, &found);
    must(found == 1, "heuristics for a product");
    const float one = 1, zero = 0;
    const double ms = median_ms([&] {
        must(cublasLtMatmul(blas, op, &one, a, square, b, square, &zero, c, square, c, square, &best.algo, workspace,
                            scratch, 0) == CUBLAS_STATUS_SUCCESS,
             "product");
    });
    cublasLtMatmulPreferenceDestroy(want);
    cublasLtMatrixLayoutDestroy(square);
    cublasLtMatmulDescDestroy(op);
    cublasLtDestroy(blas);
    for (void *x : {a, b, c, workspace})
        cudaFree(x);
    return 2.0 * n * n * n / (ms * 1e-3) * 1e-12;
}

int main()
{
    const size_t bytes = (size_t)4 << 30;
    void *from, *to;
    cudaDeviceProp p;
    must(cudaGetDeviceProperties(&p, 0) == cudaSuccess, "GPU 0");
    must(cudaMalloc(&from, bytes) == cudaSuccess && cudaMalloc(&to, bytes) == cudaSuccess, "8 GiB");
    random_kernel<<<1024, 256>>>((unsigned *)from, bytes / 4);
    const double kernel = median_ms(
        [&] { copy_kernel<<<p.multiProcessorCount * 8, 512>>>((uint4 *)to, (const uint4 *)from, bytes / 16); });
    const double memcpy = median_ms([&] { cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice); });
    must(cudaGetLastError() == cudaSuccess, "copy");
    cudaFree(from);
    cudaFree(to);
    printf(
        "{\"gpu\": \"%s\", \"copy_gb_s\": %.0f, \"memcpy_gb_s\": %.0f, \"fp16_tflop_s\": %.0f, \"bf16_tflop_s\": %.0f, "
        "\"tf32_tflop_s\": %.0f}\n",
        p.name, 2e-6 * (double)bytes / kernel, 2e-6 * (double)bytes / memcpy,
        product_tflops(CUDA_R_16F, CUBLAS_COMPUTE_32F), product_tflops(CUDA_R_16BF, CUBLAS_COMPUTE_32F),
        product_tflops(CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32));
    return 0;
}
