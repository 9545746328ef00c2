/* Softmax cross-entropy: a block a row, so that two million classes are no different from ten. Of whole rows in one
 * kernel; over the parts of them that the ranks of a group have in kernels between which the group is called. Both go
 * through a row by each_vector(), see() and write_slopes(): gradients may take the place of the logits, and threads of
 * a block read neighbouring ones.
 *
 *   xent             reads n rows of B bytes, and once more for the gradients, which it writes. Of a vocabulary a row
 *                    has a multiprocessor to itself: what all of them hold (132 x 201 KB of 50,257 logits) is still in
 *                    the cache of 50 MB when it is read again
 *   xent_top, xent_sums, xent_parts_bwd   read them once each; the last one writes them
 *
 * A loss that is not plain has kernels of its own, which are of no speed: loss, loss_sums, loss_parts_bwd. */
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

/* A row's labels: `share` of the target is the second's; 0: there is none. */
struct wanted {
    int label, second;
    float share;
};
__device__ __forceinline__ wanted wanted_of(const batch_mix *mix, int n, int label)
{
    const bool mixed = mix && mix[n].share > 0;
    return {label, mixed ? mix[n].second : -1, mixed ? mix[n].share : 0};
}

/* The gradient of logit z of class k, of a row that counts. */
template <typename E>
__device__ __forceinline__ float slope(float z, int k, const wanted &w, E lse, float smoothing, int classes,
                                       float scale)
{
    const float part = (k == w.label ? 1 - w.share : 0) + (k == w.second ? w.share : 0);
    const E want = smoothing / classes + (1 - (E)smoothing) * part;
    return (float)((power((E)z - lse) - want) * scale);
}

/* What `take` makes of a row's logits [0, classes): whole vectors, behind the classes there is room in a row. */
template <int V, typename F> __device__ __forceinline__ void each_vector(const float *z, int classes, F take)
{
    enum { U = ON_THEIR_WAY };
    const int turn = (int)blockDim.x * V * U, first = (int)threadIdx.x * V;
    for (int k0 = 0; k0 < classes; k0 += turn) {
        pack<float, V> in[U] = {};
        UNROLL
        for (int u = 0; u < U; u++)
            if (k0 + u * (turn / U) + first < classes)
                in[u] = fetch<float, V>(z + k0 + u * (turn / U) + first);
        UNROLL
        for (int u = 0; u < U; u++)
            if (k0 + u * (turn / U) + first < classes)
                take(in[u].at, k0 + u * (turn / U) + first);
    }
}

/* A row's gradients of logits z[0, n), of `classes` in all; those of one that does not count are zeros. Gradients that
 * lie where wider logits are follow the reads, since those of a turn lie in what this turn, or one before it, has
 * read. */
template <typename G, int V, typename E>
__device__ __forceinline__ void write_slopes(G *d, const float *z, int n, int classes, bool counts, const wanted &w,
                                             E lse, float smoothing, const float *loss_scale)
{
    enum { U = ON_THEIR_WAY };
    const int turn = (int)blockDim.x * V * U, first = (int)threadIdx.x * V;
    const float scale = loss_scale ? *loss_scale : 1;
    for (int k0 = 0; k0 < n; k0 += turn) {
        pack<float, V> in[U] = {};
        UNROLL
        for (int u = 0; u < U; u++)
            if (counts && k0 + u * (turn / U) + first < n)
                in[u] = fetch<float, V>(z + k0 + u * (turn / U) + first);
        __syncthreads();
        UNROLL
        for (int u = 0; u < U; u++) {
            const int k = k0 + u * (turn / U) + first;
            float out[V];
            if (k >= n)
                break;
            UNROLL
            for (int i = 0; i < V; i++)
                out[i] = counts ? slope<E>(in[u].at[i], k + i, w, lse, smoothing, classes, scale) : 0;
            store<G, V>(d + k, out);
        }
    }
}

