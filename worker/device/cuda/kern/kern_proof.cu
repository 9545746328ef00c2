/* What proves an engine (prove.c): inputs of chance, a convolution computed by its definition at some elements of its
 * result, the distance of a result from that, what of a tensor is no number, and which bits it has. They run a few
 * times a graph, not in a step.
 *
 *   expect    a warp an element, double precision; `terms` loads of each factor an element, not side by side: 2^27 of
 *             them at most, some 4 GB of sectors, 1 to 3 ms on an H200
 *   noise, count_bad, checksum   write, read the tensor once, an element a thread at a time: at the speed of memory, in
 *             halves at half of it; 264 blocks read at most, two on each multiprocessor */
#include "worker/device/cuda/kern/kern.cuh"

enum { WARPS = BLOCK / WARP };

/* --- chance */

__device__ __forceinline__ uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

__device__ __forceinline__ float noise_of(enum noise_kind kind, uint32_t h)
{
    switch (kind) {
    case NOISE_GRID:
        return ((int)(h >> 26) - 32) / 32.0f;
    case NOISE_ODD:
        return (2 * (int)(h >> 25) - 127) / 256.0f;
    case NOISE_POSITIVE:
        return h >> 31 ? 1.0f : 0.5f;
    default:
        return ((int)(h >> 8) - (1 << 23)) / (float)(1 << 23);
    }
}

template <typename T> __global__ void noise(k_noise a)
{
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK)
        from_float(static_cast<T *>(a.out)[i], noise_of(a.kind, mix((uint32_t)i + mix(a.seed + (uint32_t)(i >> 32)))));
}

void launch_KERNEL_NOISE(const k_noise *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, LAUNCH((noise<T>), blocks_for(a->n), BLOCK, s, *a););
}

/* --- which elements */

struct element {
    int a, b, p, q; /* sample and channel, or both channels of a filter; then the place in the plane */
};

/* Half of them anywhere; half where loops end: the last sample, channel, row, column, and their neighbours. */
__device__ inline int coordinate(uint32_t h, int size, bool edge)
{
    const uint32_t way = edge ? h & 3 : 3;
    h >>= 2;
    return way == 0   ? size - 1
           : way == 1 ? size - 1 - (int)(h % (unsigned)(size < 8 ? size : 8))
           : way == 2 ? 0
                      : (int)(h % (unsigned)size);
}

__device__ inline element element_of(const k_product &s, uint32_t seed, int i)
{
    const int a = s.direction == PRODUCT_WEIGHT ? s.k : s.n,
              b = s.direction == PRODUCT_FORWARD  ? s.k
                  : s.direction == PRODUCT_WEIGHT ? s.c / s.groups
                                                  : s.c,
              p = s.direction == PRODUCT_FORWARD ? s.oh
                  : s.direction == PRODUCT_DATA  ? s.h
                                                 : s.r,
              q = s.direction == PRODUCT_FORWARD ? s.ow
                  : s.direction == PRODUCT_DATA  ? s.w
                                                 : s.s;
    const uint32_t h = mix(seed ^ mix((uint32_t)i));
    const bool edge = i & 1;
    return {coordinate(mix(h + 1), a, edge), coordinate(mix(h + 2), b, edge), coordinate(mix(h + 3), p, edge),
            coordinate(mix(h + 4), q, edge)};
}

/* Index of (n, c, h, w) in a tensor of `all` channels and planes of height * width. */
__device__ __forceinline__ size_t index_of(bool nhwc, int n, int c, int h, int w, int all, int height, int width)
{
    return nhwc ? (((size_t)n * height + h) * width + w) * all + c : (((size_t)n * all + c) * height + h) * width + w;
}

__device__ inline size_t result_at(const k_product &s, const element &e)
{
    if (s.direction == PRODUCT_FORWARD)
        return index_of(s.nhwc, e.a, e.b, e.p, e.q, s.k, s.oh, s.ow);
    if (s.direction == PRODUCT_DATA)
        return index_of(s.nhwc, e.a, e.b, e.p, e.q, s.c, s.h, s.w);
    return index_of(s.nhwc, e.a, e.b, e.p, e.q, s.c / s.groups, s.r, s.s);
}

/* --- by definition */

struct both {
    double exact, stored; /* of what is read; of what the steps of an unfused path would have read */
};

/* What tensor cores see of a float at worst: 10 bits of its mantissa, the rest cut off. */
__device__ inline double operand(float x, bool tf32)
{
    if (!tf32)
        return x;
    union {
        float f;
        uint32_t bits;
    } u = {x};
    u.bits &= 0xffffe000u;
    return u.f;
}

