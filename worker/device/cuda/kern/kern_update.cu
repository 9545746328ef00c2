/* Arenas: copies for the convolutions and back, norms, update rules (device/rules.h has them for the host), averages,
 * loss scale. */
#include "worker/device/cuda/kern/kern.cuh"
#include "worker/device/fold.h"

/* PACK and UNPACK are one launch for a table of tensors: blockIdx.y is the tensor. Matrices, and what lies alike on
 * both sides, go in vectors; filters (K, C, rs) and (K, rs, C) row by row through shared memory, so that both sides are
 * touched in runs; the rest, whose rows are longer than that, and a folded one (device/fold.h), element by
 * element. Bytes: 4 an element of the arena (UNPACK with accumulate: 8) and the copy's own; nothing is read twice, so
 * memory bounds both. */

__device__ __forceinline__ bool alike(const k_tensor &t)
{
    return (t.rs == 1 || !t.krsc) && t.c == t.padded_c && !t.fold.r;
}

__device__ __forceinline__ bool by_rows(const k_tensor &t)
{
    return t.krsc && !t.fold.r && t.c * t.rs <= PACK_ROW_MAX;
}

/* The same of a copy whose pixels are put together: its pixel rs, channel c. */
__device__ __forceinline__ bool folded_index(const k_tensor &t, unsigned k, unsigned c, unsigned rs, unsigned *ret)
{
    const unsigned row = rs / t.fold.columns, column = rs - row * t.fold.columns, part = c / FOLD_CHANNELS;
    const int r = (int)(2 * row + part / 2) - t.fold.skip_r, s = (int)(2 * column + part % 2) - t.fold.skip_s;
    c %= FOLD_CHANNELS;
    *ret = ((k * t.c + c) * t.fold.r + r) * t.fold.s + s;
    return c < (unsigned)t.c && (unsigned)r < (unsigned)t.fold.r && (unsigned)s < (unsigned)t.fold.s;
}

/* Where element i of the copy is in the arena; false: it is padding. Only here a tensor has less than 2^31 elements
 * (cuda_plan_weight_copy()). */
__device__ __forceinline__ bool arena_index(const k_tensor &t, unsigned i, unsigned *ret)
{
    unsigned k, c, rs;
    if (t.krsc) {
        const unsigned pixel = i / t.padded_c;
        c = i - pixel * t.padded_c;
        k = pixel / t.rs;
        rs = pixel - k * t.rs;
    } else {
        const unsigned plane = i / t.rs;
        rs = i - plane * t.rs;
        k = plane / t.padded_c;
        c = plane - k * t.padded_c;
    }
    if (t.fold.r)
        return folded_index(t, k, c, rs, ret);
    *ret = (k * t.c + c) * t.rs + rs;
    return c < (unsigned)t.c;
}

__device__ __forceinline__ size_t count_of(const k_tensor &t)
{
    return (size_t)t.k * t.padded_c * t.rs;
}

/* --- the same order on both sides */

template <typename T, int V> __device__ void pack_run(const k_tensor &t, size_t from, size_t to)
{
    for (size_t i = from + (blockIdx.x * BLOCK + threadIdx.x) * V; i < to; i += gridDim.x * BLOCK * V) {
        float v[V];
        load<float, V>(t.arena + i, v);
        store<T, V>(static_cast<T *>(t.copy) + i, v);
    }
}

template <typename T, int V> __device__ void unpack_run(const k_tensor &t, bool add, size_t from, size_t to)
{
    for (size_t i = from + (blockIdx.x * BLOCK + threadIdx.x) * V; i < to; i += gridDim.x * BLOCK * V) {
        float v[V], was[V];
        load<T, V>(static_cast<const T *>(t.copy) + i, v);
        if (add) {
            load<float, V>(t.arena + i, was);
            UNROLL
            for (int k = 0; k < V; k++)
                v[k] += was[k];
        }
        store<float, V>(t.arena + i, v);
    }
}

__device__ __forceinline__ size_t whole_vectors(const k_tensor &t)
{
    const bool aligned = ((uintptr_t)t.arena | (uintptr_t)t.copy) % 16 == 0;
    return aligned ? count_of(t) / 4 * 4 : 0;
}

/* --- rows */

/* The next element of a row of the copy that is this thread's: `channels` in a pixel, without a division. */
__device__ __forceinline__ void next_of_row(int &c, int &pixel, int channels)
{
    for (c += BLOCK; c >= channels; c -= channels)
        pixel++;
}

