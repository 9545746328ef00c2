/* Softmax cross-entropy: a block a sample, so that two million classes are no different from ten. Whole, or over the
 * parts of the logits that the ranks of a group have. Threads of a block read neighbouring logits. */
#include "worker/device/cuda/kern/kern.cuh"
#include "worker/program/program.h"

enum { PART = 4 }; /* loss, top 1, top 5, count */

template <typename T, typename G> __global__ void xent(k_xent a)
{
    const int n = blockIdx.x, label = a.labels[n];
    const T *z = static_cast<const T *>(a.logits) + (size_t)n * a.stride;
    const bool counts = a.weights[n] > 0;
    const float target = counts ? to_float(z[label]) : 0;
    float most = -INFINITY;
    for (int k = threadIdx.x; k < a.classes; k += BLOCK)
        most = fmaxf(most, to_float(z[k]));
    most = block_max(most);
    double sum = 0, all = 0;
    float above = 0; /* classes that are as good, or better */
    for (int k = threadIdx.x; k < a.classes; k += BLOCK) {
        const float x = to_float(z[k]);
        sum += exp((double)x - most);
        all += x;
        above += x > target || (x == target && k < label) ? 1 : 0;
    }
    sum = block_sum(sum);
    all = block_sum(all);
    above = block_sum(above);
    const double lse = (double)most + log(sum);
    if (threadIdx.x == 0) {
        float *part = a.samples + (size_t)n * PART;
        const bool number = target == target;
        part[0] = counts ? (float)((1 - a.smoothing) * (lse - target) + a.smoothing * (lse - all / a.classes)) : 0;
        part[1] = counts && number && above < 1 ? 1 : 0;
        part[2] = counts && number && above < 5 ? 1 : 0;
        part[3] = counts ? 1 : 0;
    }
    if (!a.dlogits)
        return;
    G *d = static_cast<G *>(a.dlogits) + (size_t)n * a.stride;
    const float scale = counts ? (a.scale ? *a.scale : 1) : 0, even = a.smoothing / a.classes;
    for (int k = threadIdx.x; k < a.classes; k += BLOCK) {
        const double p = exp(to_float(z[k]) - lse), want = even + (k == label ? 1 - (double)a.smoothing : 0);
        from_float(d[k], counts ? (float)((p - want) * scale) : 0);
    }
}

/* In the order of the samples, so that equal batches give equal bits. */
__global__ void metrics(k_xent a)
{
    static_assert(METRIC_LOSS == 0 && METRIC_TOP1 == 1 && METRIC_TOP5 == 2 && METRIC_COUNT == 3, "layout of metrics");
    const int k = threadIdx.x;
    if (k >= PART)
        return;
    double sum = a.accumulate ? a.metrics[k] : 0;
    for (int n = 0; n < a.n; n++)
        sum += a.samples[(size_t)n * PART + k];
    a.metrics[k] = (float)sum;
}

void launch_KERNEL_XENT(const k_xent *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        using L = T;
        DISPATCH_TYPE(a->grad_type, { LAUNCH((xent<L, T>), a->n, BLOCK, s, *a); });
    });
    if (a->metrics)
        LAUNCH((metrics), 1, WARP, s, *a);
}

/* --- over parts of the logits */

__global__ void labels(k_labels a)
{
    const int n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= a.n)
        return;
    const bool counts = a.weights[n] > 0;
    a.out[n * LABEL_N + LABEL_CLASS] = counts ? (float)a.labels[n] : -1; /* exact: classes are fewer than 2^24 */
    a.out[n * LABEL_N + LABEL_WEIGHT] = counts ? 1 : 0;
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
        const int g = a.first + k;
        sum += exp((double)x - most);
        all += x;
        above += g != label && !(x < target || (x == target && g > label)) ? 1 : 0;
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
    k_xent counted{};
    counted.n = a->batch;
    counted.metrics = a->metrics;
    counted.samples = a->samples;
    counted.accumulate = a->accumulate;
    LAUNCH((xent_parts), (a->n + BLOCK - 1) / BLOCK, BLOCK, s, *a);
    LAUNCH((metrics), 1, WARP, s, counted);
}

template <typename G> __global__ void xent_parts_bwd(k_xent_part a)
{
    const int n = blockIdx.x;
    const float *z = a.logits + (size_t)n * a.k, *lse = a.in + (size_t)n * LSE_N;
    G *d = static_cast<G *>(a.out) + (size_t)n * a.k;
    const bool counts = lse[LSE_WEIGHT] != 0;
    const int label = (int)lse[LSE_CLASS] - a.first;
    const float scale = a.scale ? *a.scale : 1, even = a.smoothing / a.classes;
    for (int k = threadIdx.x; k < a.k; k += BLOCK) {
        const double p = exp((double)z[k] - lse[LSE_LSE]), want = even + (k == label ? 1 - (double)a.smoothing : 0);
        from_float(d[k], counts ? (float)((p - want) * scale) : 0);
    }
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