template <typename T> __device__ both factor(const void *p, size_t at, bool tf32)
{
    const float x = to_float(static_cast<const T *>(p)[at]);
    return {x, operand(x, tf32)};
}

/* An element of what the convolution reads: x, or relu(x * scale + shift), which an unfused path would have stored. */
template <typename T> __device__ both input(const k_product &s, int n, int c, int h, int w)
{
    const both x = factor<T>(s.x, index_of(s.nhwc, n, c, h, w, s.c, s.h, s.w), s.tf32);
    if (!s.scale)
        return x;
    const double v =
        x.exact * to_float(static_cast<const T *>(s.scale)[c]) + to_float(static_cast<const T *>(s.shift)[c]);
    T rounded;
    from_float(rounded, (float)(v > 0 ? v : 0));
    return {v > 0 ? v : 0, to_float(rounded)};
}

/* Term t of element e: its two factors multiplied; 0 in the padding. */
template <typename T> __device__ both term(const k_product &s, const element &e, unsigned t)
{
    const int of_x = s.c / s.groups, of_y = s.k / s.groups;
    int n = e.a, c = e.b, k = e.b, p = e.p, q = e.q, r, f; /* r, f: of the filter */
    if (s.direction == PRODUCT_WEIGHT) {
        k = e.a;
        c += k / of_y * of_x;
        r = e.p;
        f = e.q;
        q = (int)(t % (unsigned)s.ow);
        p = (int)(t / (unsigned)s.ow % (unsigned)s.oh);
        n = (int)(t / (unsigned)s.ow / (unsigned)s.oh);
    } else {
        f = (int)(t % (unsigned)s.s);
        r = (int)(t / (unsigned)s.s % (unsigned)s.r);
        const int within = (int)(t / (unsigned)s.s / (unsigned)s.r);
        if (s.direction == PRODUCT_FORWARD)
            c = k / of_y * of_x + within;
        else
            k = c / of_x * of_y + within;
    }
    int h = p * s.stride[0] - s.pad[0] + r, w = q * s.stride[1] - s.pad[1] + f;
    if (s.direction == PRODUCT_DATA) { /* from the input's place to the output's */
        h = e.p;
        w = e.q;
        p = h + s.pad[0] - r;
        q = w + s.pad[1] - f;
        if (p < 0 || q < 0 || p % s.stride[0] || q % s.stride[1])
            return {0, 0};
        p /= s.stride[0];
        q /= s.stride[1];
        if (p >= s.oh || q >= s.ow)
            return {0, 0};
    }
    if (h < 0 || w < 0 || h >= s.h || w >= s.w)
        return {0, 0};
    const both x = s.direction == PRODUCT_DATA ? both{0, 0} : input<T>(s, n, c, h, w),
               filter = s.direction == PRODUCT_WEIGHT
                            ? both{0, 0}
                            : factor<T>(s.filter, index_of(s.nhwc, k, c % of_x, r, f, of_x, s.r, s.s), s.tf32),
               y = s.direction == PRODUCT_FORWARD
                       ? both{0, 0}
                       : factor<T>(s.y, index_of(s.nhwc, n, k, p, q, s.k, s.oh, s.ow), s.tf32);
    const both &one = s.direction == PRODUCT_DATA ? y : x, &other = s.direction == PRODUCT_WEIGHT ? y : filter;
    return {one.exact * other.exact, one.stored * other.stored};
}

__device__ inline unsigned terms_of(const k_product &s)
{
    return s.direction == PRODUCT_FORWARD ? (unsigned)(s.c / s.groups * s.r * s.s)
           : s.direction == PRODUCT_DATA  ? (unsigned)(s.k / s.groups * s.r * s.s)
                                          : (unsigned)s.n * (unsigned)s.oh * (unsigned)s.ow;
}

/* Was the ReLU on that this gradient goes back through? */
template <typename T> __device__ bool lets_through(const k_product &s, const element &e)
{
    if (!s.before)
        return true;
    const float x = to_float(static_cast<const T *>(s.before)[result_at(s, e)]);
    return (x - s.mean[e.b]) * s.invstd[e.b] * s.gamma[e.b] + s.beta[e.b] > 0;
}

/* What is stored in the end: sums of halves in fp32, as good as exact, then one rounding; floats in fp32, in some
 * order. */
template <typename T> __device__ double stored_as(enum dtype out, double sum, float in_order)
{
    const float x = sizeof(T) == sizeof(float) ? in_order : (float)sum;
    T r;
    from_float(r, x);
    return out == DT_F32 ? x : to_float(r);
}