/* The second bound, of double alone, lets the compiler have registers for all: without it eight bytes lie in memory. */
template <typename G, int V, typename E>
__global__ void __launch_bounds__(sizeof(E) == sizeof(float) ? LONG_BLOCK : BLOCK, sizeof(E) == sizeof(float) ? 0 : 2)
    xent(k_xent a)
{
    const int n = blockIdx.x, label = a.labels[n];
    const bool counts = label >= 0;
    const float *z = a.logits + n * a.stride;
    const float target = counts ? z[label] : 0;
    seen<E> s = {-FLT_MAX, 0, 0, 0}; /* so that a logit may be -infinity */
    each_vector<V>(z, counts ? a.classes : 0,
                   [&](const float(&in)[V], int k) { see<E, V>(s, in, k, a.classes, target, label, a.smoothing > 0); });
    const float most = block_max(s.most);
    const double sum = block_sum(s.exps * (double)power((E)s.most - (E)most)), all = block_sum(s.all);
    const float better = block_sum((float)s.better);
    const double lse = (double)most + log(sum);
    const wanted w = wanted_of(a.mix, n, label);
    if (threadIdx.x == 0) {
        const bool number = counts && target == target;
        const double mixed = counts && w.share > 0 ? target + (double)w.share * (z[w.second] - (double)target) : target;
        const double loss = (1 - a.smoothing) * (lse - mixed) + a.smoothing * (lse - all / a.classes);
        const float part[PART] = {counts ? (float)loss : 0, number && better < 1 ? 1.0f : 0.0f,
                                  number && better < 5 ? 1.0f : 0.0f, counts ? 1.0f : 0.0f};
        store<float, PART>(a.samples + (size_t)n * PART, part);
    }
    if (a.dlogits)
        write_slopes<G, V, E>(static_cast<G *>(a.dlogits) + n * a.grad_stride, z, a.classes, a.classes, counts, w,
                              (E)lse, a.smoothing, a.scale);
}

static unsigned block_of(int classes)
{
    return classes > LONG_ROW ? (unsigned)LONG_BLOCK : (unsigned)BLOCK; /* in floats */
}

/* --- losses that are not plain (loss_rule.h), as device/loss_parts.h has them. Gradients lie elsewhere than logits */

__device__ __forceinline__ double softplus(double z)
{
    return (z > 0 ? z : 0) + log1p(exp(-fabs(z)));
}

/* A weighted row's sum of w t. */
template <typename A> __device__ __forceinline__ double weight_of(const A &a, int label)
{
    return (1 - (double)a.smoothing) * a.weights[label] + (double)a.smoothing * a.total / a.classes;
}

/* target: the sum of its labels' logits; soft: sum of log(1 + exp(z)); all: of z, or of w z */
template <typename A>
__device__ __forceinline__ double loss_of(const A &a, int label, double target, double lse, double soft, double all)
{
    const double hit = 1 - (double)a.smoothing, rest = (double)a.smoothing / a.classes * all;
    if (a.binary)
        return (soft - hit * target - rest) / a.classes;
    return weight_of(a, label) * lse - hit * a.weights[label] * target - rest;
}

/* k and w: of all classes. */
template <typename A>
__device__ __forceinline__ float slope_of(const A &a, float z, int k, const wanted &w, double lse, float scale)
{
    const bool hit = k == w.label || (w.share > 0 && k == w.second);
    const double want = (double)a.smoothing / a.classes + (hit ? 1 - (double)a.smoothing : 0);
    if (a.binary)
        return (float)((1 / (1 + exp(-(double)z)) - want) / a.classes * scale);
    return (float)((exp((double)z - lse) * weight_of(a, w.label) - want * a.weights[k]) * scale);
}

