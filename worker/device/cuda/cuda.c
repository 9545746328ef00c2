/* The cuda device's table of operations: what the engine calls, passed on to plans and streams. */
#include "worker/device/cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/tell/watch.h"

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

struct watched cuda_watched(const struct cuda *c)
{
    return (struct watched){.gpu = c->gpu, .compute = c->compute, .copy = c->copy};
}

static int cuda_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    struct cuda *c = self(d);
    struct cuda_block *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, -ENOMEM, "no memory for a record of device memory");
    b->bytes = bytes ? bytes : 1;
    int rc = cuda_take(c, b->bytes, &b->at, e);
    if (rc < 0) {
        free(b);
        return rc;
    }
    b->next = c->blocks;
    c->blocks = b;
    *ret = b->at;
    return 0;
}

static void cuda_release(struct device *d, void *p)
{
    struct cuda *c = self(d);
    for (struct cuda_block **at = &c->blocks; *at && p; at = &(*at)->next) {
        struct cuda_block *b = *at;
        if (b->at != p)
            continue;
        *at = b->next;
        cuda_give(c, b->at, b->bytes);
        free(b);
        return;
    }
}

static void cuda_close(struct device *d)
{
    struct cuda *c = self(d);
    struct gpu *g = c->gpu;
    watch_close(c->watch);
    cuda_async_close(c);
    cuda_update_close(c);
    cuda_give(c, c->bad, 2 * KERNEL_BAD_BLOCKS * sizeof *c->bad);
    cuda_give(c, c->partial, KERNEL_NORM_PARTIAL * sizeof *c->partial);
    while (c->blocks)
        cuda_release(d, c->blocks->at);
    g->ops->event_close(g, c->moment);
    g->ops->stream_close(g, c->copy);
    g->ops->stream_close(g, c->compute);
    cudnn_close(c->dnn);
    g->ops->close(g);
    free(c);
}

static void log_details(struct gpu *g)
{
    char text[2048], *rest = text;
    if (log_level() < LOG_INFO)
        return;
    g->ops->details(g, text, sizeof text);
    for (char *line; (line = strsep(&rest, "\n"));)
        if (*line)
            log_info("cuda", "%s", line);
}

static int open_parts(struct cuda *c, struct err *e)
{
    struct gpu *g = c->gpu;
    void *partial;
    TRY(g->ops->info(g, &c->info, e));
    log_details(g);
    TRY(g->ops->stream_open(g, false, &c->compute, e)); /* collectives go before what computes: others wait for them */
    TRY(g->ops->stream_open(g, false, &c->copy, e));
    TRY(g->ops->event_open(g, false, &c->moment, e));
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

void cuda_options_from(const struct device_options *o, struct cuda_options *ret, struct cudnn_options *ret_dnn)
{
    *ret = (struct cuda_options){.graphs = !o->gpu.eager,
                                 .tune = o->gpu.tune && !o->gpu.deterministic, /* times are noise */
                                 .tune_seconds = o->gpu.tune_seconds,
                                 .stopping = o->gpu.stopping,
                                 .check = o->gpu.check,
                                 .tf32 = o->gpu.tf32,
                                 .fused_patterns = o->gpu.fused,
                                 .fast_attention = o->gpu.fast_attention && !o->gpu.deterministic,
                                 .workspace_limit = o->gpu.workspace_limit};
    *ret_dnn = (struct cudnn_options){.index = o->index,
                                      .workspace_limit = o->gpu.workspace_limit,
                                      .cache_dir = o->gpu.cache_dir,
                                      .deterministic = o->gpu.deterministic};
}

static int cuda_open(struct device **ret, const struct device_options *o, struct err *e)
{
    struct cuda_options options;
    struct cudnn_options d;
    struct gpu *g;
    struct cudnn *dnn;
    cuda_options_from(o, &options, &d);
    TRY(gpu_open(&g, o->index, e));
    int rc = cudnn_open(&dnn, &d, e);
    if (rc < 0) {
        g->ops->close(g);
        return rc;
    }
    return cuda_open_on(ret, g, dnn, &options, e);
}

static int cuda_upload(struct device *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    TRY(c->gpu->ops->copy_in(c->gpu, c->compute, dst, src, bytes, e));
    return c->gpu->ops->stream_sync(c->gpu, c->compute, e);
}

static int cuda_download(struct device *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    watch_wait(c->watch, "a copy to the host");
    int rc = c->gpu->ops->copy_out(c->gpu, c->compute, dst, src, bytes, e);
    if (rc == 0)
        rc = c->gpu->ops->stream_sync(c->gpu, c->compute, e);
    watch_done(c->watch);
    return rc;
}

static int cuda_sync(struct device *d, struct err *e)
{
    struct cuda *c = self(d);
    watch_wait(c->watch, "all that was enqueued");
    int rc = c->gpu->ops->stream_sync(c->gpu, c->copy, e);
    if (rc == 0)
        rc = c->gpu->ops->stream_sync(c->gpu, c->compute, e);
    watch_done(c->watch);
    return rc;
}

static void cuda_memory(struct device *d, size_t *ret_now, size_t *ret_peak)
{
    *ret_now = self(d)->bytes;
    *ret_peak = self(d)->peak;
}

static int cuda_describe(struct device *d, char *out, size_t cap)
{
    const struct gpu_info *i = &self(d)->info;
    snprintf(out, cap, "%s, %zu GiB, CUDA %d.%d, cuDNN %d.%d.%d", i->name, i->memory >> 30, i->runtime / 1000,
             i->runtime % 1000 / 10, i->dnn / 10000, i->dnn % 10000 / 100, i->dnn % 100);
    return 0;
}

static const char *cuda_uuid(const struct device *d)
{
    return ((const struct cuda *)d)->info.uuid;
}

static bool cuda_native(struct device *d, enum dtype compute, enum half_rule half)
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
                                           .memory = cuda_memory,
                                           .plan = cuda_plan_create,
                                           .plan_close = cuda_plan_close,
                                           .plan_memory = cuda_plan_memory,
                                           .run = cuda_plan_run,
                                           .get = cuda_plan_get,
                                           .put = cuda_plan_put,
                                           .update = cuda_update,
                                           .update_all = cuda_update_all,
                                           .grad_norm = cuda_grad_norm,
                                           .blend = cuda_blend,
                                           .round = cuda_round,
                                           .update_stats = cuda_update_stats,
                                           .describe = cuda_describe,
                                           .uuid = cuda_uuid,
                                           .native = cuda_native,
                                           .choices = cuda_choices,
                                           .choose = cuda_choose,
                                           .async = &cuda_async};
