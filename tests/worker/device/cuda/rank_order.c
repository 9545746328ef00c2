#include "tests/worker/device/cuda/rank_order.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/order_notes.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/device.h"

enum { STREAMS_MAX = 16, EVENTS_MAX = 256, GRAPHS_MAX = 64, LOADED_MAX = 1024 };

/* What a launch loads: a kernel of ours, or what is named for a shape. */
struct loaded {
    int kind, which;
    struct cudnn_shape shape;
};

struct order_record {
    struct list notes;
    const void *streams[STREAMS_MAX];
    int nstreams; /* those of graphs' launches come after */
    int virtuals;
    int groups; /* so far */
    struct {
        const void *event;
        int mark;
    } events[EVENTS_MAX];
    struct {
        const void *graph;
        struct list notes;
    } graphs[GRAPHS_MAX];
    int ngraphs;
    bool capturing;
    struct list captured;
    struct loaded loaded[LOADED_MAX];
    int nloaded;
    struct gpu_ops ops;
    const struct gpu_ops *inner;
};

static struct order_record *now; /* ops of a GPU have no other place for it */

static int add_to(struct list *l, struct note note)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 256;
        l->at = realloc(l->at, (size_t)l->cap * sizeof *l->at);
        if (!l->at)
            abort();
    }
    l->at[l->n] = note;
    return l->n++;
}

static int add(struct order_record *r, struct note note)
{
    return add_to(r->capturing ? &r->captured : &r->notes, note);
}

static int stream_of(struct order_record *r, const void *s)
{
    for (int i = 0; i < r->nstreams; i++)
        if (r->streams[i] == s)
            return i;
    if (r->nstreams == STREAMS_MAX)
        abort();
    r->streams[r->nstreams] = s;
    return r->nstreams++;
}

/* Where the mark of an event is kept; a free place for one that has none yet. */
static int *mark_of(struct order_record *r, const void *event)
{
    int free_place = -1;
    for (int i = 0; i < EVENTS_MAX; i++) {
        if (r->events[i].event == event)
            return &r->events[i].mark;
        if (!r->events[i].event && free_place < 0)
            free_place = i;
    }
    if (free_place < 0)
        abort();
    r->events[free_place].event = event;
    r->events[free_place].mark = -1;
    return &r->events[free_place].mark;
}

/* --- the GPU */

static int watch_sync(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    add(now, (struct note){.kind = HOST_STREAM, .stream = stream_of(now, s), .what = "the host waits for a stream"});
    return now->inner->stream_sync(g, s, e);
}

static int watch_record(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    *mark_of(now, v) = add(now, (struct note){.kind = MARK, .stream = stream_of(now, s), .what = "an event"});
    return now->inner->event_record(g, v, s, e);
}

static int watch_wait(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    add(now, (struct note){.kind = WAIT, .stream = stream_of(now, s), .mark = *mark_of(now, v), .what = "a join"});
    return now->inner->event_wait(g, v, s, e);
}

static int watch_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    add(now, (struct note){.kind = HOST_MARK, .mark = *mark_of(now, v), .what = "the host waits for an event"});
    return now->inner->event_sync(g, v, e);
}

static void watch_event_close(struct gpu *g, struct gpu_event *v)
{
    for (int i = 0; i < EVENTS_MAX && v; i++)
        if (now->events[i].event == v)
            now->events[i].event = NULL;
    now->inner->event_close(g, v);
}

static int watch_capture_begin(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    now->capturing = true;
    now->captured = (struct list){0};
    return now->inner->capture_begin(g, s, e);
}

static int watch_capture_end(struct gpu *g, struct gpu_stream *s, struct gpu_graph **ret, struct err *e)
{
    const int rc = now->inner->capture_end(g, s, ret, e);
    now->capturing = false;
    if (rc < 0 || now->ngraphs == GRAPHS_MAX)
        abort();
    now->graphs[now->ngraphs].graph = *ret;
    now->graphs[now->ngraphs++].notes = now->captured;
    add(now, (struct note){.kind = HOST_ALL, .what = "a graph is made"});
    return rc;
}

/* The captured notes as they run now. */
static void launch(struct order_record *r, const struct list *l, int stream)
{
    const int base = r->notes.n, fresh = STREAMS_MAX + STREAMS_MAX * r->virtuals++;
    for (int i = 0, group = 0; i < l->n; i++) {
        struct note note = l->at[i];
        r->groups += note.group && note.group != group;
        group = note.group;
        note.group = group ? r->groups : 0;
        note.stream = note.stream == stream ? stream : fresh + note.stream;
        note.mark = note.kind == WAIT ? base + note.mark : note.mark;
        add(r, note);
    }
}

static int watch_launch(struct gpu *g, struct gpu_graph *x, struct gpu_stream *s, struct err *e)
{
    for (int i = now->ngraphs - 1; i >= 0; i--)
        if (now->graphs[i].graph == x) {
            launch(now, &now->graphs[i].notes, stream_of(now, s));
            break;
        }
    return now->inner->graph_launch(g, x, s, e);
}