/* As xent. */
template <typename G> __global__ void loss(k_xent a)
{
    const int n = blockIdx.x, label = a.labels[n];
    const bool counts = label >= 0;
    const float *z = a.logits + n * a.stride;
    const float target = counts ? z[label] : 0;
    float most = -FLT_MAX, better = 0;
    double exps = 0, soft = 0, all = 0;
    for (int k = threadIdx.x; k < a.classes && counts; k += BLOCK)
        most = fmaxf(most, z[k]);
    most = block_max(most);
    for (int k = threadIdx.x; k < a.classes && counts; k += BLOCK) {
        exps += exp((double)z[k] - most);
        soft += a.binary ? softplus(z[k]) : 0;
        all += a.weights ? (double)a.weights[k] * z[k] : z[k];
        better += beats(z[k], k, target, label) ? 1 : 0;
    }
    const double lse = (double)most + log(block_sum(exps));
    soft = block_sum(soft);
    all = block_sum(all);
    better = block_sum(better);
    const wanted w = wanted_of(a.mix, n, label);
    if (threadIdx.x == 0) {
        const bool number = counts && target == target;
        const double both = counts && w.share > 0 && w.second != label ? (double)target + z[w.second] : target;
        const float part[PART] = {counts ? (float)loss_of(a, label, both, lse, soft, all) : 0,
                                  number && better < 1 ? 1.0f : 0.0f, number && better < 5 ? 1.0f : 0.0f,
                                  counts ? 1.0f : 0.0f};
        store<float, PART>(a.samples + (size_t)n * PART, part);
    }
    if (!a.dlogits)
        return;
    G *d = static_cast<G *>(a.dlogits) + n * a.grad_stride;
    const float scale = a.scale ? *a.scale : 1;
    for (int k = threadIdx.x; k < a.classes; k += BLOCK)
        from_float(d[k], counts ? slope_of(a, z[k], k, w, lse, scale) : 0);
}

/* As xent_sums. */
__global__ void loss_sums(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + n * a.stride, *top = a.in + (size_t)n * TOP_N;
    const float most = top[TOP_MAX], target = top[TOP_TARGET];
    const int label = (int)top[TOP_CLASS];
    double sum = 0, all = 0;
    float better = 0;
    for (int k = threadIdx.x; k < a.k && top[TOP_WEIGHT] != 0; k += BLOCK) {
        sum += a.binary ? softplus(z[k]) : exp((double)z[k] - most);
        all += a.weights ? (double)a.weights[a.first + k] * z[k] : z[k];
        better += beats(z[k], a.first + k, target, label) ? 1 : 0;
    }
    sum = block_sum(sum);
    all = block_sum(all);
    better = block_sum(better);
    if (threadIdx.x != 0)
        return;
    float *out = static_cast<float *>(a.out) + (size_t)n * SUMS_N;
    out[SUMS_EXP] = (float)sum;
    out[SUMS_LOGITS] = (float)all;
    out[SUMS_BETTER] = better;
}

/* As xent_parts_bwd. */
template <typename G> __global__ void loss_parts_bwd(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + n * a.stride, *lse = a.in + (size_t)n * LSE_N;
    G *d = static_cast<G *>(a.out) + n * a.grad_stride;
    const bool counts = lse[LSE_WEIGHT] != 0;
    const wanted w = {(int)lse[LSE_CLASS], (int)lse[LSE_SECOND], lse[LSE_SHARE]};
    const float scale = a.scale ? *a.scale : 1;
    for (int k = threadIdx.x; k < a.k; k += BLOCK)
        from_float(d[k], counts ? slope_of(a, z[k], a.first + k, w, lse[LSE_LSE], scale) : 0);
}

/* A block a row of `classes` logits: `other` for binary and weighted losses, else `plain`, in vectors where rows are
 * aligned, and in fp32 where that will do. */
