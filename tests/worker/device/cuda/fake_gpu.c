#include "tests/worker/device/cuda/fake_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/err.h"
#include "tests/worker/device/cuda/fake_math.h"

enum { POISON = 0xff /* a NaN in every type */, STREAMS_MAX = 64 };

struct gpu_stream {
    bool captured; /* is part of the capture */
    bool forked;   /* and nobody has waited for it since it became so */
};
struct gpu_event {
    struct gpu_stream *of; /* NULL: never recorded */
    bool captured;
};

enum work_kind { WORK_KERNEL, WORK_DNN, WORK_GEMM, WORK_COPY, WORK_FILL };
struct work {
    enum work_kind kind;
    enum kernel kernel;
    char args[512];
    struct gpu_dnn dnn;
    struct gpu_gemm gemm;
    void *to;
    const void *from;
    size_t bytes;
    int byte;
};
struct gpu_graph {
    struct work *all;
    int n, cap;
};

struct block {
    void *at;
    size_t bytes;
    struct block *next;
};

struct fake {
    struct gpu base;
    struct fake_options o;
    struct fake_counts c;
    struct gpu_graph *recording; /* NULL: work runs at once */
    struct gpu_stream *origin, *streams[STREAMS_MAX];
    struct block *blocks;
    bool failing, lost;
    enum kernel fail_at;
    const struct cudnn_plan *last; /* that ran */
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

static int run_dnn(struct fake *f, const struct gpu_dnn *d, struct err *e)
{
    const int rc = f->o.dnn ? f->o.dnn(f->o.ctx, d) : 0;
    f->last = d->plan;
    f->lost = f->lost || (rc < 0 && f->o.fatal);
    if (rc < 0)
        return err_set(e, rc, "cuDNN: %s: as the test wants it", cudnn_pattern_name(d->pattern));
    if (!f->o.idle)
        fake_dnn(d);
    return 0;
}

static int run(struct fake *f, const struct work *w, struct err *e)
{
    switch (w->kind) {
    case WORK_KERNEL:
        f->c.kernels++;
        f->c.by_kernel[w->kernel]++;
        if (f->failing && w->kernel == f->fail_at) {
            f->failing = false;
            return err_set(e, -EIO, "CUDA: kernel %d: an illegal memory access was encountered", w->kernel);
        }
        return f->o.idle ? 0 : kernel_launch(w->kernel, w->args, NULL);
    case WORK_DNN:
        f->c.dnns++;
        return run_dnn(f, &w->dnn, e);
    case WORK_GEMM:
        f->c.gemms++;
        if (!f->o.idle)
            fake_gemm(&w->gemm);
        return 0;
    case WORK_COPY:
        if (!f->o.idle)
            memmove(w->to, w->from, w->bytes);
        return 0;
    case WORK_FILL:
        if (!f->o.idle)
            memset(w->to, w->byte, w->bytes);
        return 0;
    }
    return 0;
}

/* Is all of it memory of the GPU? */
static bool on_gpu(const struct fake *f, const void *p, size_t bytes)
{
    const uintptr_t at = (uintptr_t)p;
    for (const struct block *b = f->blocks; b; b = b->next)
        if (at >= (uintptr_t)b->at && at + bytes <= (uintptr_t)b->at + b->bytes)
            return true;
    return false;
}

static int issue(struct fake *f, const struct work *w, struct err *e)
{
    struct gpu_graph *x = f->recording;
    if (!x)
        return run(f, w, e);
    if (x->n == x->cap) {
        x->cap = x->cap ? 2 * x->cap : 64;
        x->all = realloc(x->all, (size_t)x->cap * sizeof *x->all);
    }
    x->all[x->n++] = *w;
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

static void give(const struct fake *f, struct block *b)
{
    if (f->o.idle)
        munmap(b->at, b->bytes);
    else
        free(b->at);
    free(b);
}

static void fake_close(struct gpu *g)
{
    if (self(g)->o.at_close)
        *self(g)->o.at_close = self(g)->c;
    while (self(g)->blocks) {
        struct block *b = self(g)->blocks;
        self(g)->blocks = b->next;
        give(self(g), b);
    }
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
    (void)g;
    (void)e;
    *ret = (struct gpu_info){.name = "no GPU, but its like", .capability = 90, .memory = (size_t)80 << 30};
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
    struct block *b = calloc(1, sizeof *b);
    if (f->recording)
        return err_set(e, -EIO, "memory is taken during a capture");
    if (f->o.memory && f->c.bytes + bytes > f->o.memory) {
        free(b);
        return err_set(e, -ENOMEM, "%zu MiB of GPU memory are wanted, %zu of %zu MiB are free", bytes >> 20,
                       (f->o.memory - f->c.bytes) >> 20, f->o.memory >> 20);
    }
    b->bytes = bytes;
    b->at = take(f, bytes);
    b->next = f->blocks;
    f->blocks = b;
    f->c.allocs++;
    f->c.bytes += bytes;
    *ret = b->at;
    return 0;
}

static void fake_release(struct gpu *g, void *p)
{
    struct fake *f = self(g);
    for (struct block **at = &f->blocks; *at; at = &(*at)->next) {
        struct block *b = *at;
        if (b->at != p)
            continue;
        *at = b->next;
        f->c.bytes -= b->bytes;
        f->c.frees++;
        give(f, b);
        return;
    }
}

static int fake_host_alloc(struct gpu *g, size_t bytes, void **ret, struct err *e)
{
    (void)e;
    self(g)->c.host_allocs++;
    *ret = calloc(1, bytes + 1);
    return 0;
}

static void fake_host_release(struct gpu *g, void *p)
{
    if (p)
        self(g)->c.host_frees++;
    free(p);
}

static int fake_stream_open(struct gpu *g, bool urgent, struct gpu_stream **ret, struct err *e)
{
    (void)e;
    self(g)->c.urgent += urgent;
    *ret = calloc(1, sizeof **ret);
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (!self(g)->streams[i]) {
            self(g)->streams[i] = *ret;
            return 0;
        }
    }
    abort();
}

static void fake_stream_close(struct gpu *g, struct gpu_stream *s)
{
    for (int i = 0; i < STREAMS_MAX; i++)
        if (self(g)->streams[i] == s)
            self(g)->streams[i] = NULL;
    free(s);
}

static void *fake_stream_native(struct gpu_stream *s)
{
    return s;
}

static int fake_stream_sync(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    (void)s;
    self(g)->c.syncs++;
    if (self(g)->lost)
        return err_set(e, -EIO, "CUDA: the card is lost");
    return self(g)->recording ? err_set(e, -EIO, "the host waits during a capture") : 0;
}

static int fake_event_open(struct gpu *g, bool timed, struct gpu_event **ret, struct err *e)
{
    (void)timed;
    (void)e;
    self(g)->c.events++;
    *ret = calloc(1, sizeof **ret);
    return 0;
}

static void fake_event_close(struct gpu *g, struct gpu_event *v)
{
    self(g)->c.events -= v != NULL;
    free(v);
}

static int fake_event_record(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    (void)g;
    (void)e;
    *v = (struct gpu_event){.of = s, .captured = s->captured};
    return 0;
}

/* A stream becomes part of a capture by waiting for it, and must not wait for anything else then. */
static int fake_event_wait(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    struct fake *f = self(g);
    if (!v->of)
        return 0;
    if (v->captured && !f->recording)
        return err_set(e, -EIO, "a stream waits for an event of a capture that has ended");
    if (s->captured && !v->captured)
        return err_set(e, -EIO, "a stream that is captured waits for one that is not");
    if (!v->captured || v->of == s)
        return 0;
    v->of->forked = false;
    s->captured = true;
    s->forked = s != f->origin;
    return 0;
}

static int fake_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    (void)g;
    return v->captured ? err_set(e, -EIO, "the host waits for an event of a capture") : 0;
}

