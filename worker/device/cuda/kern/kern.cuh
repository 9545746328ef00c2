/* What the kernel files share: vectors of V elements of a type, loaded and stored at once and computed with in fp32. */
#ifndef CRUN_WORKER_DEVICE_CUDA_KERN_CUH
#define CRUN_WORKER_DEVICE_CUDA_KERN_CUH

#ifdef CUDA_EMULATED /* tests run these very kernels on the processor, and know where this header lies */
#include "cuda_emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
/* Where a vector's elements are used, and no earlier: ptxas would rather widen a bfloat right after its load, as a
 * shift is all it takes, and would hold whole rows in twice the registers, some of them in local memory. */
static __device__ __forceinline__ float widened(__nv_bfloat16 x)
{
    uint32_t bits;
    asm volatile("{.reg .b16 low; mov.b16 low, 0; mov.b32 %0, {low, %1};}" : "=r"(bits) : "h"(__bfloat16_as_ushort(x)));
    return __uint_as_float(bits);
}
#define UNBRACKET(...) __VA_ARGS__
#define LAUNCH(kernel, grid, block, stream, ...) UNBRACKET kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif

#include "worker/device/cuda/kern/kernels.h"

enum { BLOCK = 256, WARP = 32, WARPS_MAX = 32 /* of a block */ };

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return widened(x);
}
__device__ __forceinline__ void from_float(float &y, float x)
{
    y = x;
}
__device__ __forceinline__ void from_float(__half &y, float x)
{
    y = __float2half_rn(x);
}
__device__ __forceinline__ void from_float(__nv_bfloat16 &y, float x)
{
    y = __float2bfloat16_rn(x);
}

template <typename T, int V> struct alignas(sizeof(T) * V) pack {
    T at[V];
};

/* p points at V elements, aligned to their size. */
template <typename T, int V> __device__ __forceinline__ void load(const T *p, float (&x)[V])
{
    pack<T, V> v = *reinterpret_cast<const pack<T, V> *>(p);
    UNROLL
    for (int i = 0; i < V; i++)
        x[i] = to_float(v.at[i]);
}

template <typename T, int V> __device__ __forceinline__ void store(T *p, const float (&x)[V])
{
    pack<T, V> v;
    UNROLL
    for (int i = 0; i < V; i++)
        from_float(v.at[i], x[i]);
    *reinterpret_cast<pack<T, V> *>(p) = v;
}

/* Sum over the block in a fixed order; every thread gets it. All threads of the block call it. */
template <typename T> __device__ T block_sum(T x)
{
    __shared__ T warps[WARPS_MAX];
    for (int d = WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    __syncthreads(); /* an earlier call's readers are done */
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = x;
    __syncthreads();
    T sum = 0;
    for (unsigned i = 0; i < blockDim.x / WARP; i++)
        sum += warps[i];
    return sum;
}

__device__ inline float block_max(float x)
{
    __shared__ float warps[WARPS_MAX];
    for (int d = WARP / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = x;
    __syncthreads();
    float most = warps[0];
    for (unsigned i = 1; i < blockDim.x / WARP; i++)
        most = fmaxf(most, warps[i]);
    return most;
}

/* n / d without a division: for n < 2^31 (Granlund and Montgomery, Division by Invariant Integers). */
struct divider {
    uint32_t mul, shift;
};
static inline divider divider_of(uint32_t d)
{
    uint32_t shift = 0;
    while (((uint64_t)1 << shift) < d)
        shift++;
    return {(uint32_t)((((((uint64_t)1 << shift) - d) << 32) / d) + 1), shift};
}
__device__ __forceinline__ uint32_t divide(uint32_t n, divider d)
{
    return (__umulhi(n, d.mul) + n) >> d.shift;
}

/* V elements as they lie in memory: what a thread holds of rows that are still on their way. */
template <typename T, int V> __device__ __forceinline__ pack<T, V> fetch(const T *p)
{
    return *reinterpret_cast<const pack<T, V> *>(p);
}

static inline size_t elements(const view4 &v)
{
    return (size_t)v.n * v.c * v.h * v.w;
}

/* Blocks for n threads' work; kernels stride over what is left. */
static inline unsigned blocks_for(size_t n)
{
    size_t b = (n + BLOCK - 1) / BLOCK;
    return (unsigned)(b < 1 ? 1 : b > 65535 ? 65535 : b);
}

/* Call f with (T(), vector width) for the view: 16 bytes where rows allow it, else one element. */
#define VIEW_WIDTH(v, T) (((v).nhwc ? (v).c : (v).h * (v).w) % (int)(16 / sizeof(T)) == 0)
#define DISPATCH_LAYOUT(v, T, ...)                                                                                     \
    do {                                                                                                               \
        constexpr int WIDE = 16 / (int)sizeof(T);                                                                      \
        if ((v).nhwc) {                                                                                                \
            constexpr bool NHWC = true;                                                                                \
            if (VIEW_WIDTH(v, T)) {                                                                                    \
                constexpr int V = WIDE;                                                                                \
                __VA_ARGS__                                                                                            \
            } else {                                                                                                   \
                constexpr int V = 1;                                                                                   \
                __VA_ARGS__                                                                                            \
            }                                                                                                          \
        } else {                                                                                                       \
            constexpr bool NHWC = false;                                                                               \
            if (VIEW_WIDTH(v, T)) {                                                                                    \
                constexpr int V = WIDE;                                                                                \
                __VA_ARGS__                                                                                            \
            } else {                                                                                                   \
                constexpr int V = 1;                                                                                   \
                __VA_ARGS__                                                                                            \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
#define DISPATCH_TYPE(type, ...)                                                                                       \
    do {                                                                                                               \
        switch (type) {                                                                                                \
        case DT_F16: {                                                                                                 \
            using T = __half;                                                                                          \
            __VA_ARGS__                                                                                                \
        } break;                                                                                                       \
        case DT_BF16: {                                                                                                \
            using T = __nv_bfloat16;                                                                                   \
            __VA_ARGS__                                                                                                \
        } break;                                                                                                       \
        default: {                                                                                                     \
            using T = float;                                                                                           \
            __VA_ARGS__                                                                                                \
        } break;                                                                                                       \
        }                                                                                                              \
    } while (0)
#define DISPATCH(v, ...) DISPATCH_TYPE((v).type, DISPATCH_LAYOUT(v, T, __VA_ARGS__);)

/* One launcher an argument struct; kernels.cu calls them. */
#define X(id, args) void launch_##id(const args *a, cudaStream_t s);
KERNELS(X)
#undef X

#endif
