#include "worker/device/cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "worker/device/cuda/dnn.h"
#include "worker/device/cuda/plan.h"

static struct cuda *self(struct device *d)
{
    return (struct cuda *)d;
}

int cuda_take(struct cuda *c, size_t bytes, void **ret, struct err *e)
{
    *ret = NULL;
    if (bytes == 0)
        return 0;
    TRY(c->gpu->ops->alloc(c->gpu, bytes, ret, e));
    c->bytes += bytes;
    c->peak = c->bytes > c->peak ? c->bytes : c->peak;
    int rc = c->gpu->ops->fill(c->gpu, c->compute, *ret, 0, bytes, e);
    if (rc < 0) {
        cuda_give(c, *ret, bytes);
        *ret = NULL;
    }
    return rc;
}

void cuda_give(struct cuda *c, void *p, size_t bytes)
{
    if (!p)
        return;
    c->gpu->ops->release(c->gpu, p);
    c->bytes -= bytes;
}

static void cuda_close(struct device *d)
{
    struct cuda *c = self(d);
    struct gpu *g = c->gpu;
    cuda_async_close(c);
    cuda_give(c, c->norms, 2 * sizeof *c->norms);
    cuda_give(c, c->partial, KERNEL_NORM_PARTIAL * sizeof *c->partial);
    g->ops->host_release(g, c->host);
    g->ops->event_close(g, c->moment);
    g->ops->stream_close(g, c->copy);
    g->ops->stream_close(g, c->compute);
    cudnn_close(c->dnn);
    g->ops->close(g);
    free(c);
}

static int open_parts(struct cuda *c, struct err *e)
{
    struct gpu *g = c->gpu;
    void *norms, *partial, *host;
    TRY(g->ops->info(g, &c->info, e));
    TRY(g->ops->stream_open(g, true, &c->compute, e));
    TRY(g->ops->stream_open(g, false, &c->copy, e));
    TRY(g->ops->event_open(g, false, &c->moment, e));
    TRY(g->ops->host_alloc(g, CUDA_HOST_BYTES, &host, e));
    c->host = host;
    TRY(cuda_take(c, 2 * sizeof *c->norms, &norms, e));
    c->norms = norms;
    TRY(cuda_take(c, KERNEL_NORM_PARTIAL * sizeof *c->partial, &partial, e));
    c->partial = partial;
    return cuda_async_open(c, e);
}

int cuda_open_on(struct device **ret, struct gpu *g, struct cudnn *dnn, const struct cuda_options *o, struct err *e)
{
    struct cuda *c = calloc(1, sizeof *c);
    if (!c) {
        cudnn_close(dnn);
        g->ops->close(g);
        return err_set(e, -ENOMEM, "no memory for a device");
    }
    c->base.ops = &device_cuda_ops;
    c->gpu = g;
    c->dnn = dnn;
    c->options = *o;
    int rc = open_parts(c, e);
    if (rc < 0)
        cuda_close(&c->base);
    else
        *ret = &c->base;
    return rc;
}

static int cuda_open(struct device **ret, const struct device_options *o, struct err *e)
{
    const struct cuda_options options = {.graphs = !o->gpu.eager,
                                         .tune = o->gpu.tune,
                                         .tf32 = o->gpu.tf32,
                                         .fused_patterns = o->gpu.fused,
                                         .workspace_limit = o->gpu.workspace_limit,
                                         .cache_dir = o->gpu.cache_dir};
    const struct cudnn_options d = {.index = o->index,
                                    .workspace_limit = options.workspace_limit,
                                    .cache_dir = options.cache_dir,
                                    .deterministic = o->gpu.deterministic};
    struct gpu *g;
    struct cudnn *dnn;
    TRY(gpu_open(&g, o->index, e));
    int rc = cudnn_open(&dnn, &d, e);
    if (rc < 0) {
        g->ops->close(g);
        return rc;
    }
    return cuda_open_on(ret, g, dnn, &options, e);
}

static int cuda_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    return cuda_take(self(d), bytes ? bytes : 1, ret, e);
}

static void cuda_release(struct device *d, void *p)
{
    struct cuda *c = self(d);
    c->gpu->ops->release(c->gpu, p);
}

/* Through page-locked memory piece by piece where it is small; a large pageable copy blocks by itself. */
static int cuda_upload(struct device *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    TRY(c->gpu->ops->copy_in(c->gpu, c->compute, dst, src, bytes, e));
    return c->gpu->ops->stream_sync(c->gpu, c->compute, e);
}

static int cuda_download(struct device *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    TRY(c->gpu->ops->copy_out(c->gpu, c->compute, dst, src, bytes, e));
    return c->gpu->ops->stream_sync(c->gpu, c->compute, e);
}

