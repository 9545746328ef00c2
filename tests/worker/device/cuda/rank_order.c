#include "tests/worker/device/cuda/rank_order.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "worker/device/device.h"

enum kind { CALL, MEET, MARK, WAIT, HOST_STREAM, HOST_MARK };

struct note {
    enum kind kind;
    int stream; /* CALL, MARK, WAIT, HOST_STREAM */
    int mark;   /* WAIT, HOST_MARK: index of the note that is waited for; -1: none */
    unsigned members;
    enum comm_channel channel;
    const char *what;
    size_t n;
};

struct list {
    struct note *at;
    int n, cap;
};

enum { STREAMS_MAX = 16, EVENTS_MAX = 256, GRAPHS_MAX = 64 };

struct order_record {
    struct list notes;
    const void *streams[STREAMS_MAX];
    int nstreams; /* those of graphs' launches come after */
    int virtuals;
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
    struct gpu_ops ops;
    const struct gpu_ops *inner;
};

static struct order_record *now; /* ops of a GPU have no other place for it */

static int add(struct order_record *r, struct note note)
{
    struct list *l = r->capturing ? &r->captured : &r->notes;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 256;
        l->at = realloc(l->at, (size_t)l->cap * sizeof *l->at);
        if (!l->at)
            abort();
    }
    l->at[l->n] = note;
    return l->n++;
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
    return rc;
}

/* The captured notes as they run now. */
static void launch(struct order_record *r, const struct list *l, int stream)
{
    const int base = r->notes.n, fresh = STREAMS_MAX + STREAMS_MAX * r->virtuals++;
    for (int i = 0; i < l->n; i++) {
        struct note note = l->at[i];
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
    g->ops = &r->ops;
}

/* --- collectives */

static void call(struct comm *base, enum comm_channel ch, const char *what, size_t n, void *stream)
{
    struct order_comm *c = (struct order_comm *)base;
    add(c->record, (struct note){.kind = ch == COMM_CONTROL ? MEET : CALL,
                                 .stream = ch == COMM_CONTROL ? 0 : stream_of(c->record, stream),
                                 .members = c->members,
                                 .channel = ch,
                                 .what = what,
                                 .n = n});
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

static const struct comm_ops order_ops = {.name = "order",
                                          .close = close_comm,
                                          .all_reduce = all_reduce,
                                          .all_gather = all_gather,
                                          .reduce_scatter = reduce_scatter,
                                          .barrier = barrier};

void order_comm_init(struct order_comm *c, struct order_record *r, struct device *d, unsigned members, int rank)
{
    *c = (struct order_comm){.base = {.ops = &order_ops}, .record = r, .device = d, .members = members};
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

/* Numbers calls of a communicator's channel. */
static void count_calls(struct player *p)
{
    for (int i = 0; i < p->notes->n; i++) {
        const struct note *a = &p->notes->at[i];
        for (int k = i - 1; k >= 0 && (a->kind == CALL || a->kind == MEET); k--) {
            const struct note *b = &p->notes->at[k];
            if ((b->kind == CALL || b->kind == MEET) && b->members == a->members && b->channel == a->channel) {
                p->call[i] = p->call[k] + 1;
                break;
            }
        }
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
        if ((of(p, i)->kind == CALL || of(p, i)->kind == MEET) && of(p, i)->members == a->members &&
            of(p, i)->channel == a->channel && p->call[i] == number)
            return i;
    return -1;
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
        if (of(p, k)->kind <= WAIT && of(p, k)->kind != MEET && of(p, k)->stream == of(p, i)->stream)
            return p->done[k]; /* which says so of those before it */
    return true;
}

static int play_stream(struct player *players, int ranks, int me, bool *ret_moved, struct err *e)
{
    struct player *p = &players[me];
    for (int i = 0; i < p->host; i++) {
        const struct note *a = of(p, i);
        bool may = true;
        if (a->kind == MEET || a->kind > WAIT || p->done[i] || !at_head(p, i))
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
