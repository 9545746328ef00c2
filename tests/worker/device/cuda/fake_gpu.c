#include "tests/worker/device/cuda/fake_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_blocks.h"
#include "tests/worker/device/cuda/fake_math.h"
#include "tests/worker/device/cuda/fake_queue.h"
#include "worker/device/cuda/graph.h"

enum { POISON = 0xff /* a NaN in every type */ };

struct fake {
    struct gpu base;
    struct fake_options o;
    struct fake_counts c;
    struct fake_queue *queue;
    struct fake_blocks *blocks, *locked; /* of the GPU; page-locked ones of the host */
    bool failing, failing_capture, lost;
    enum kernel fail_at;
    const struct cudnn_plan *last; /* that ran */
    struct gpu_dnn ran;            /* by the queue, last; and nothing since, if it repeats */
    bool repeats;
};

static struct fake *self(struct gpu *g)
{
    return (struct fake *)g;
}

static const size_t arg_size[] = {
#define X(id, type) sizeof(type),
    KERNELS(X)
#undef X
};

static int begin_product(struct fake *f, const struct work *w, struct err *e)
{
    struct gpu_dnn d;
    if (!graph_of_gemm(&w->gemm, &d))
        return err_set(e, -EINVAL, "a product with a plan that is no graph");
    const int rc = f->o.dnn ? f->o.dnn(f->o.ctx, &d) : 0;
    f->last = d.plan;
    f->lost = f->lost || (rc < 0 && f->o.fatal);
    return rc < 0 ? err_set(e, rc, "cuBLASLt: %s: as the test wants it", cudnn_pattern_name(d.pattern)) : 0;
}

/* What the host hears when it enqueues work. */
static int begin(struct fake *f, const struct work *w, struct err *e)
{
    int rc;
    switch (w->kind) {
    case WORK_KERNEL:
        f->last = NULL;
        f->c.kernels++;
        f->c.by_kernel[w->kernel]++;
        if (!f->failing || w->kernel != f->fail_at)
            return 0;
        f->failing = false;
        return err_set(e, -EIO, "CUDA: kernel %d: an illegal memory access was encountered", w->kernel);
    case WORK_DNN:
        f->c.dnns++;
        rc = f->o.dnn ? f->o.dnn(f->o.ctx, &w->dnn) : 0;
        f->last = w->dnn.plan;
        f->lost = f->lost || (rc < 0 && f->o.fatal);
        return rc < 0 ? err_set(e, rc, "cuDNN: %s: as the test wants it", cudnn_pattern_name(w->dnn.pattern)) : 0;
    case WORK_GEMM:
        f->c.gemms++;
        return w->gemm.plan ? begin_product(f, w, e) : 0;
    default:
        return 0;
    }
}

/* The same graph on the same memory once more, nothing in between: it would make the same. Timing is full of it. */
static bool again(struct fake *f, const struct work *w)
{
    const bool same = w->kind == WORK_DNN && f->repeats && !memcmp(&w->dnn, &f->ran, sizeof f->ran);
    f->repeats = w->kind == WORK_DNN;
    if (f->repeats)
        f->ran = w->dnn;
    return same;
}

static int run(void *ctx, const struct work *w, struct err *e)
{
    struct gpu_dnn product;
    if (again(ctx, w))
        return 0;
    switch (w->kind) {
    case WORK_JOIN:
        break;
    case WORK_KERNEL:
        return kernel_launch(w->kernel, w->args, NULL) ? err_set(e, -EIO, "CUDA: kernel %d", w->kernel) : 0;
    case WORK_DNN:
        fake_dnn(&w->dnn);
        fake_spoil(&w->dnn, w->wrong);
        break;
    case WORK_GEMM:
        fake_gemm(&w->gemm);
        if (w->wrong != FAKE_RIGHT && graph_of_gemm(&w->gemm, &product))
            fake_spoil(&product, w->wrong);
        break;
    case WORK_COPY:
    case WORK_COPY_IN:
        memmove(w->to, w->from, w->bytes);
        break;
    case WORK_FILL:
        memset(w->to, w->byte, w->bytes);
        break;
    }
    return 0;
}

