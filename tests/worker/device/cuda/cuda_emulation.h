// CUDA's execution model on the processor, as far as the project's kernels need it: the very same .cu files are
// compiled as C++ and run block after block. The threads of a block are fibers that change hands at barriers and
// shuffles, in a shuffled order, so that a missing barrier shows. Nothing runs at the same time.
#ifndef CRUN_TESTS_CUDA_EMULATION_H
#define CRUN_TESTS_CUDA_EMULATION_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "worker/precision/dtype.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static // blocks run one after the other

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
typedef void *cudaStream_t;

namespace emulate
{
struct place {
    dim3 thread, block, threads, blocks;
};
extern place here; // of the fiber that runs

void launch(dim3 blocks, dim3 threads, const std::function<void()> &body);
void barrier();
void shuffle(const void *in, void *out, size_t bytes, unsigned lane_xor);
} // namespace emulate

#define threadIdx emulate::here.thread
#define blockIdx emulate::here.block
#define blockDim emulate::here.threads
#define gridDim emulate::here.blocks

static inline void __syncthreads()
{
    emulate::barrier();
}

template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int lane_xor)
{
    T r;
    emulate::shuffle(&v, &r, sizeof v, (unsigned)lane_xor);
    return r;
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

// Blocks run one after the other, and a fiber goes on until it waits.
static inline unsigned atomicInc(unsigned *at, unsigned last)
{
    const unsigned old = *at;
    *at = old >= last ? 0 : old + 1;
    return old;
}
static inline unsigned atomicAdd(unsigned *at, unsigned more)
{
    const unsigned old = *at;
    *at += more;
    return old;
}
static inline void __threadfence()
{
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

static inline int cudaGetLastError()
{
    return 0;
}

struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
static inline float __half2float(__half x)
{
    return f32_from_f16(x.bits);
}
static inline __half __float2half_rn(float x)
{
    return {f16_from_f32(x)};
}
static inline float widened(__nv_bfloat16 x)
{
    return f32_from_bf16(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {bf16_from_f32(x)};
}
using std::isfinite;

#define UNROLL
#define ROLLED
#define UNBRACKET(...) __VA_ARGS__
#define LAUNCH(kernel, grid, block, stream, ...)                                                                       \
    ((void)(stream), emulate::launch(dim3(grid), dim3(block), [&] { UNBRACKET kernel(__VA_ARGS__); }))

#endif