template <typename T> __global__ void expect(k_expect a)
{
    const int i = (int)(blockIdx.x * WARPS + threadIdx.x / WARP);
    const element e = element_of(a.product, a.seed, i);
    const unsigned terms = terms_of(a.product);
    both sum = {0, 0};
    float in_order = 0;
    for (unsigned t = threadIdx.x % WARP; t < terms; t += WARP) {
        const both v = term<T>(a.product, e, t);
        sum.exact += v.exact;
        sum.stored += v.stored;
        in_order += (float)v.stored;
    }
    for (int d = WARP / 2; d > 0; d /= 2) {
        sum.exact += __shfl_xor_sync(0xffffffffu, sum.exact, d);
        sum.stored += __shfl_xor_sync(0xffffffffu, sum.stored, d);
        in_order += __shfl_xor_sync(0xffffffffu, in_order, d);
    }
    if (threadIdx.x % WARP || i >= a.samples)
        return;
    const bool through = lets_through<T>(a.product, e);
    const double onto = a.product.onto;
    a.exact[i] = through ? sum.exact + onto : 0;
    a.stored[i] = through ? stored_as<T>(a.product.out, sum.stored + onto, in_order + a.product.onto) : 0;
}

void launch_KERNEL_EXPECT(const k_expect *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->product.type, LAUNCH((expect<T>), (unsigned)((a->samples + WARPS - 1) / WARPS), BLOCK, s, *a););
}

template <typename T> __global__ void distance(k_distance a)
{
    double got = 0, stored = 0, exact = 0;
    for (int i = threadIdx.x; i < a.samples; i += BLOCK) {
        const element e = element_of(a.product, a.seed, i);
        const double x = to_float(static_cast<const T *>(a.result)[result_at(a.product, e)]) - a.exact[i],
                     y = a.stored[i] - a.exact[i];
        got += x * x;
        stored += y * y;
        exact += a.exact[i] * a.exact[i];
    }
    got = block_sum(got);
    stored = block_sum(stored);
    exact = block_sum(exact);
    if (threadIdx.x)
        return;
    a.out[0] = got;
    a.out[1] = stored;
    a.out[2] = exact;
}

void launch_KERNEL_DISTANCE(const k_distance *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->product.out, LAUNCH((distance<T>), 1, BLOCK, s, *a););
}

template <typename T> __global__ void gap(k_gap a)
{
    double off = 0, all = 0;
    for (size_t i = threadIdx.x; i < a.n; i += BLOCK) {
        const double b = a.b[i], d = to_float(static_cast<const T *>(a.a)[i]) - b;
        off += d * d;
        all += b * b;
    }
    off = block_sum(off);
    all = block_sum(all);
    if (threadIdx.x)
        return;
    a.out[0] = off;
    a.out[1] = all;
}

void launch_KERNEL_GAP(const k_gap *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, LAUNCH((gap<T>), 1, BLOCK, s, *a););
}

/* --- no numbers */

template <typename T> __global__ void count_bad(k_count a)
{
    double nan = 0, infinite = 0;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK) {
        const float x = to_float(static_cast<const T *>(a.x)[i]);
        nan += x != x;
        infinite += x == x && !isfinite(x);
    }
    nan = block_sum(nan);
    infinite = block_sum(infinite);
    if (threadIdx.x)
        return;
    a.out[2 * blockIdx.x] = nan;
    a.out[2 * blockIdx.x + 1] = infinite;
}

extern "C" int kernel_bad_blocks(size_t n)
{
    const size_t blocks = (n + 4 * BLOCK - 1) / (4 * BLOCK);
    return (int)(blocks < 1 ? 1 : blocks > KERNEL_BAD_BLOCKS ? KERNEL_BAD_BLOCKS : blocks);
}

void launch_KERNEL_COUNT_BAD(const k_count *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, LAUNCH((count_bad<T>), kernel_bad_blocks(a->n), BLOCK, s, *a););
}

/* --- bits */

/* Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators: number `i` of the generator, moved by x. */
__device__ __forceinline__ uint64_t mix_word(uint64_t i, uint32_t x)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + x;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

template <typename W> __global__ void checksum(k_checksum a)
{
    uint64_t sum = 0;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK)
        sum += mix_word(i, static_cast<const W *>(a.x)[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        a.out[blockIdx.x] = sum;
}

void launch_KERNEL_CHECKSUM(const k_checksum *a, cudaStream_t s)
{
    if (a->type == DT_F32)
        LAUNCH((checksum<uint32_t>), kernel_bad_blocks(a->n), BLOCK, s, *a);
    else
        LAUNCH((checksum<uint16_t>), kernel_bad_blocks(a->n), BLOCK, s, *a);
}
