#include "tests/worker/device/cuda/rank_order.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/device.h"

enum kind { CALL, MEET, MARK, WAIT, HOST_STREAM, HOST_MARK, HOST_ALL, POST, TAKE, COME, CONNECT };

struct note {
    enum kind kind;
    int stream;       /* CALL, MARK, WAIT, HOST_STREAM */
    int mark;         /* WAIT, HOST_MARK: index of the note that is waited for; -1: none */
    unsigned members; /* who must be there */
    unsigned of;      /* the communicator's ranks */
    int id;           /* and which of theirs it is */
    int from, to;     /* of a message, ranks of the world; else -1 */
    int group;        /* messages that go on side by side, one after the other in the list; 0: none */
    enum comm_channel channel;
    const char *what;
    size_t n;
};

struct list {
    struct note *at;
    int n, cap;
};

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

static bool same_place(const struct note *a, const struct note *b);

/* Are the ranks of this call connected already? */
static bool has_come(const struct list *l, const struct note *a)
{
    for (int i = 0; i < l->n; i++)
        if (l->at[i].kind == COME && same_place(&l->at[i], a) && l->at[i].from == a->from && l->at[i].to == a->to &&
            strcmp(l->at[i].what, a->what) == 0)
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

/* --- playing */

struct player {
    const struct list *notes;
    int host;   /* the note that the host is at */
    bool *done; /* per note of a stream: it has happened */
    bool *here; /* per CALL and MEET: it is this rank's turn */
    int *call;  /* per CALL and MEET: how many of its communicator and channel went before */
};

static bool calls(const struct note *a)
{
    return a->kind == CALL || a->kind == MEET || a->kind == POST || a->kind == TAKE;
}

/* Are these of one communicator's channel? */
static bool same_place(const struct note *a, const struct note *b)
{
    return a->of == b->of && a->id == b->id && a->channel == b->channel;
}

/* Are these of one order, which all who take part have alike? Messages between two ranks have one, each way. */
static bool same_order(const struct note *a, const struct note *b)
{
    return calls(a) && calls(b) && same_place(a, b) && a->from == b->from && (a->from < 0 || a->to == b->to);
}

/* Numbers calls of a communicator's channel. */
static void count_calls(struct player *p)
{
    for (int i = 0; i < p->notes->n; i++)
        for (int k = i - 1; k >= 0; k--)
            if (same_order(&p->notes->at[i], &p->notes->at[k])) {
                p->call[i] = p->call[k] + 1;
                break;
            }
}

static const struct note *of(const struct player *p, int i)
{
    return &p->notes->at[i];
}

/* The note of another rank that is the same call; -1: its host has not come to one. */
static int same_call(const struct player *p, const struct note *a, int number)
{
    for (int i = 0; i < p->notes->n && i <= p->host; i++)
        if (same_order(of(p, i), a) && p->call[i] == number)
            return i;
    return -1;
}

static bool same_group(const struct player *p, int i, int k)
{
    return of(p, i)->group && of(p, i)->group == of(p, k)->group;
}

/* Has note k, the last of its group, happened, and the group with it? */
static bool is_over(const struct player *p, int k)
{
    bool over = p->done[k];
    for (int i = k - 1; over && i >= 0 && same_group(p, i, k); i--)
        over = p->done[i];
    return over;
}

/* Has the call before this one of the same communicator's channel happened, on whatever stream it is? */
static bool in_turn(const struct player *p, int i)
{
    for (int k = i - 1; k >= 0; k--)
        if (of(p, k)->kind == CALL && same_place(of(p, k), of(p, i)) && !same_group(p, i, k))
            return is_over(p, k);
    return true;
}

/* Is every rank of the group at this call of rank `me`? */
static int all_here(struct player *players, int ranks, int me, int i, bool *ret, struct err *e)
{
    const struct note *a = of(&players[me], i);
    players[me].here[i] = true;
    *ret = true;
    for (int r = 0; r < ranks; r++) {
        const int k = a->members & 1u << r ? same_call(&players[r], a, players[me].call[i]) : i;
        if (!(a->members & 1u << r))
            continue;
        *ret = *ret && k >= 0 && players[r].here[k];
        if (k >= 0 && (strcmp(of(&players[r], k)->what, a->what) || of(&players[r], k)->n != a->n))
            return err_set(e, -EPROTO, "call %d of a group: rank %d has %s of %zu, rank %d %s of %zu",
                           players[me].call[i], me, a->what, a->n, r, of(&players[r], k)->what, of(&players[r], k)->n);
    }
    return 0;
}

/* Has all happened on note i's stream that was enqueued before it? */
static bool at_head(const struct player *p, int i)
{
    for (int k = i - 1; k >= 0; k--)
        if (of(p, k)->kind <= WAIT && of(p, k)->kind != MEET && of(p, k)->stream == of(p, i)->stream &&
            !same_group(p, i, k))
            return is_over(p, k); /* which says so of those before it */
    return true;
}

static int play_stream(struct player *players, int ranks, int me, bool *ret_moved, struct err *e)
{
    struct player *p = &players[me];
    for (int i = 0; i < p->host; i++) {
        const struct note *a = of(p, i);
        bool may = true;
        if (a->kind == MEET || a->kind > WAIT || p->done[i] || !at_head(p, i) || (a->kind == CALL && !in_turn(p, i)))
            continue;
        if (a->kind == WAIT)
            may = a->mark < 0 || p->done[a->mark];
        if (a->kind == CALL)
            TRY(all_here(players, ranks, me, i, &may, e));
        p->done[i] = may;
        *ret_moved |= may;
    }
    return 0;
}

/* Has its sender's host been there? */
static bool sent(const struct player *players, const struct note *a, int number)
{
    const struct player *from = &players[a->from];
    const int i = same_call(from, a, number);
    return i >= 0 && i < from->host;
}

/* Has all that was enqueued happened, on whatever stream? */
static bool all_done(const struct player *p, int i)
{
    for (int k = 0; k < i; k++)
        if (of(p, k)->kind <= WAIT && of(p, k)->kind != MEET && !p->done[k])
            return false;
    return true;
}

/* Have all hosts come to the first call of these ranks? */
static bool all_come(const struct player *players, int ranks, int me, const struct note *a)
{
    for (int r = 0; r < ranks; r++) {
        bool came = r == me || !(a->members & 1u << r);
        for (int i = 0; i < players[r].host && !came; i++)
            came = of(&players[r], i)->kind == COME && same_place(of(&players[r], i), a) &&
                   of(&players[r], i)->from == a->from && of(&players[r], i)->to == a->to &&
                   strcmp(of(&players[r], i)->what, a->what) == 0;
        if (!came)
            return false;
    }
    return true;
}

static int play_host(struct player *players, int ranks, int me, bool *ret_moved, struct err *e)
{
    struct player *p = &players[me];
    while (p->host < p->notes->n) {
        const int i = p->host;
        const struct note *a = of(p, i);
        bool may = true;
        if (a->kind == HOST_MARK)
            may = a->mark < 0 || p->done[a->mark];
        if (a->kind == HOST_STREAM)
            may = at_head(p, i);
        if (a->kind == MEET)
            TRY(all_here(players, ranks, me, i, &may, e));
        if (a->kind == TAKE)
            may = sent(players, a, p->call[i]);
        if (a->kind == HOST_ALL)
            may = all_done(p, i);
        if (a->kind == CONNECT)
            may = all_come(players, ranks, me, a);
        if (!may)
            return 0;
        p->host++;
        *ret_moved = true;
    }
    return 0;
}

static int stuck(const struct player *players, int ranks, struct err *e)
{
    char text[200] = "";
    for (int r = 0; r < ranks; r++) {
        const struct player *p = &players[r];
        if (p->host < p->notes->n)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%srank %d at %d of %d: %s", *text ? "; " : "", r,
                     p->host, p->notes->n, of(p, p->host)->what);
    }
    return err_set(e, -EDEADLK, "ranks wait for each other: %s", text);
}