static int fake_event_ms(struct gpu *g, struct gpu_event *from, struct gpu_event *to, float *ret, struct err *e)
{
    const struct fake *f = self(g);
    (void)from;
    (void)to;
    (void)e;
    *ret = f->o.cudnn_ms ? f->o.cudnn_ms(f->o.ctx, f->last) : 1;
    return 0;
}

static int fake_copy(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e)
{
    (void)s;
    const struct work w = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
    return bytes == 0 ? 0 : issue(self(g), &w, e);
}

static int is_where(struct gpu *g, bool device, const void *p, size_t bytes, const char *what, struct err *e)
{
    return bytes == 0 || on_gpu(self(g), p, bytes) == device
               ? 0
               : err_set(e, -EIO, "CUDA: %s: %p (%zu bytes) is %s", what, p, bytes,
                         device ? "not memory of the GPU" : "memory of the GPU, of the host's was expected");
}

static int fake_copy_in(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e)
{
    self(g)->c.copies_in++;
    TRY(is_where(g, true, to, bytes, "copy in", e));
    TRY(is_where(g, false, from, bytes, "copy in", e));
    return fake_copy(g, s, to, from, bytes, e);
}

static int fake_copy_out(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e)
{
    self(g)->c.copies_out++;
    TRY(is_where(g, false, to, bytes, "copy out", e));
    TRY(is_where(g, true, from, bytes, "copy out", e));
    return fake_copy(g, s, to, from, bytes, e);
}

