/* Softmax cross-entropy: a block a row, so that two million classes are no different from ten. Whole, where the
 * gradients may take the place of the logits; or over the parts of them that the ranks of a group have. Threads of a
 * block read neighbouring logits.
 *
 *   xent   reads n rows of B bytes, and once more for the gradients, which it writes. Of a vocabulary a row has a
 *          multiprocessor to itself: what all of them hold (132 x 201 KB of 50,257 logits) is still in the cache of
 *          50 MB when it is read again */
#include <cfloat>

#include "worker/device/cuda/kern/kern.cuh"
#include "worker/program/program.h"

enum {
    PART = 4, /* loss, top 1, top 5, count */
    LONG_ROW = 8192,
    LONG_BLOCK = 1024,
    ON_THEIR_WAY = 2 /* vectors of a thread */
};

__device__ __forceinline__ float power(float x)
{
    return expf(x);
}
__device__ __forceinline__ double power(double x)
{
    return exp(x);
}

/* Does logit z of class k beat that of the label? */
__device__ __forceinline__ bool beats(float z, int k, float target, int label)
{
    return k != label && !(z < target || (z == target && k > label));
}

/* Of logits [k, k + V), those below n: what a thread has seen. exps is in units of exp(most). */
template <typename E> struct seen {
    float most;
    double exps, all;
    int better;
};
template <typename E, int V>
__device__ __forceinline__ void see(seen<E> &s, const float (&z)[V], int k, int n, float target, int label, bool smooth)
{
    float most = s.most;
    E exps = 0;
    UNROLL
    for (int i = 0; i < V; i++)
        most = k + i < n ? fmaxf(most, z[i]) : most;
    if (most > s.most) {
        s.exps *= (double)power((E)s.most - (E)most);
        s.most = most;
    }
    UNROLL
    for (int i = 0; i < V; i++) {
        exps += k + i < n ? power((E)z[i] - (E)most) : 0;
        s.all += smooth && k + i < n ? z[i] : 0;
        s.better += k + i < n && beats(z[i], k + i, target, label);
    }
    s.exps += (double)exps;
}

/* The gradient of logit z of class k, of a row that counts. */
template <typename E>
__device__ __forceinline__ float slope(float z, int k, int label, E lse, float smoothing, int classes, float scale)
{
    const E want = smoothing / classes + (k == label ? 1 - (E)smoothing : 0);
    return (float)((power((E)z - lse) - want) * scale);
}

/* Vectors are whole: behind the classes there is room in a row. Gradients that lie where wider logits are follow the
 * reads, since those of a turn lie in what this turn, or one before it, has read. */
template <typename G, int V, typename E>
__global__ void __launch_bounds__(sizeof(E) == sizeof(float) ? LONG_BLOCK : BLOCK) xent(k_xent a)
{
    enum { U = ON_THEIR_WAY };
    const int n = blockIdx.x, label = a.labels[n], turn = (int)blockDim.x * V * U, first = (int)threadIdx.x * V;
    const bool counts = label >= 0;
    const float *z = a.logits + n * a.stride;
    const float target = counts ? z[label] : 0;
    seen<E> s = {-FLT_MAX, 0, 0, 0}; /* so that a logit may be -infinity */
    for (int k0 = 0; k0 < a.classes && counts; k0 += turn) {
        pack<float, V> in[U] = {};
        UNROLL
        for (int u = 0; u < U; u++)
            if (k0 + u * (turn / U) + first < a.classes)
                in[u] = fetch<float, V>(z + k0 + u * (turn / U) + first);
        UNROLL
        for (int u = 0; u < U; u++)
            if (k0 + u * (turn / U) + first < a.classes)
                see<E, V>(s, in[u].at, k0 + u * (turn / U) + first, a.classes, target, label, a.smoothing > 0);
    }
    const float most = block_max(s.most);
    const double sum = block_sum(s.exps * (double)power((E)s.most - (E)most)), all = block_sum(s.all);
    const float better = block_sum((float)s.better);
    const double lse = (double)most + log(sum);
    if (threadIdx.x == 0) {
        const bool number = counts && target == target;
        const double loss = (1 - a.smoothing) * (lse - target) + a.smoothing * (lse - all / a.classes);
        const float part[PART] = {counts ? (float)loss : 0, number && better < 1 ? 1.0f : 0.0f,
                                  number && better < 5 ? 1.0f : 0.0f, counts ? 1.0f : 0.0f};
        store<float, PART>(a.samples + (size_t)n * PART, part);
    }
    if (!a.dlogits)
        return;
    G *d = static_cast<G *>(a.dlogits) + n * a.grad_stride;
    const float scale = a.scale ? *a.scale : 1;
    for (int k0 = 0; k0 < a.classes; k0 += turn) {
        pack<float, V> in[U] = {};
        UNROLL
        for (int u = 0; u < U; u++)
            if (counts && k0 + u * (turn / U) + first < a.classes)
                in[u] = fetch<float, V>(z + k0 + u * (turn / U) + first);
        __syncthreads();
        UNROLL
        for (int u = 0; u < U; u++) {
            const int k = k0 + u * (turn / U) + first;
            float out[V];
            if (k >= a.classes)
                break;
            UNROLL
            for (int i = 0; i < V; i++)
                out[i] = counts ? slope<E>(in[u].at[i], k + i, label, (E)lse, a.smoothing, a.classes, scale) : 0;
            store<G, V>(d + k, out);
        }
    }
}

