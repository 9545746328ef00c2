/* What the cuda device offers beside its compute order: streams for collectives, and steps that the host hears of one
 * step later. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/tell/watch.h"
#include "worker/precision/loss_scale.h"

static struct cuda *self(struct device *d)
{
    return (struct cuda *)d;
}

static struct gpu_stream *stream_of(struct cuda *c, void *native)
{
    const struct gpu_ops *gpu = c->gpu->ops;
    for (int i = 0; i < CUDA_SIDE_STREAMS; i++)
        if (c->side[i] && gpu->stream_native(c->side[i]) == native)
            return c->side[i];
    return c->compute;
}

int cuda_async_open(struct cuda *c, struct err *e)
{
    const struct gpu_ops *gpu = c->gpu->ops;
    void *scaler, *posts, *torn;
    TRY(cuda_take(c, sizeof *c->scaler, &scaler, e));
    c->scaler = scaler;
    TRY(gpu->host_alloc(c->gpu, CUDA_POSTS * sizeof *c->posts, &posts, e));
    c->posts = posts;
    TRY(gpu->host_alloc(c->gpu, sizeof *c->torn, &torn, e));
    c->torn = torn;
    atomic_init(c->torn, 0);
    for (int i = 0; i < CUDA_POSTS; i++)
        TRY(gpu->event_open(c->gpu, false, &c->posted[i], e));
    return 0;
}

void cuda_async_close(struct cuda *c)
{
    const struct gpu_ops *gpu = c->gpu->ops;
    for (int i = 0; i < CUDA_POSTS; i++)
        gpu->event_close(c->gpu, c->posted[i]);
    for (int i = 0; i < CUDA_SIDE_STREAMS; i++)
        gpu->stream_close(c->gpu, c->side[i]);
    gpu->host_release(c->gpu, c->torn);
    gpu->host_release(c->gpu, c->posts);
    cuda_give(c, c->scaler, sizeof *c->scaler);
}

const struct k_scaler_state *cuda_guard(const struct cuda *c)
{
    return c->guarded ? c->scaler : NULL;
}

static int async_open(struct device *d, void **ret_stream, struct err *e)
{
    struct cuda *c = self(d);
    for (int i = 0; i < CUDA_SIDE_STREAMS; i++) {
        if (c->side[i])
            continue;
        TRY(c->gpu->ops->stream_open(c->gpu, true, &c->side[i], e));
        *ret_stream = c->gpu->ops->stream_native(c->side[i]);
        return 0;
    }
    return err_set(e, -E2BIG, "more than %d streams beside the computing one", CUDA_SIDE_STREAMS);
}

static void async_close(struct device *d, void *stream)
{
    struct cuda *c = self(d);
    struct gpu_stream *s = stream_of(c, stream);
    for (int i = 0; i < CUDA_SIDE_STREAMS && s != c->compute; i++)
        if (c->side[i] == s)
            c->side[i] = NULL;
    if (s != c->compute)
        c->gpu->ops->stream_close(c->gpu, s);
}

static void *async_compute(struct device *d)
{
    struct cuda *c = self(d);
    return c->gpu->ops->stream_native(c->compute);
}

static int async_order(struct device *d, void *before, void *after, struct err *e)
{
    struct cuda *c = self(d);
    TRY(c->gpu->ops->event_record(c->gpu, c->moment, stream_of(c, before), e));
    return c->gpu->ops->event_wait(c->gpu, c->moment, stream_of(c, after), e);
}

static int async_event_open(struct device *d, void **ret, struct err *e)
{
    struct cuda *c = self(d);
    struct gpu_event *v;
    TRY(c->gpu->ops->event_open(c->gpu, false, &v, e));
    *ret = v;
    return 0;
}

static void async_event_close(struct device *d, void *event)
{
    struct cuda *c = self(d);
    if (event)
        c->gpu->ops->event_close(c->gpu, event);
}

static int async_mark(struct device *d, void *event, void *stream, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->event_record(c->gpu, event, stream_of(c, stream), e);
}

static int async_follow(struct device *d, void *event, void *stream, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->event_wait(c->gpu, event, stream_of(c, stream), e);
}

static int async_convert(struct device *d, void *stream, void *out, enum dtype to, const void *in, enum dtype from,
                         size_t n, double mul, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_convert k = {.n = n, .from = from, .to = to, .in = in, .out = out, .mul = (float)mul};
    return n ? c->gpu->ops->kernel(c->gpu, stream_of(c, stream), KERNEL_CONVERT, &k, e) : 0;
}

static int async_attach(struct device *d, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->attach(c->gpu, e);
}

static int async_host_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->host_alloc(c->gpu, bytes, ret, e);
}

static void async_host_release(struct device *d, void *p)
{
    struct cuda *c = self(d);
    c->gpu->ops->host_release(c->gpu, p);
}

static int async_copy(struct device *d, void *stream, void *to, const void *from, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->copy(c->gpu, stream_of(c, stream), to, from, bytes, e);
}

static int async_copy_in(struct device *d, void *stream, void *to, const void *host, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->copy_in(c->gpu, stream_of(c, stream), to, host, bytes, e);
}

static int async_copy_out(struct device *d, void *stream, void *host, const void *from, size_t bytes, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->copy_out(c->gpu, stream_of(c, stream), host, from, bytes, e);
}

static int async_sync(struct device *d, void *stream, struct err *e)
{
    struct cuda *c = self(d);
    return c->gpu->ops->stream_sync(c->gpu, stream_of(c, stream), e);
}

static int async_guard(struct device *d, const struct loss_scale *s, struct err *e)
{
    struct cuda *c = self(d);
    c->guarded = s != NULL;
    if (!s)
        return 0;
    const struct k_scaler_state begin = {.scale = (float)s->scale,
                                         .inv_scale = (float)(1 / s->scale),
                                         .clean = (int32_t)s->clean,
                                         .skipped = (int32_t)s->skipped,
                                         .dynamic = s->dynamic};
    return d->ops->upload(d, c->scaler, &begin, sizeof begin, e);
}

static int async_judge(struct device *d, const void *loss, const void *norm, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_scaler k = {.state = c->scaler,
                               .loss = loss,
                               .norm = norm,
                               .torn = (const void *)c->torn,
                               .window = LOSS_SCALE_WINDOW,
                               .min = (float)LOSS_SCALE_MIN,
                               .max = (float)LOSS_SCALE_MAX};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_SCALER, &k, e);
}

static int async_store(struct device *d, void *to, double value, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_store k = {.to = to, .value = (float)value};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_STORE, &k, e);
}

static int async_post(struct device *d, int slot, const void *from, int n, struct err *e)
{
    struct cuda *c = self(d);
    const struct gpu_ops *gpu = c->gpu->ops;
    struct cuda_post *p = &c->posts[slot];
    TRY(gpu->copy_out(c->gpu, c->compute, p->values, from, (size_t)n * sizeof *p->values, e));
    TRY(gpu->copy_out(c->gpu, c->compute, &p->scaler, c->scaler, sizeof p->scaler, e));
    return gpu->event_record(c->gpu, c->posted[slot], c->compute, e);
}

static int async_take(struct device *d, int slot, double *ret, int n, struct device_verdict *v, struct err *e)
{
    struct cuda *c = self(d);
    const struct cuda_post *p = &c->posts[slot];
    watch_wait(c->watch, "the results of a step");
    const int rc = c->gpu->ops->event_sync(c->gpu, c->posted[slot], e);
    watch_done(c->watch);
    TRY(rc);
    for (int i = 0; i < n; i++)
        ret[i] = p->values[i];
    *v = (struct device_verdict){.scale_after = {.scale = p->scaler.scale,
                                                 .clean = p->scaler.clean,
                                                 .skipped = p->scaler.skipped,
                                                 .dynamic = p->scaler.dynamic},
                                 .skipped = p->scaler.skip,
                                 .hopeless = p->scaler.hopeless,
                                 .torn = p->scaler.torn};
    return 0;
}

static void async_tear(struct device *d, bool torn)
{
    atomic_store(self(d)->torn, torn);
}

const struct device_async cuda_async = {.open = async_open,
                                        .close = async_close,
                                        .compute = async_compute,
                                        .order = async_order,
                                        .event_open = async_event_open,
                                        .event_close = async_event_close,
                                        .mark = async_mark,
                                        .follow = async_follow,
                                        .convert = async_convert,
                                        .attach = async_attach,
                                        .host_alloc = async_host_alloc,
                                        .host_release = async_host_release,
                                        .copy = async_copy,
                                        .copy_in = async_copy_in,
                                        .copy_out = async_copy_out,
                                        .sync = async_sync,
                                        .guard = async_guard,
                                        .judge = async_judge,
                                        .store = async_store,
                                        .post = async_post,
                                        .take = async_take,
                                        .tear = async_tear,
                                        .uncapture = cuda_plan_uncapture};