static int issue(struct fake *f, struct gpu_stream *s, const struct work *w, struct err *e)
{
    const bool captured = fake_queue_captured(s);
    if (!captured)
        TRY(begin(f, w, e));
    if (captured || !f->o.idle)
        fake_queue_put(f->queue, s, w);
    return 0;
}

static void *take(const struct fake *f, size_t bytes)
{
    void *p = f->o.idle ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                        : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!p || p == MAP_FAILED)
        abort();
    if (!f->o.idle)
        memset(p, POISON, bytes);
    return p;
}

static void give(const struct fake *f, void *p, size_t bytes)
{
    if (f->o.idle)
        munmap(p, bytes);
    else
        free(p);
}

static void fake_close(struct gpu *g)
{
    if (self(g)->o.at_close)
        *self(g)->o.at_close = self(g)->c;
    void *p;
    size_t bytes;
    while ((p = fake_blocks_remove(self(g)->blocks, NULL, &bytes)))
        give(self(g), p, bytes);
    fake_blocks_close(self(g)->blocks);
    fake_blocks_close(self(g)->locked);
    fake_queue_close(self(g)->queue);
    free(g);
}

static int fake_attach(struct gpu *g, struct err *e)
{
    (void)g;
    (void)e;
    return 0;
}

static int fake_info(struct gpu *g, struct gpu_info *ret, struct err *e)
{
    (void)e;
    *ret = (struct gpu_info){.name = "no GPU, but its like", .capability = 90, .memory = (size_t)80 << 30};
    snprintf(ret->uuid, sizeof ret->uuid, "fake-%d", self(g)->o.number);
    return 0;
}

static int fake_memory(struct gpu *g, size_t *ret_free, size_t *ret_total, struct err *e)
{
    (void)e;
    *ret_total = self(g)->o.memory ? self(g)->o.memory : (size_t)80 << 30;
    *ret_free = *ret_total - self(g)->c.bytes;
    return 0;
}

static int fake_alloc(struct gpu *g, size_t bytes, void **ret, struct err *e)
{
    struct fake *f = self(g);
    if (fake_queue_capturing(f->queue, NULL))
        return err_set(e, -EIO, "memory is taken during a capture");
    if (f->o.memory && f->c.bytes + bytes > f->o.memory)
        return err_set(e, -ENOMEM, "%zu MiB of GPU memory are wanted, %zu of %zu MiB are free", bytes >> 20,
                       (f->o.memory - f->c.bytes) >> 20, f->o.memory >> 20);
    *ret = take(f, bytes);
    fake_blocks_add(f->blocks, *ret, bytes);
    f->c.allocs++;
    f->c.bytes += bytes;
    return 0;
}

/* As cudaFree(): everything enqueued has happened. */
static void fake_release(struct gpu *g, void *p)
{
    struct fake *f = self(g);
    size_t bytes;
    if (!p || !fake_blocks_remove(f->blocks, p, &bytes))
        return;
    (void)fake_queue_finish(f->queue, NULL);
    f->c.bytes -= bytes;
    f->c.frees++;
    give(f, p, bytes);
}

static int fake_host_alloc(struct gpu *g, size_t bytes, void **ret, struct err *e)
{
    (void)e;
    self(g)->c.host_allocs++;
    *ret = calloc(1, bytes + 1);
    fake_blocks_add(self(g)->locked, *ret, bytes);
    return 0;
}

/* cudaFreeHost() does not promise to wait. */
static void fake_host_release(struct gpu *g, void *p)
{
    size_t bytes;
    if (!p || !fake_blocks_remove(self(g)->locked, p, &bytes))
        return;
    if (fake_queue_uses(self(g)->queue, p, bytes)) {
        fprintf(stderr, "page-locked memory is given back with a copy under way\n");
        abort();
    }
    self(g)->c.host_frees++;
    free(p);
}

static int fake_stream_open(struct gpu *g, bool urgent, struct gpu_stream **ret, struct err *e)
{
    (void)e;
    self(g)->c.urgent += urgent;
    *ret = fake_queue_stream(self(g)->queue);
    return 0;
}