void launch_KERNEL_XENT(const k_xent *a, cudaStream_t s)
{
    const bool vectors = a->stride % 4 == 0 && a->grad_stride % 4 == 0;
    const unsigned block = a->classes > LONG_ROW ? (unsigned)LONG_BLOCK : (unsigned)BLOCK; /* in floats */
    DISPATCH_TYPE(a->grad_type, {
        if (vectors && a->in_floats)
            LAUNCH((xent<T, 4, float>), a->n, block, s, *a);
        else if (vectors)
            LAUNCH((xent<T, 4, double>), a->n, BLOCK, s, *a);
        else
            LAUNCH((xent<T, 1, double>), a->n, BLOCK, s, *a);
    });
}

/* A thread has every 64th row of one sum; equal batches give equal bits. */
__global__ void metrics(k_metrics a)
{
    static_assert(METRIC_LOSS == 0 && METRIC_TOP1 == 1 && METRIC_TOP5 == 2 && METRIC_COUNT == 3, "layout of metrics");
    const int which = threadIdx.x % PART;
    double sum = 0;
    for (int n = threadIdx.x / PART; n < a.n; n += BLOCK / PART)
        sum += a.samples[(size_t)n * PART + which];
    for (int k = 0; k < PART; k++) {
        const double all = block_sum(which == k ? sum : 0);
        if (threadIdx.x == 0)
            a.metrics[k] = (float)(all + (a.accumulate ? a.metrics[k] : 0));
    }
}

void launch_KERNEL_METRICS(const k_metrics *a, cudaStream_t s)
{
    LAUNCH((metrics), 1, BLOCK, s, *a);
}

/* --- over parts of the logits */

__global__ void labels(k_labels a)
{
    const int n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= a.n)
        return;
    a.out[n * LABEL_N + LABEL_CLASS] = (float)a.labels[n]; /* exact: classes are fewer than 2^24 */
    a.out[n * LABEL_N + LABEL_WEIGHT] = a.labels[n] >= 0 ? 1 : 0;
}

void launch_KERNEL_LABELS(const k_labels *a, cudaStream_t s)
{
    LAUNCH((labels), (a->n + BLOCK - 1) / BLOCK, BLOCK, s, *a);
}

__global__ void xent_top(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + (size_t)n * a.k, *label = a.in + (size_t)n * LABEL_N;
    float *top = static_cast<float *>(a.out) + (size_t)n * TOP_N;
    float most = -INFINITY;
    for (int k = threadIdx.x; k < a.k; k += BLOCK)
        most = fmaxf(most, z[k]);
    most = block_max(most);
    if (threadIdx.x != 0)
        return;
    const int at = (int)label[LABEL_CLASS] - a.first;
    top[TOP_MAX] = most;
    top[TOP_TARGET] = at >= 0 && at < a.k ? z[at] : -INFINITY;
    top[TOP_CLASS] = label[LABEL_CLASS];
    top[TOP_WEIGHT] = label[LABEL_WEIGHT];
}

void launch_KERNEL_XENT_TOP(const k_xent_part *a, cudaStream_t s)
{
    LAUNCH((xent_top), a->n, BLOCK, s, *a);
}