static bool finished(const struct player *players, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        if (players[r].host < players[r].notes->n)
            return false;
        for (int i = 0; i < players[r].notes->n; i++)
            if (of(&players[r], i)->kind == CALL && !players[r].done[i])
                return false;
    }
    return true;
}

int order_play(struct order_record *const *records, int ranks, struct err *e)
{
    struct player players[ORDER_RANKS_MAX] = {0};
    bool moved = true;
    int rc = 0;
    for (int r = 0; r < ranks; r++) {
        const size_t n = (size_t)records[r]->notes.n + 1;
        players[r] = (struct player){.notes = &records[r]->notes,
                                     .done = calloc(n, sizeof(bool)),
                                     .here = calloc(n, sizeof(bool)),
                                     .call = calloc(n, sizeof(int))};
        count_calls(&players[r]);
    }
    while (moved && rc == 0) {
        moved = false;
        for (int r = 0; r < ranks && rc == 0; r++) {
            rc = play_host(players, ranks, r, &moved, e);
            if (rc == 0)
                rc = play_stream(players, ranks, r, &moved, e);
        }
    }
    if (rc == 0 && !finished(players, ranks))
        rc = stuck(players, ranks, e);
    for (int r = 0; r < ranks; r++) {
        free(players[r].done);
        free(players[r].here);
        free(players[r].call);
    }
    return rc;
}