__device__ __forceinline__ void first_of_row(int &c, int &pixel, int channels)
{
    pixel = 0;
    for (c = (int)threadIdx.x; c >= channels; c -= channels)
        pixel++;
}

template <typename T> __device__ void pack_rows(const k_tensor &t, float *row)
{
    const int n = t.c * t.rs;
    T *to = static_cast<T *>(t.copy);
    for (int k = (int)blockIdx.x; k < t.k; k += (int)gridDim.x) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += BLOCK)
            row[i] = t.arena[(size_t)k * n + i];
        __syncthreads();
        int c, pixel;
        for (first_of_row(c, pixel, t.padded_c); pixel < t.rs; next_of_row(c, pixel, t.padded_c))
            from_float(to[((size_t)k * t.rs + pixel) * t.padded_c + c], c < t.c ? row[c * t.rs + pixel] : 0);
    }
}

template <typename T> __device__ void unpack_rows(const k_tensor &t, bool add, float *row)
{
    const int n = t.c * t.rs;
    const T *from = static_cast<const T *>(t.copy);
    for (int k = (int)blockIdx.x; k < t.k; k += (int)gridDim.x) {
        int c, pixel;
        __syncthreads();
        for (first_of_row(c, pixel, t.padded_c); pixel < t.rs; next_of_row(c, pixel, t.padded_c))
            if (c < t.c)
                row[c * t.rs + pixel] = to_float(from[((size_t)k * t.rs + pixel) * t.padded_c + c]);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += BLOCK) {
            float *to = t.arena + (size_t)k * n + i;
            *to = add ? *to + row[i] : row[i];
        }
    }
}

/* --- all of a table */

template <typename T> __device__ void pack_one(const k_tensor &t, float *row)
{
    if (alike(t)) {
        const size_t whole = whole_vectors(t);
        pack_run<T, 4>(t, 0, whole);
        pack_run<T, 1>(t, whole, count_of(t));
        return;
    }
    if (by_rows(t)) {
        pack_rows<T>(t, row);
        return;
    }
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x, n = (unsigned)count_of(t); i < n; i += gridDim.x * BLOCK) {
        unsigned at;
        const bool in = arena_index(t, i, &at);
        from_float(static_cast<T *>(t.copy)[i], in ? t.arena[at] : 0);
    }
}

template <typename T> __device__ void unpack_one(const k_tensor &t, bool add, float *row)
{
    if (alike(t)) {
        const size_t whole = whole_vectors(t);
        unpack_run<T, 4>(t, add, 0, whole);
        unpack_run<T, 1>(t, add, whole, count_of(t));
        return;
    }
    if (by_rows(t)) {
        unpack_rows<T>(t, add, row);
        return;
    }
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x, n = (unsigned)count_of(t); i < n; i += gridDim.x * BLOCK) {
        unsigned at;
        if (!arena_index(t, i, &at))
            continue;
        const float v = to_float(static_cast<const T *>(t.copy)[i]);
        t.arena[at] = add ? t.arena[at] + v : v;
    }
}

__global__ void pack_all(const k_tensor *table)
{
    __shared__ float row[PACK_ROW_MAX];
    const k_tensor t = table[blockIdx.y];
    if (t.type == DT_F16)
        pack_one<__half>(t, row);
    else if (t.type == DT_BF16)
        pack_one<__nv_bfloat16>(t, row);
    else
        pack_one<float>(t, row);
}

__global__ void unpack_all(k_pack a)
{
    __shared__ float row[PACK_ROW_MAX];
    const k_tensor t = a.table[blockIdx.y];
    if (t.type == DT_F16)
        unpack_one<__half>(t, a.accumulate, row);
    else if (t.type == DT_BF16)
        unpack_one<__nv_bfloat16>(t, a.accumulate, row);
    else
        unpack_one<float>(t, a.accumulate, row);
}

static dim3 table_grid(const k_pack *a)
{
    const size_t each = a->elements / (a->n > 0 ? a->n : 1);
    size_t x = (each + 4 * BLOCK - 1) / (4 * BLOCK);
    return dim3((unsigned)(x < 1 ? 1 : x > 256 ? 256 : x), a->n);
}

void launch_KERNEL_PACK(const k_pack *a, cudaStream_t s)
{
    if (a->n > 0)
        LAUNCH((pack_all), table_grid(a), BLOCK, s, a->table);
}

void launch_KERNEL_UNPACK(const k_pack *a, cudaStream_t s)
{
    if (a->n > 0)
        LAUNCH((unpack_all), table_grid(a), BLOCK, s, *a);
}