__global__ void xent_sums(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + (size_t)n * a.k, *top = a.in + (size_t)n * TOP_N;
    const float most = top[TOP_MAX], target = top[TOP_TARGET];
    const int label = (int)top[TOP_CLASS];
    double sum = 0, all = 0;
    float above = 0;
    for (int k = threadIdx.x; k < a.k && top[TOP_WEIGHT] != 0; k += BLOCK) {
        const float x = z[k];
        sum += exp((double)x - most);
        all += x;
        above += beats(x, a.first + k, target, label) ? 1 : 0;
    }
    sum = block_sum(sum);
    all = block_sum(all);
    above = block_sum(above);
    if (threadIdx.x != 0)
        return;
    float *out = static_cast<float *>(a.out) + (size_t)n * SUMS_N;
    out[SUMS_EXP] = (float)sum;
    out[SUMS_LOGITS] = (float)all;
    out[SUMS_BETTER] = above;
}

void launch_KERNEL_XENT_SUMS(const k_xent_part *a, cudaStream_t s)
{
    LAUNCH((xent_sums), a->n, BLOCK, s, *a);
}

__global__ void xent_parts(k_xent_part a)
{
    const int n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= a.n)
        return;
    const float *sums = a.in + (size_t)n * SUMS_N, *top = a.tops + (size_t)n * TOP_N;
    float *lse = static_cast<float *>(a.out) + (size_t)n * LSE_N;
    const bool counts = top[TOP_WEIGHT] != 0;
    const double target = top[TOP_TARGET], log_sum = counts ? top[TOP_MAX] + log((double)sums[SUMS_EXP]) : 0;
    lse[LSE_LSE] = (float)log_sum;
    lse[LSE_CLASS] = top[TOP_CLASS];
    lse[LSE_WEIGHT] = top[TOP_WEIGHT];
    if (n < a.mine || n >= a.mine + a.batch)
        return; /* others count theirs */
    float *part = a.samples + (size_t)(n - a.mine) * PART;
    const bool number = counts && target == target;
    const double mean = (double)sums[SUMS_LOGITS] / a.classes;
    part[0] = counts ? (float)(log_sum - (1 - a.smoothing) * target - a.smoothing * mean) : 0;
    part[1] = number && sums[SUMS_BETTER] < 1 ? 1 : 0;
    part[2] = number && sums[SUMS_BETTER] < 5 ? 1 : 0;
    part[3] = counts ? 1 : 0;
}

void launch_KERNEL_XENT_PARTS(const k_xent_part *a, cudaStream_t s)
{
    LAUNCH((xent_parts), (a->n + BLOCK - 1) / BLOCK, BLOCK, s, *a);
}

template <typename G> __global__ void xent_parts_bwd(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + (size_t)n * a.k, *lse = a.in + (size_t)n * LSE_N;
    G *d = static_cast<G *>(a.out) + (size_t)n * a.k;
    const bool counts = lse[LSE_WEIGHT] != 0;
    const int label = (int)lse[LSE_CLASS] - a.first;
    const float scale = a.scale ? *a.scale : 1;
    for (int k = threadIdx.x; k < a.k; k += BLOCK)
        from_float(d[k], counts ? slope<double>(z[k], k, label, lse[LSE_LSE], a.smoothing, a.classes, scale) : 0);
}

void launch_KERNEL_XENT_PARTS_BWD(const k_xent_part *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->grad_type, { LAUNCH((xent_parts_bwd<T>), a->n, BLOCK, s, *a); });
}

/* --- channels of a group's rows */

/* What a thread moves is one element: these tensors are rows of features, far smaller than what is computed of them. */
template <typename F, typename T> __global__ void columns(k_columns a, bool pad)
{
    const F *in = static_cast<const F *>(a.in);
    T *out = static_cast<T *>(a.out);
    const size_t width = pad ? a.whole : a.part;
    for (size_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        for (size_t k = threadIdx.x; k < width; k += BLOCK) {
            const bool there = !pad || (k >= a.first && k - a.first < a.part);
            const size_t from = pad ? r * a.part + k - a.first : r * a.whole + a.first + k;
            from_float(out[r * width + k], there ? to_float(in[from]) : 0);
        }
}

static void launch_columns(const k_columns *a, bool pad, cudaStream_t s)
{
    const unsigned blocks = (unsigned)(a->rows < 65535 ? a->rows : 65535);
    DISPATCH_TYPE(a->from, {
        using F = T;
        DISPATCH_TYPE(a->to, { LAUNCH((columns<F, T>), blocks, BLOCK, s, *a, pad); });
    });
}

void launch_KERNEL_SLICE(const k_columns *a, cudaStream_t s)
{
    launch_columns(a, false, s);
}

void launch_KERNEL_PAD(const k_columns *a, cudaStream_t s)
{
    launch_columns(a, true, s);
}