static void fake_stream_close(struct gpu *g, struct gpu_stream *s)
{
    fake_queue_stream_close(self(g)->queue, s);
}

static void *fake_stream_native(struct gpu_stream *s)
{
    return s;
}

static int may_wait(const struct fake *f, const struct gpu_stream *s, struct err *e)
{
    if (f->lost)
        return err_set(e, -EIO, "CUDA: the card is lost");
    return fake_queue_capturing(f->queue, s) ? err_set(e, -EIO, "the host waits during a capture") : 0;
}

static int fake_stream_sync(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    self(g)->c.syncs++;
    TRY(may_wait(self(g), s, e));
    return fake_queue_sync(self(g)->queue, s, e);
}

static int fake_stream_query(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    (void)s;
    return self(g)->lost ? err_set(e, -EIO, "CUDA: the card is lost") : -EAGAIN;
}

static void fake_details(struct gpu *g, char *out, size_t cap)
{
    (void)g;
    snprintf(out, cap, "no driver\n");
}

static int fake_event_open(struct gpu *g, bool timed, struct gpu_event **ret, struct err *e)
{
    (void)timed;
    (void)e;
    self(g)->c.events++;
    *ret = fake_queue_event();
    return 0;
}

static void fake_event_close(struct gpu *g, struct gpu_event *v)
{
    self(g)->c.events -= v != NULL;
    fake_queue_event_close(self(g)->queue, v);
}

static int fake_event_record(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    (void)e;
    fake_queue_record(self(g)->queue, v, s);
    return 0;
}

static int fake_event_wait(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    return fake_queue_wait(self(g)->queue, v, s, e);
}

static int fake_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    return fake_queue_sync_event(self(g)->queue, v, e);
}

static int fake_event_ms(struct gpu *g, struct gpu_event *from, struct gpu_event *to, float *ret, struct err *e)
{
    const struct fake *f = self(g);
    if (!fake_queue_happened(f->queue, from) || !fake_queue_happened(f->queue, to))
        return err_set(e, -EIO, "the time until an event that has yet to happen");
    *ret = f->o.cudnn_ms ? f->o.cudnn_ms(f->o.ctx, f->last) : 1;
    return 0;
}

static int is_where(struct gpu *g, bool device, const void *p, size_t bytes, const char *what, struct err *e)
{
    return bytes == 0 || fake_blocks_have(self(g)->blocks, p, bytes) == device
               ? 0
               : err_set(e, -EIO, "CUDA: %s: %p (%zu bytes) is %s", what, p, bytes,
                         device ? "not memory of the GPU" : "memory of the GPU, of the host's was expected");
}

static int refuse_pageable(const struct gpu_stream *s, struct err *e)
{
    return fake_queue_captured(s) ? err_set(e, -EIO, "a copy of pageable memory is captured") : 0;
}

/* Page-locked memory is read when the copy runs, pageable memory before the call returns. */
static int fake_copy_in(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e)
{
    struct fake *f = self(g);
    struct work w = {.kind = WORK_COPY_IN, .to = to, .from = from, .bytes = bytes};
    f->c.copies_in++;
    f->c.copied_in = bytes > 128 ? from : f->c.copied_in;
    TRY(is_where(g, true, to, bytes, "copy in", e));
    TRY(is_where(g, false, from, bytes, "copy in", e));
    if (bytes == 0 || f->o.idle)
        return 0;
    if (!fake_blocks_have(f->locked, from, bytes)) {
        TRY(refuse_pageable(s, e));
        w.from = w.own = malloc(bytes);
        memcpy(w.own, from, bytes);
    }
    return issue(f, s, &w, e);
}

/* To pageable memory it returns once the copy is done. */
static int fake_copy_out(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e)
{
    struct fake *f = self(g);
    const struct work w = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
    f->c.copies_out++;
    TRY(is_where(g, false, to, bytes, "copy out", e));
    TRY(is_where(g, true, from, bytes, "copy out", e));
    if (bytes == 0)
        return 0;
    if (fake_blocks_have(f->locked, to, bytes))
        return issue(f, s, &w, e);
    TRY(refuse_pageable(s, e));
    TRY(issue(f, s, &w, e));
    return fake_queue_sync(f->queue, s, e);
}