template <typename T> __device__ static float read_as(const void *p, size_t i)
{
    return to_float(static_cast<const T *>(p)[i]);
}

__global__ void convert(k_convert a)
{
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK) {
        float v = a.from == DT_F64    ? (float)static_cast<const double *>(a.in)[i]
                  : a.from == DT_F16  ? read_as<__half>(a.in, i)
                  : a.from == DT_BF16 ? read_as<__nv_bfloat16>(a.in, i)
                                      : read_as<float>(a.in, i);
        v = a.mul == 0 ? v : v * a.mul;
        if (a.to == DT_F16)
            from_float(static_cast<__half *>(a.out)[i], v);
        else if (a.to == DT_BF16)
            from_float(static_cast<__nv_bfloat16 *>(a.out)[i], v);
        else
            static_cast<float *>(a.out)[i] = v;
    }
}

__global__ void store(k_store a)
{
    *a.to = a.times ? a.value * *a.times : a.value;
}

void launch_KERNEL_STORE(const k_store *a, cudaStream_t s)
{
    LAUNCH((store), 1, 1, s, *a);
}

void launch_KERNEL_CONVERT(const k_convert *a, cudaStream_t s)
{
    LAUNCH((convert), blocks_for(a->n), BLOCK, s, *a);
}

__global__ void round_all(k_round a)
{
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK) {
        __half half;
        __nv_bfloat16 brain;
        if (a.to == DT_F16)
            from_float(half, a.x[i]), a.x[i] = to_float(half);
        else
            from_float(brain, a.x[i]), a.x[i] = to_float(brain);
    }
}

void launch_KERNEL_ROUND(const k_round *a, cudaStream_t s)
{
    LAUNCH((round_all), blocks_for(a->n), BLOCK, s, *a);
}

__global__ void squares(const float *x, size_t n, double *partial)
{
    double sum = 0;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK)
        sum += (double)x[i] * x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void norm(k_norm a, int blocks)
{
    double sum = 0;
    for (int i = threadIdx.x; i < blocks; i += BLOCK)
        sum += a.partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        const double count = a.count ? *a.count : 1;
        const double scale = a.scaler ? a.scaler->scale : 1;
        *a.out = count > 0 ? (float)(sqrt(sum) * a.mul / scale / count) : 0;
    }
}

void launch_KERNEL_NORM(const k_norm *a, cudaStream_t s)
{
    const unsigned wanted = blocks_for(a->n), blocks = wanted < KERNEL_NORM_PARTIAL ? wanted : KERNEL_NORM_PARTIAL;
    LAUNCH((squares), blocks, BLOCK, s, a->x, a->n, a->partial);
    LAUNCH((norm), 1, BLOCK, s, *a, (int)blocks);
}

/* What is the same for all elements of a slice. */
struct factors {
    float mul, lr, wd;   /* of gradients; with LARS' and LAMB's trust */
    float first, second; /* Adam's bias corrections, in double: 1 - beta^step loses digits in fp32 */
};

__device__ static factors factors_of(const k_update &a, int slice)
{
    const struct update &u = a.u;
    const k_slice &s = a.slices[slice];
    const int step = a.step - (a.scaler ? a.scaler->skipped : 0);
    factors f = {(float)(u.grad_mul * (a.scaler ? a.scaler->inv_scale : 1) / *a.count), a.lr, (float)s.weight_decay, 1,
                 1};
    if (u.norm) {
        const float clip = (float)(u.max_norm / (*static_cast<const float *>(u.norm) + 1e-6));
        f.mul *= clip < 1 ? clip : 1;
    }
    if (u.rule == UPDATE_LARS && s.trust > 0) {
        const double wn = a.norms[2 * slice], gn = (double)a.norms[2 * slice + 1] * fabsf(f.mul);
        if (wn > 0 && gn > 0)
            f.lr *= (float)(s.trust * wn / (gn + s.weight_decay * wn));
    }
    if (u.rule == UPDATE_LAMB) {
        f.first = (float)(1 / (1 - pow(u.momentum, (double)step)));
        f.second = (float)(1 / sqrt(1 - pow(u.beta2, (double)step)));
    }
    if (u.rule == UPDATE_LAMB && s.trust > 0 && a.norms) {
        const double wn = a.norms[2 * slice], dn = a.norms[2 * slice + 1];
        f.lr *= wn > 0 && dn > 0 ? (float)(s.trust * wn / dn) : 1;
    }
    if (u.rule == UPDATE_ADAM || u.rule == UPDATE_ADAMW) {
        f.first = (float)(a.lr / (1 - pow(u.momentum, (double)step)));
        f.second = (float)(1 / sqrt(1 - pow(u.beta2, (double)step)));
    }
    return f;
}