static int cuda_sync(struct device *d, struct err *e)
{
    struct cuda *c = self(d);
    TRY(c->gpu->ops->stream_sync(c->gpu, c->copy, e));
    return c->gpu->ops->stream_sync(c->gpu, c->compute, e);
}

static int norm_of(struct cuda *c, const float *x, size_t n, float mul, const float *count,
                   const struct k_scaler_state *scaler, float *out, struct err *e)
{
    const struct k_norm k = {
        .n = n, .x = x, .count = count, .scaler = scaler, .mul = mul, .out = out, .partial = c->partial};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_NORM, &k, e);
}

static int cuda_update(struct device *d, const struct update *u, void *params, const void *grads, void *momentum,
                       const void *count, struct err *e)
{
    struct cuda *c = self(d);
    struct k_update k = {.u = *u,
                         .lr = (float)u->lr,
                         .step = (int32_t)u->step,
                         .params = params,
                         .momentum = momentum,
                         .second = u->second,
                         .grads = grads,
                         .count = count,
                         .scaler = cuda_guard(c),
                         .norms = c->norms};
    if (u->rule == UPDATE_LARS && u->trust > 0) {
        TRY(norm_of(c, k.params + u->first, u->n, 1, NULL, NULL, c->norms, e));
        TRY(norm_of(c, k.grads + u->first, u->n, 1, NULL, NULL, c->norms + 1, e));
    }
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_UPDATE, &k, e);
}

static int cuda_grad_norm(struct device *d, const void *grads, size_t n, double grad_mul, const void *count, void *norm,
                          struct err *e)
{
    return norm_of(self(d), grads, n, (float)grad_mul, count, cuda_guard(self(d)), norm, e);
}

static int cuda_blend(struct device *d, void *to, const void *from, size_t n, double weight, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_blend k = {.n = n, .to = to, .from = from, .scaler = cuda_guard(c), .weight = (float)weight};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_BLEND, &k, e);
}

static int cuda_round(struct device *d, void *x, size_t n, enum dtype t, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_round k = {.n = n, .x = x, .to = t};
    if (t != DT_F16 && t != DT_BF16)
        return 0;
    return n ? c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_ROUND, &k, e) : 0;
}

static int cuda_update_stats(struct device *d, void *stats, const void *sums, size_t n, double momentum,
                             const void *count, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_blend k = {
        .n = n, .to = stats, .from = sums, .count = count, .scaler = cuda_guard(c), .weight = (float)momentum};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_BLEND, &k, e);
}

static int cuda_describe(struct device *d, char *out, size_t cap)
{
    const struct gpu_info *i = &self(d)->info;
    snprintf(out, cap, "%s, %zu GiB, CUDA %d.%d, cuDNN %d.%d.%d", i->name, i->memory >> 30, i->runtime / 1000,
             i->runtime % 1000 / 10, i->dnn / 10000, i->dnn % 10000 / 100, i->dnn % 100);
    return 0;
}

static bool cuda_native(struct device *d, enum dtype compute)
{
    return compute == DT_F32 || compute == DT_F16 || (compute == DT_BF16 && self(d)->info.capability >= 80);
}

static int cuda_choices(struct device *d, char **ret, struct err *e)
{
    if (self(d)->dnn)
        return cudnn_export(self(d)->dnn, ret, e);
    *ret = strdup("[]");
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for the list of plans");
}

static int cuda_choose(struct device *d, const char *json, struct err *e)
{
    return self(d)->dnn ? cudnn_import(self(d)->dnn, json, e) : 0;
}

const struct device_ops device_cuda_ops = {.name = "cuda",
                                           .real = DT_F32,
                                           .open = cuda_open,
                                           .close = cuda_close,
                                           .alloc = cuda_alloc,
                                           .release = cuda_release,
                                           .upload = cuda_upload,
                                           .download = cuda_download,
                                           .sync = cuda_sync,
                                           .plan = cuda_plan_create,
                                           .plan_close = cuda_plan_close,
                                           .plan_memory = cuda_plan_memory,
                                           .run = cuda_plan_run,
                                           .get = cuda_plan_get,
                                           .put = cuda_plan_put,
                                           .update = cuda_update,
                                           .grad_norm = cuda_grad_norm,
                                           .blend = cuda_blend,
                                           .round = cuda_round,
                                           .update_stats = cuda_update_stats,
                                           .describe = cuda_describe,
                                           .native = cuda_native,
                                           .choices = cuda_choices,
                                           .choose = cuda_choose,
                                           .async = &cuda_async};