static int fake_copy_within(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes,
                            struct err *e)
{
    TRY(is_where(g, true, to, bytes, "copy", e));
    TRY(is_where(g, true, from, bytes, "copy", e));
    return fake_copy(g, s, to, from, bytes, e);
}

static int fake_fill(struct gpu *g, struct gpu_stream *s, void *to, int byte, size_t bytes, struct err *e)
{
    (void)s;
    const struct work w = {.kind = WORK_FILL, .to = to, .byte = byte, .bytes = bytes};
    TRY(is_where(g, true, to, bytes, "fill", e));
    return bytes == 0 ? 0 : issue(self(g), &w, e);
}

static int fake_capture_begin(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    if (self(g)->recording)
        return err_set(e, -EIO, "a capture within a capture");
    self(g)->origin = s;
    s->captured = true;
    self(g)->recording = calloc(1, sizeof(struct gpu_graph));
    self(g)->c.captures++;
    return 0;
}

static int fake_capture_end(struct gpu *g, struct gpu_stream *s, struct gpu_graph **ret, struct err *e)
{
    struct fake *f = self(g);
    bool unjoined = false;
    (void)s;
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (!f->streams[i])
            continue;
        unjoined |= f->streams[i]->forked;
        *f->streams[i] = (struct gpu_stream){0};
    }
    *ret = f->recording;
    f->recording = NULL;
    f->c.graphs++;
    return unjoined ? err_set(e, -EIO, "the capture ends without the streams that it began") : 0;
}

static int fake_graph_launch(struct gpu *g, struct gpu_graph *x, struct gpu_stream *s, struct err *e)
{
    (void)s;
    self(g)->c.launches++;
    for (int i = 0; i < x->n; i++)
        TRY(run(self(g), &x->all[i], e));
    return 0;
}

static void fake_graph_close(struct gpu *g, struct gpu_graph *x)
{
    (void)g;
    if (x) {
        self(g)->c.graphs_closed++;
        free(x->all);
    }
    free(x);
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
    (void)s;
    struct work w = {.kind = WORK_KERNEL, .kernel = k};
    const void *count = count_of(k, args);
    if (count)
        TRY(is_where(g, true, count, sizeof(float), "count of samples", e));
    if (arg_size[k] > sizeof w.args)
        return err_set(e, -E2BIG, "arguments of kernel %d", k);
    memcpy(w.args, args, arg_size[k]);
    return issue(self(g), &w, e);
}

static int fake_dnn_call(struct gpu *g, struct gpu_stream *s, const struct gpu_dnn *d, void *workspace, struct err *e)
{
    (void)s;
    (void)workspace;
    const struct work w = {.kind = WORK_DNN, .dnn = *d};
    for (int i = 0; i < DNN_SLOTS_MAX; i++)
        if (d->slot[i])
            TRY(is_where(g, true, d->slot[i], 16, cudnn_pattern_name(d->pattern), e));
    return issue(self(g), &w, e);
}

static int fake_gemm_call(struct gpu *g, struct gpu_stream *s, const struct gpu_gemm *m, void *workspace,
                          size_t workspace_bytes, struct err *e)
{
    (void)s;
    (void)workspace;
    (void)workspace_bytes;
    const struct work w = {.kind = WORK_GEMM, .gemm = *m};
    TRY(is_where(g, true, m->a, 16, "product", e));
    TRY(is_where(g, true, m->b, 16, "product", e));
    TRY(is_where(g, true, m->c, 16, "product", e));
    return issue(self(g), &w, e);
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
};

int fake_gpu_open(struct gpu **ret, const struct fake_options *o)
{
    struct fake *f = calloc(1, sizeof *f);
    f->base.ops = &fake_ops;
    f->o = *o;
    *ret = &f->base;
    return 0;
}

const struct fake_counts *fake_gpu_counts(const struct gpu *g)
{
    return &((const struct fake *)g)->c;
}

void fake_gpu_fail_next(struct gpu *g, enum kernel k)
{
    self(g)->failing = true;
    self(g)->fail_at = k;
}
