/* Softmax cross-entropy: a block a sample, so that two million classes are no different from ten. */
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