/* LAMB's direction, of moments after the step. */
__device__ __forceinline__ float lamb_direction(const k_update &a, const factors &f, float w, float m, float v)
{
    return m * f.first / (sqrtf(v) * f.second + (float)a.u.eps) + f.wd * w;
}

/* The same from those before it; g: a sum of gradients. */
__device__ __forceinline__ float lamb_ahead(const k_update &a, const factors &f, float g, float w, float m, float v)
{
    const float mu = (float)a.u.momentum, beta2 = (float)a.u.beta2;
    g *= f.mul;
    return lamb_direction(a, f, w, mu * m + (1 - mu) * g, beta2 * v + (1 - beta2) * g * g);
}

/* A block a chunk, so that the sums of a slice are always taken in the same order. */
__global__ void lars_squares(k_lars_norms a)
{
    __shared__ factors shared;
    const size_t at = (size_t)a.chunk + blockIdx.x;
    const k_chunk c = a.u.chunks[at];
    const k_slice &s = a.u.slices[c.slice];
    const bool lamb = a.u.u.rule == UPDATE_LAMB;
    const float *weights = a.u.params + (c.first - s.params_skipped), *grads = a.u.grads + c.first;
    if (s.trust == 0 && !a.u.u.measure)
        return;
    if (threadIdx.x == 0 && lamb)
        shared = factors_of(a.u, c.slice);
    __syncthreads();
    double w = 0, g = 0;
    for (int i = threadIdx.x; i < c.n; i += BLOCK) {
        const size_t m = c.first - s.skipped + i;
        const double x = weights[i],
                     y = lamb ? lamb_ahead(a.u, shared, grads[i], weights[i], a.u.momentum[m], a.u.second[m])
                              : grads[i];
        w += x * x;
        g += y * y;
    }
    w = block_sum(w);
    g = block_sum(g);
    if (threadIdx.x == 0) {
        a.partial[2 * at] = w;
        a.partial[2 * at + 1] = g;
    }
}

__global__ void lars_norms(k_lars_norms a)
{
    const int which = a.slice + (int)blockIdx.x;
    const k_slice s = a.u.slices[which];
    if (s.trust == 0 && !a.u.u.measure)
        return;
    double w = 0, g = 0;
    for (int i = threadIdx.x; i < s.nchunks; i += BLOCK) {
        w += a.partial[2 * (size_t)(s.chunk + i)];
        g += a.partial[2 * (size_t)(s.chunk + i) + 1];
    }
    w = block_sum(w);
    g = block_sum(g);
    if (threadIdx.x == 0) {
        a.norms[2 * which] = (float)sqrt(w);
        a.norms[2 * which + 1] = (float)sqrt(g);
    }
}

void launch_KERNEL_LARS_NORMS(const k_lars_norms *a, cudaStream_t s)
{
    if (a->nchunks == 0)
        return;
    LAUNCH((lars_squares), a->nchunks, BLOCK, s, *a);
    LAUNCH((lars_norms), a->nslices, BLOCK, s, *a);
}

/* Of one slice: what its elements are apart from in each arena, so that element i of all of them is side by side. */
struct update_arenas {
    float *w, *m, *v; /* v: of Adam */
    const float *g;
};

/* One element by rule R; w, m and v change. */
template <update_rule R>
__device__ __forceinline__ void apply_rule(const k_update &a, const factors &f, float g, float &w, float &m, float &v)
{
    const float mu = (float)a.u.momentum, beta2 = (float)a.u.beta2;
    g *= f.mul;
    switch (R) {
    case UPDATE_SGD:
        m = mu * m + (g + f.wd * w);
        w -= f.lr * m;
        break;
    case UPDATE_NESTEROV:
        g += f.wd * w;
        m = mu * m + g;
        w -= f.lr * (g + mu * m);
        break;
    case UPDATE_CAFFE2: {
        const float old = m;
        m = mu * old + f.lr * (g + f.wd * w);
        w -= (1 + mu) * m - mu * old;
    } break;
    case UPDATE_LARS:
        m = mu * m + f.lr * (g + f.wd * w);
        w -= m;
        break;
    case UPDATE_ADAM:
    case UPDATE_ADAMW:
        if (R == UPDATE_ADAM)
            g += f.wd * w;
        else
            w *= 1 - f.lr * f.wd;
        m = mu * m + (1 - mu) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        w -= f.first * m / (sqrtf(v) * f.second + (float)a.u.eps);
        break;
    case UPDATE_LAMB:
        m = mu * m + (1 - mu) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        w -= f.lr * lamb_direction(a, f, w, m, v);
        break;
    }
}