/* The host waits where this has not been launched before, also within a capture. */
static void load(struct order_record *r, const struct loaded *x)
{
    for (int i = 0; i < r->nloaded; i++)
        if (memcmp(&r->loaded[i], x, sizeof *x) == 0)
            return;
    if (r->nloaded == LOADED_MAX)
        abort();
    r->loaded[r->nloaded++] = *x;
    add_to(&r->notes, (struct note){.kind = HOST_ALL, .what = "a kernel is loaded"});
}

static int watch_kernel(struct gpu *g, struct gpu_stream *s, enum kernel k, const void *args, struct err *e)
{
    struct loaded x;
    memset(&x, 0, sizeof x); /* padding is compared, too */
    x.which = (int)k;
    load(now, &x);
    return now->inner->kernel(g, s, k, args, e);
}

static int watch_dnn(struct gpu *g, struct gpu_stream *s, const struct gpu_dnn *d, void *workspace, struct err *e)
{
    struct loaded x;
    memset(&x, 0, sizeof x);
    x.kind = 1;
    x.which = (int)d->pattern;
    memcpy(&x.shape, &d->shape, sizeof x.shape);
    load(now, &x);
    return now->inner->dnn(g, s, d, workspace, e);
}

static int watch_gemm(struct gpu *g, struct gpu_stream *s, const struct gpu_gemm *m, void *workspace, size_t bytes,
                      struct err *e)
{
    struct loaded x;
    memset(&x, 0, sizeof x);
    x.kind = 2;
    x.which = 4 * (int)m->out + 2 * m->trans_a + m->trans_b;
    x.shape.n = (int)m->m;
    x.shape.c = (int)m->n;
    x.shape.k = (int)m->k;
    load(now, &x);
    return now->inner->gemm(g, s, m, workspace, bytes, e);
}

void order_watch_gpu(struct order_record *r, struct gpu *g)
{
    now = r;
    r->inner = g->ops;
    r->ops = *g->ops;
    r->ops.stream_sync = watch_sync;
    r->ops.event_record = watch_record;
    r->ops.event_wait = watch_wait;
    r->ops.event_sync = watch_event_sync;
    r->ops.event_close = watch_event_close;
    r->ops.capture_begin = watch_capture_begin;
    r->ops.capture_end = watch_capture_end;
    r->ops.graph_launch = watch_launch;
    r->ops.kernel = watch_kernel;
    r->ops.dnn = watch_dnn;
    r->ops.gemm = watch_gemm;
    g->ops = &r->ops;
}

/* --- collectives */

/* Are the ranks of this call connected already? */
static bool has_come(const struct list *l, const struct note *a)
{
    for (int i = 0; i < l->n; i++)
        if (l->at[i].kind == COME && order_same_place(&l->at[i], a) && l->at[i].from == a->from &&
            l->at[i].to == a->to && strcmp(l->at[i].what, a->what) == 0)
            return true;
    return false;
}

/* Hosts wait for each other at the first such calls: n of them that go on side by side. */
static void connect(struct order_record *r, const struct note *calls, int n)
{
    struct list fresh = {0};
    for (int i = 0; i < n; i++) {
        struct note come = calls[i];
        come.kind = COME;
        if (!has_come(&r->notes, &come))
            add_to(&fresh, come);
    }
    for (int i = 0; i < fresh.n; i++)
        add_to(&r->notes, fresh.at[i]);
    for (int i = 0; i < fresh.n; i++) {
        fresh.at[i].kind = CONNECT;
        add_to(&r->notes, fresh.at[i]);
    }
    free(fresh.at);
}

static void call(struct comm *base, enum comm_channel ch, const char *what, size_t n, void *stream)
{
    struct order_comm *c = (struct order_comm *)base;
    const struct note note = {.kind = ch == COMM_CONTROL ? MEET : CALL,
                              .stream = ch == COMM_CONTROL ? 0 : stream_of(c->record, stream),
                              .members = c->members,
                              .of = c->members,
                              .id = c->id,
                              .from = -1,
                              .channel = ch,
                              .what = what,
                              .n = n};
    if (note.kind == CALL)
        connect(c->record, &note, 1);
    add(c->record, note);
}

static int move(struct comm *base, enum comm_channel ch, void *to, const void *from, size_t bytes, void *stream,
                struct err *e)
{
    const struct order_comm *c = (const struct order_comm *)base;
    if (ch != COMM_CONTROL)
        return c->device->ops->async->copy(c->device, stream, to, from, bytes, e);
    memmove(to, from, bytes);
    return 0;
}

static int all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                      void *stream, struct err *e)
{
    call(c, ch, "all-reduce", n, stream);
    return 0;
}

static int all_gather(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes, void *stream,
                      struct err *e)
{
    call(c, ch, "all-gather", bytes, stream);
    for (int i = 0; i < c->world; i++)
        TRY(move(c, ch, (char *)out + (size_t)i * bytes, in, bytes, stream, e));
    return 0;
}

static int reduce_scatter(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                          enum comm_op op, void *stream, struct err *e)
{
    call(c, ch, "reduce-scatter", n, stream);
    return move(c, ch, out, in, n * dtype_size(t), stream, e);
}