static int fake_copy_within(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes,
                            struct err *e)
{
    const struct work w = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
    TRY(is_where(g, true, to, bytes, "copy", e));
    TRY(is_where(g, true, from, bytes, "copy", e));
    return bytes == 0 ? 0 : issue(self(g), s, &w, e);
}

static int fake_fill(struct gpu *g, struct gpu_stream *s, void *to, int byte, size_t bytes, struct err *e)
{
    const struct work w = {.kind = WORK_FILL, .to = to, .byte = byte, .bytes = bytes};
    TRY(is_where(g, true, to, bytes, "fill", e));
    return bytes == 0 ? 0 : issue(self(g), s, &w, e);
}

static int fake_capture_begin(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    if (fake_queue_capturing(self(g)->queue, s))
        return err_set(e, -EIO, "a capture within a capture");
    fake_queue_capture_begin(self(g)->queue, s);
    self(g)->c.captures++;
    return 0;
}

static int fake_capture_end(struct gpu *g, struct gpu_stream *s, struct gpu_graph **ret, struct err *e)
{
    struct fake *f = self(g);
    f->c.graphs++;
    TRY(fake_queue_capture_end(f->queue, s, ret, e));
    if (!f->failing_capture)
        return 0;
    f->failing_capture = false;
    fake_queue_graph_close(f->queue, *ret);
    *ret = NULL;
    f->c.graphs--;
    return err_set(e, -EIO, "CUDA: the capture is refused");
}

static int fake_graph_launch(struct gpu *g, struct gpu_graph *x, struct gpu_stream *s, struct err *e)
{
    self(g)->c.launches++;
    if (self(g)->o.no_graph_runs)
        return err_set(e, -EIO, "CUDA: launch a graph: as the test wants it");
    for (int i = 0; i < x->n; i++)
        TRY(begin(self(g), &x->all[i].w, e));
    if (!self(g)->o.idle)
        fake_queue_launch(self(g)->queue, x, s);
    return 0;
}

static void fake_graph_close(struct gpu *g, struct gpu_graph *x)
{
    self(g)->c.graphs_closed += x != NULL;
    fake_queue_graph_close(self(g)->queue, x);
}

/* The one pointer of kernels that callers of the device bring, and may take from their own variables. */
static const void *count_of(enum kernel k, const void *args)
{
    return k == KERNEL_UPDATE  ? ((const struct k_update *)args)->count
           : k == KERNEL_NORM  ? ((const struct k_norm *)args)->count
           : k == KERNEL_BLEND ? ((const struct k_blend *)args)->count
                               : NULL;
}

static int fake_kernel(struct gpu *g, struct gpu_stream *s, enum kernel k, const void *args, struct err *e)
{
    struct work w = {.kind = WORK_KERNEL, .kernel = k};
    const void *count = count_of(k, args);
    if (count)
        TRY(is_where(g, true, count, sizeof(float), "count of samples", e));
    if (arg_size[k] > sizeof w.args)
        return err_set(e, -E2BIG, "arguments of kernel %d", k);
    memcpy(w.args, args, arg_size[k]);
    return issue(self(g), s, &w, e);
}

static int fake_dnn_call(struct gpu *g, struct gpu_stream *s, const struct gpu_dnn *d, void *workspace, struct err *e)
{
    (void)workspace;
    struct fake *f = self(g);
    const struct work w = {
        .kind = WORK_DNN, .dnn = *d, .wrong = f->o.wrong ? (int)f->o.wrong(f->o.ctx, d) : FAKE_RIGHT};
    for (int i = 0; i < DNN_SLOTS_MAX; i++)
        if (d->slot[i])
            TRY(is_where(g, true, d->slot[i], 16, cudnn_pattern_name(d->pattern), e));
    return issue(f, s, &w, e);
}