#define LAUNCH_ROWS(plain, other, classes, a, s)                                                                       \
    do {                                                                                                               \
        const bool others = (a)->binary || (a)->weights, vectors = (a)->stride % 4 == 0 && (a)->grad_stride % 4 == 0;  \
        DISPATCH_TYPE((a)->grad_type, {                                                                                \
            if (others)                                                                                                \
                LAUNCH((other<T>), (a)->n, BLOCK, s, *(a));                                                            \
            else if (vectors && (a)->in_floats)                                                                        \
                LAUNCH((plain<T, 4, float>), (a)->n, block_of(classes), s, *(a));                                      \
            else if (vectors)                                                                                          \
                LAUNCH((plain<T, 4, double>), (a)->n, BLOCK, s, *(a));                                                 \
            else                                                                                                       \
                LAUNCH((plain<T, 1, double>), (a)->n, BLOCK, s, *(a));                                                 \
        });                                                                                                            \
    } while (0)

void launch_KERNEL_XENT(const k_xent *a, cudaStream_t s)
{
    LAUNCH_ROWS(xent, loss, a->classes, a, s);
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
    const wanted w = wanted_of(a.mix, n, a.labels[n]);
    a.out[n * LABEL_N + LABEL_SECOND] = (float)w.second;
    a.out[n * LABEL_N + LABEL_SHARE] = w.share;
}

void launch_KERNEL_LABELS(const k_labels *a, cudaStream_t s)
{
    LAUNCH((labels), (a->n + BLOCK - 1) / BLOCK, BLOCK, s, *a);
}

__global__ void numbers(k_numbers a)
{
    const int n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= a.n)
        return;
    a.out[n * SAMPLE_N + SAMPLE_HIGH] = (float)(a.numbers[n] >> 16);
    a.out[n * SAMPLE_N + SAMPLE_LOW] = (float)(a.numbers[n] & 0xffff);
}

void launch_KERNEL_NUMBERS(const k_numbers *a, cudaStream_t s)
{
    LAUNCH((numbers), (a->n + BLOCK - 1) / BLOCK, BLOCK, s, *a);
}

template <typename E, int V>
__global__ void __launch_bounds__(sizeof(E) == sizeof(float) ? LONG_BLOCK : BLOCK) xent_top(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + n * a.stride, *label = a.in + (size_t)n * LABEL_N;
    float *top = static_cast<float *>(a.out) + (size_t)n * TOP_N;
    float most = -INFINITY;
    each_vector<V>(z, a.k, [&](const float(&in)[V], int k) {
        UNROLL
        for (int i = 0; i < V; i++)
            most = k + i < a.k ? fmaxf(most, in[i]) : most;
    });
    most = block_max(most);
    if (threadIdx.x != 0)
        return;
    const int at = (int)label[LABEL_CLASS] - a.first;
    top[TOP_MAX] = most;
    top[TOP_TARGET] = at >= 0 && at < a.k ? z[at] : -INFINITY;
    top[TOP_CLASS] = label[LABEL_CLASS];
    top[TOP_WEIGHT] = label[LABEL_WEIGHT];
    const int second = (int)label[LABEL_SECOND] - a.first;
    const bool mixed = label[LABEL_SHARE] > 0;
    top[TOP_OTHER] = mixed && second >= 0 && second < a.k ? z[second] : -INFINITY;
    top[TOP_SECOND] = label[LABEL_SECOND];
    top[TOP_SHARE] = label[LABEL_SHARE];
}

/* Their maximum over the group is known: exponentials are in units of its. */
template <typename E, int V>
__global__ void __launch_bounds__(sizeof(E) == sizeof(float) ? LONG_BLOCK : BLOCK) xent_sums(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + n * a.stride, *top = a.in + (size_t)n * TOP_N;
    const float target = top[TOP_TARGET];
    const int label = (int)top[TOP_CLASS] - a.first;
    seen<E> s = {top[TOP_MAX], 0, 0, 0};
    each_vector<V>(z, top[TOP_WEIGHT] != 0 ? a.k : 0,
                   [&](const float(&in)[V], int k) { see<E, V>(s, in, k, a.k, target, label, a.smoothing > 0); });
    const double sum = block_sum(s.exps), all = block_sum(s.all);
    const float better = block_sum((float)s.better);
    if (threadIdx.x != 0)
        return;
    float *out = static_cast<float *>(a.out) + (size_t)n * SUMS_N;
    out[SUMS_EXP] = (float)sum;
    out[SUMS_LOGITS] = (float)all;
    out[SUMS_BETTER] = better;
}