static int barrier(struct comm *c, enum comm_channel ch, struct err *e)
{
    call(c, ch, "barrier", 0, NULL);
    return 0;
}

static void close_comm(struct comm *c)
{
    (void)c;
}

/* --- messages */

struct order_request {
    struct comm_request base;
    struct note note;
    struct order_comm *comm;
};

/* Of all communicators: device messages that nobody has waited for yet. */
enum { KEPT_MAX = 16 };
static struct order_request *kept[KEPT_MAX];
static int nkept;

/* The rank of the world that is rank i of the communicator. */
static int rank_of(const struct order_comm *c, int i)
{
    int rank = 0;
    for (int seen = 0; rank < ORDER_RANKS_MAX; rank++)
        if (c->members & 1u << rank && seen++ == i)
            break;
    return rank;
}

int order_comm_rank(const struct order_comm *c)
{
    return rank_of(c, c->base.rank);
}

static struct note message(struct order_comm *c, enum comm_channel ch, size_t bytes, int peer, bool sent, void *stream)
{
    const int me = rank_of(c, c->base.rank), other = rank_of(c, peer);
    const bool control = ch == COMM_CONTROL;
    return (struct note){.kind = !control ? CALL
                                 : sent   ? POST
                                          : TAKE,
                         .stream = control ? 0 : stream_of(c->record, stream),
                         .members = 1u << me | 1u << other,
                         .of = c->members,
                         .id = c->id,
                         .from = sent ? me : other,
                         .to = sent ? other : me,
                         .channel = ch,
                         .what = "a message",
                         .n = bytes};
}

static int begin(struct comm *base, enum comm_channel ch, size_t bytes, int peer, bool sent, void *stream,
                 struct comm_request **ret)
{
    struct order_comm *c = (struct order_comm *)base;
    struct order_request *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    *r = (struct order_request){{base}, message(c, ch, bytes, peer, sent, stream), c};
    if (nkept == KEPT_MAX)
        abort();
    if (r->note.kind == CALL)
        kept[nkept++] = r;
    *ret = &r->base;
    return 0;
}

static int isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                 struct comm_request **ret, struct err *e)
{
    return begin(c, ch, bytes, peer, true, stream, ret);
}

static int irecv(struct comm *base, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                 struct comm_request **ret, struct err *e)
{
    const struct order_comm *c = (const struct order_comm *)base;
    if (ch == COMM_CONTROL)
        memset(buf, 0, bytes);
    else
        TRY(c->device->ops->async->copy(c->device, stream, buf, buf, bytes, e));
    return begin(base, ch, bytes, peer, false, stream, ret);
}

/* All that are kept of a communicator's channel go, side by side (nccl_wait()). */
static void let_go(struct order_comm *c, enum comm_channel ch)
{
    struct note go[KEPT_MAX] = {0};
    int n = 0, left = 0;
    for (int i = 0; i < nkept; i++)
        if (kept[i]->comm == c && kept[i]->note.channel == ch)
            go[n++] = kept[i]->note;
        else
            kept[left++] = kept[i];
    nkept = left;
    connect(c->record, go, n);
    c->record->groups += n > 0;
    for (int i = 0; i < n; i++) {
        go[i].group = c->record->groups;
        add(c->record, go[i]);
    }
}

static int wait_request(struct comm_request *base, struct err *e)
{
    struct order_request *r = (struct order_request *)base;
    if (r->note.kind == CALL)
        let_go(r->comm, r->note.channel);
    else
        add(r->comm->record, r->note);
    free(r);
    return 0;
}

static int send_now(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                    struct err *e)
{
    struct order_comm *o = (struct order_comm *)c;
    const struct note note = message(o, ch, bytes, peer, true, stream);
    if (note.kind == CALL)
        connect(o->record, &note, 1);
    add(o->record, note);
    return 0;
}

static const struct comm_ops order_ops = {.name = "order",
                                          .close = close_comm,
                                          .all_reduce = all_reduce,
                                          .all_gather = all_gather,
                                          .reduce_scatter = reduce_scatter,
                                          .barrier = barrier,
                                          .isend = isend,
                                          .irecv = irecv,
                                          .wait = wait_request,
                                          .send = send_now};

void order_comm_init(struct order_comm *c, struct order_record *r, struct device *d, unsigned members, int rank, int id)
{
    *c = (struct order_comm){.base = {.ops = &order_ops}, .record = r, .device = d, .members = members, .id = id};
    for (int i = 0; i < ORDER_RANKS_MAX; i++)
        if (members & 1u << i) {
            c->base.rank = i == rank ? c->base.world : c->base.rank;
            c->base.world++;
        }
}

struct order_record *order_record_create(void)
{
    return calloc(1, sizeof(struct order_record));
}

void order_record_destroy(struct order_record *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->ngraphs; i++)
        free(r->graphs[i].notes.at);
    free(r->notes.at);
    free(r);
}

const struct list *order_notes(const struct order_record *r)
{
    return &r->notes;
}