template <update_rule R, int V>
__device__ __forceinline__ void update_run(const k_update &a, const factors &f, const update_arenas &p, int from,
                                           int to)
{
    constexpr bool ADAM = R == UPDATE_ADAM || R == UPDATE_ADAMW || R == UPDATE_LAMB;
    for (int i = from + (int)threadIdx.x * V; i < to; i += BLOCK * V) {
        float w[V], m[V], g[V], v[V] = {};
        load<float, V>(p.w + i, w);
        load<float, V>(p.m + i, m);
        load<float, V>(p.g + i, g);
        if (ADAM)
            load<float, V>(p.v + i, v);
        UNROLL
        for (int k = 0; k < V; k++)
            apply_rule<R>(a, f, g[k], w[k], m[k], v[k]);
        store<float, V>(p.w + i, w);
        store<float, V>(p.m + i, m);
        if (ADAM)
            store<float, V>(p.v + i, v);
    }
}

/* A block a chunk, 128 bits of each arena at a time where all of them allow it: 12 bytes read and 8 written an element
 * (Adam: 16 and 12), each once. */
template <update_rule R> __global__ void update(k_update a)
{
    __shared__ factors shared;
    const k_chunk chunk = a.chunks[blockIdx.x];
    if (*a.count == 0 || (a.scaler && a.scaler->skip))
        return;
    if (threadIdx.x == 0)
        shared = factors_of(a, chunk.slice);
    __syncthreads();
    const factors f = shared;
    const size_t moments = chunk.first - a.slices[chunk.slice].skipped,
                 params = chunk.first - a.slices[chunk.slice].params_skipped;
    const update_arenas p = {a.params + params, a.momentum + moments, a.second ? a.second + moments : NULL,
                             a.grads + chunk.first};
    const bool aligned = ((uintptr_t)p.w | (uintptr_t)p.m | (uintptr_t)p.v | (uintptr_t)p.g) % 16 == 0;
    const int whole = aligned ? chunk.n / 4 * 4 : 0;
    update_run<R, 4>(a, f, p, 0, whole);
    update_run<R, 1>(a, f, p, whole, chunk.n);
}

void launch_KERNEL_UPDATE(const k_update *a, cudaStream_t s)
{
    if (a->nchunks == 0)
        return;
    switch (a->u.rule) {
#define X(rule, name)                                                                                                  \
    case rule:                                                                                                         \
        LAUNCH((update<rule>), a->nchunks, BLOCK, s, *a);                                                              \
        break;
        UPDATE_RULES(X)
#undef X
    }
}

__global__ void blend(k_blend a)
{
    const float count = a.count ? *a.count : 1;
    if (count == 0 || (a.scaler && a.scaler->skip))
        return;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK)
        a.to[i] = (1 - a.weight) * a.to[i] + a.weight * (a.from[i] / count);
}

void launch_KERNEL_BLEND(const k_blend *a, cudaStream_t s)
{
    LAUNCH((blend), blocks_for(a->n), BLOCK, s, *a);
}

/* loss_scale_after(), worker/precision/loss_scale.c. Once hopeless no step changes anything: the host hears of it a
 * step later. The skipped steps that KERNEL_UPDATE takes off are this one's, too, but then it does nothing.
 * torn is set before a collective is ended from outside, so whoever comes behind the collective finds it. */
__global__ void scaler(k_scaler a)
{
    k_scaler_state s = *a.state;
    s.inv_scale = 1 / s.scale;
    s.torn = *(const volatile int32_t *)a.torn != 0;
    if (s.torn) {
        s.skip = 1;
        *a.state = s;
        return;
    }
    const bool finite = isfinite(*a.loss) && (!a.norm || isfinite(*a.norm));
    s.hopeless = s.hopeless || (!finite && (!s.dynamic || s.scale <= a.min));
    s.skip = s.hopeless || !finite;
    if (s.skip && !s.hopeless) {
        s.scale /= 2;
        s.clean = 0;
        s.skipped++;
    } else if (!s.skip && s.dynamic && ++s.clean == a.window) {
        s.scale = fminf(s.scale * 2, a.max);
        s.clean = 0;
    }
    *a.state = s;
}

void launch_KERNEL_SCALER(const k_scaler *a, cudaStream_t s)
{
    LAUNCH((scaler), 1, 1, s, *a);
}