#define LAUNCH_PART(kernel, a, s)                                                                                      \
    do {                                                                                                               \
        if ((a)->stride % 4 != 0)                                                                                      \
            LAUNCH((kernel<double, 1>), (a)->n, BLOCK, s, *(a));                                                       \
        else if ((a)->in_floats)                                                                                       \
            LAUNCH((kernel<float, 4>), (a)->n, block_of((a)->k), s, *(a));                                             \
        else                                                                                                           \
            LAUNCH((kernel<double, 4>), (a)->n, BLOCK, s, *(a));                                                       \
    } while (0)

void launch_KERNEL_XENT_TOP(const k_xent_part *a, cudaStream_t s)
{
    LAUNCH_PART(xent_top, a, s);
}

void launch_KERNEL_XENT_SUMS(const k_xent_part *a, cudaStream_t s)
{
    if (a->binary || a->weights)
        LAUNCH((loss_sums), a->n, BLOCK, s, *a);
    else
        LAUNCH_PART(xent_sums, a, s);
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
    lse[LSE_SECOND] = top[TOP_SECOND];
    lse[LSE_SHARE] = top[TOP_SHARE];
    if (n < a.mine || n >= a.mine + a.batch)
        return; /* others count theirs */
    float *part = a.samples + (size_t)(n - a.mine) * PART;
    const bool number = counts && target == target;
    const double mean = (double)sums[SUMS_LOGITS] / a.classes, share = top[TOP_SHARE],
                 mixed = share > 0 ? (1 - share) * target + share * top[TOP_OTHER] : target;
    double own = log_sum - (1 - a.smoothing) * mixed - a.smoothing * mean;
    if (counts && (a.binary || a.weights)) {
        const bool two = share > 0 && top[TOP_SECOND] != top[TOP_CLASS];
        own = loss_of(a, (int)top[TOP_CLASS], target + (two ? (double)top[TOP_OTHER] : 0), log_sum, sums[SUMS_EXP],
                      sums[SUMS_LOGITS]);
    }
    part[0] = counts ? (float)own : 0;
    part[1] = number && sums[SUMS_BETTER] < 1 ? 1 : 0;
    part[2] = number && sums[SUMS_BETTER] < 5 ? 1 : 0;
    part[3] = counts ? 1 : 0;
}

void launch_KERNEL_XENT_PARTS(const k_xent_part *a, cudaStream_t s)
{
    LAUNCH((xent_parts), (a->n + BLOCK - 1) / BLOCK, BLOCK, s, *a);
}

template <typename G, int V, typename E>
__global__ void __launch_bounds__(sizeof(E) == sizeof(float) ? LONG_BLOCK : BLOCK) xent_parts_bwd(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *lse = a.in + (size_t)n * LSE_N;
    const wanted w = {(int)lse[LSE_CLASS] - a.first, (int)lse[LSE_SECOND] - a.first, lse[LSE_SHARE]};
    write_slopes<G, V, E>(static_cast<G *>(a.out) + n * a.grad_stride, a.logits + n * a.stride, a.k, a.classes,
                          lse[LSE_WEIGHT] != 0, w, (E)lse[LSE_LSE], a.smoothing, a.scale);
}

void launch_KERNEL_XENT_PARTS_BWD(const k_xent_part *a, cudaStream_t s)
{
    LAUNCH_ROWS(xent_parts_bwd, loss_parts_bwd, a->k, a, s);
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