static int fake_gemm_call(struct gpu *g, struct gpu_stream *s, const struct gpu_gemm *m, void *workspace,
                          size_t workspace_bytes, struct err *e)
{
    (void)workspace;
    struct fake *f = self(g);
    struct work w = {.kind = WORK_GEMM, .gemm = *m, .wrong = FAKE_RIGHT};
    struct gpu_dnn product;
    if (m->plan && cudnn_plan_workspace(m->plan) > workspace_bytes)
        return err_set(e, -EIO, "cuBLASLt: %zu bytes of workspace are too few", workspace_bytes);
    if (m->plan && f->o.wrong && graph_of_gemm(m, &product))
        w.wrong = (int)f->o.wrong(f->o.ctx, &product);
    TRY(is_where(g, true, m->a, 16, "product", e));
    TRY(is_where(g, true, m->b, 16, "product", e));
    TRY(is_where(g, true, m->c, 16, "product", e));
    return issue(self(g), s, &w, e);
}

/* Ways to compute a product as far as records tell them apart. */
static int fake_gemm_algos(struct gpu *g, const struct gpu_gemm *m, size_t workspace_bytes, bool deterministic,
                           struct dnn_algo *ret, int cap, int *ret_n, struct err *e)
{
    (void)g;
    (void)e;
    *ret_n = 0;
    for (int i = 0; i < FAKE_ALGOS && *ret_n < cap; i++) {
        struct dnn_algo a = {
            .opaque = {(uint64_t)i + 1, (uint64_t)m->n}, .workspace = (size_t)i << 16, .atomic = i == 1};
        snprintf(a.name, sizeof a.name, "fake%d", i);
        if (a.workspace <= workspace_bytes && !(a.atomic && deterministic))
            ret[(*ret_n)++] = a;
    }
    return 0;
}

static const struct gpu_ops fake_ops = {
    .name = "fake",
    .close = fake_close,
    .attach = fake_attach,
    .info = fake_info,
    .memory = fake_memory,
    .alloc = fake_alloc,
    .release = fake_release,
    .host_alloc = fake_host_alloc,
    .host_release = fake_host_release,
    .stream_open = fake_stream_open,
    .stream_close = fake_stream_close,
    .stream_native = fake_stream_native,
    .stream_sync = fake_stream_sync,
    .stream_query = fake_stream_query,
    .details = fake_details,
    .event_open = fake_event_open,
    .event_close = fake_event_close,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
    .event_sync = fake_event_sync,
    .event_ms = fake_event_ms,
    .copy_in = fake_copy_in,
    .copy_out = fake_copy_out,
    .copy = fake_copy_within,
    .fill = fake_fill,
    .capture_begin = fake_capture_begin,
    .capture_end = fake_capture_end,
    .graph_launch = fake_graph_launch,
    .graph_close = fake_graph_close,
    .kernel = fake_kernel,
    .dnn = fake_dnn_call,
    .gemm = fake_gemm_call,
    .gemm_algos = fake_gemm_algos,
};

static uint64_t more_seed(void)
{
    const char *text = getenv("CRUN_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 0;
}

int fake_gpu_open(struct gpu **ret, const struct fake_options *o)
{
    struct fake *f = calloc(1, sizeof *f);
    f->base.ops = &fake_ops;
    f->o = *o;
    f->blocks = fake_blocks_open();
    f->locked = fake_blocks_open();
    f->queue = fake_queue_open(o->seed + more_seed(), o->lazy, run, f);
    *ret = &f->base;
    return 0;
}

void fake_gpu_wait(struct gpu *g, void *stream)
{
    struct err e;
    if ((stream ? fake_queue_sync(self(g)->queue, stream, &e) : fake_queue_finish(self(g)->queue, &e)) < 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
}

int fake_gpu_copy_ahead(struct gpu *g)
{
    return fake_queue_run_ahead(self(g)->queue, WORK_COPY_IN);
}

const struct fake_counts *fake_gpu_counts(const struct gpu *g)
{
    return &((const struct fake *)g)->c;
}

void fake_gpu_fail_capture(struct gpu *g)
{
    self(g)->failing_capture = true;
}

void fake_gpu_fail_next(struct gpu *g, enum kernel k)
{
    self(g)->failing = true;
    self(g)->fail_at = k;
}
