#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/order_notes.h"

/* Calls of one order, which all who take part have alike: those of a communicator's channel; messages between two ranks
 * have one of their own, each way. */
struct order {
    unsigned of;
    int id;
    enum comm_channel channel;
    int from, to; /* -1: no messages */
    struct {
        int *at; /* the n-th call's note */
        int n, cap;
    } calls[ORDER_RANKS_MAX];
};

struct orders {
    struct order *at;
    int n, cap;
};

struct player {
    const struct list *notes;
    int host;    /* the note that the host is at */
    int settled; /* all before it have happened, or are not of a stream */
    bool *done;  /* per note of a stream: it has happened */
    bool *here;  /* per CALL and MEET: it is this rank's turn */
    /* Of a call: its order, and how many of it went before. */
    int *order, *number;
    /* The note before it on its stream, and among its communicator's channel's calls, not of its group; -1: none. */
    int *ahead, *before;
};

static const struct note *of(const struct player *p, int i)
{
    return &p->notes->at[i];
}

static bool calls(const struct note *a)
{
    return a->kind == CALL || a->kind == MEET || a->kind == POST || a->kind == TAKE;
}

static bool same_group(const struct player *p, int i, int k)
{
    return of(p, i)->group && of(p, i)->group == of(p, k)->group;
}

static bool on_stream(const struct note *a)
{
    return a->kind <= WAIT && a->kind != MEET;
}

static int order_of(struct orders *o, const struct note *a)
{
    for (int i = 0; i < o->n; i++)
        if (o->at[i].of == a->of && o->at[i].id == a->id && o->at[i].channel == a->channel &&
            o->at[i].from == a->from && o->at[i].to == a->to)
            return i;
    if (o->n == o->cap) {
        o->cap = o->cap ? 2 * o->cap : 16;
        o->at = realloc(o->at, (size_t)o->cap * sizeof *o->at);
        if (!o->at)
            abort();
    }
    o->at[o->n] = (struct order){.of = a->of, .id = a->id, .channel = a->channel, .from = a->from, .to = a->to};
    return o->n++;
}

static void number_call(struct orders *o, struct player *p, int rank, int i)
{
    p->order[i] = order_of(o, of(p, i));
    struct order *x = &o->at[p->order[i]];
    const int n = x->calls[rank].n++;
    if (n == x->calls[rank].cap) {
        x->calls[rank].cap = n ? 2 * n : 64;
        x->calls[rank].at = realloc(x->calls[rank].at, (size_t)x->calls[rank].cap * sizeof(int));
        if (!x->calls[rank].at)
            abort();
    }
    x->calls[rank].at[n] = i;
    p->number[i] = n;
}

/* The last of notes before i that `is` says of, and that is not of its group; -1: none. */
static int last_before(const struct player *p, int i, bool (*is)(const struct note *k, const struct note *i))
{
    for (int k = i - 1; k >= 0; k--)
        if (is(of(p, k), of(p, i)) && !same_group(p, i, k))
            return k;
    return -1;
}

static bool same_stream(const struct note *k, const struct note *i)
{
    return on_stream(k) && k->stream == i->stream;
}

static bool same_channel(const struct note *k, const struct note *i)
{
    return k->kind == CALL && order_same_place(k, i);
}

static bool any_stream(const struct note *k, const struct note *i)
{
    (void)i;
    return on_stream(k);
}

static void player_init(struct player *p, const struct list *notes, struct orders *o, int rank, bool one_queue)
{
    const size_t n = (size_t)notes->n + 1;
    *p = (struct player){.notes = notes,
                         .done = calloc(n, sizeof(bool)),
                         .here = calloc(n, sizeof(bool)),
                         .order = calloc(n, sizeof(int)),
                         .number = calloc(n, sizeof(int)),
                         .ahead = calloc(n, sizeof(int)),
                         .before = calloc(n, sizeof(int))};
    for (int i = 0; i < notes->n; i++) {
        if (calls(of(p, i)))
            number_call(o, p, rank, i);
        if (on_stream(of(p, i)) || of(p, i)->kind == HOST_STREAM)
            p->ahead[i] = last_before(p, i, one_queue ? any_stream : same_stream);
        if (of(p, i)->kind == CALL)
            p->before[i] = last_before(p, i, same_channel);
    }
}

static void player_end(struct player *p)
{
    free(p->done);
    free(p->here);
    free(p->order);
    free(p->number);
    free(p->ahead);
    free(p->before);
}

static void orders_end(struct orders *o)
{
    for (int i = 0; i < o->n; i++)
        for (int r = 0; r < ORDER_RANKS_MAX; r++)
            free(o->at[i].calls[r].at);
    free(o->at);
}

/* What is played. */
struct play {
    struct player players[ORDER_RANKS_MAX];
    int ranks;
    struct orders orders;
};

/* The note of rank r that is the same call as note i of rank `me`; -1: its host has not come to one. */
static int same_call(const struct play *y, int r, int me, int i)
{
    const struct player *p = &y->players[me];
    const struct order *o = &y->orders.at[p->order[i]];
    const int k = p->number[i] < o->calls[r].n ? o->calls[r].at[p->number[i]] : -1;
    return k <= y->players[r].host ? k : -1;
}

/* Has note k, the last of its group, happened, and the group with it? So did all before it, then. -1: none. */
static bool is_over(const struct player *p, int k)
{
    bool over = k < 0 || p->done[k];
    for (int i = k - 1; over && i >= 0 && same_group(p, i, k); i--)
        over = p->done[i];
    return over;
}

/* Is every rank of the group at this call of rank `me`? */
static int all_here(struct play *y, int me, int i, bool *ret, struct err *e)
{
    const struct note *a = of(&y->players[me], i);
    y->players[me].here[i] = true;
    *ret = true;
    for (int r = 0; r < y->ranks; r++) {
        if (!(a->members & 1u << r))
            continue;
        const int k = same_call(y, r, me, i);
        *ret = *ret && k >= 0 && y->players[r].here[k];
        const struct note *b = k < 0 ? a : of(&y->players[r], k);
        if (strcmp(b->what, a->what) || b->n != a->n)
            return err_set(e, -EPROTO, "call %d of a group: rank %d has %s of %zu, rank %d %s of %zu",
                           y->players[me].number[i], me, a->what, a->n, r, b->what, b->n);
    }
    return 0;
}

static int play_stream(struct play *y, int me, bool *ret_moved, struct err *e)
{
    struct player *p = &y->players[me];
    while (p->settled < p->host && (p->done[p->settled] || !on_stream(of(p, p->settled))))
        p->settled++;
    for (int i = p->settled; i < p->host; i++) {
        const struct note *a = of(p, i);
        bool may = true;
        if (!on_stream(a) || p->done[i] || !is_over(p, p->ahead[i]) || (a->kind == CALL && !is_over(p, p->before[i])))
            continue;
        if (a->kind == WAIT)
            may = a->mark < 0 || p->done[a->mark];
        if (a->kind == CALL)
            TRY(all_here(y, me, i, &may, e));
        p->done[i] = may;
        *ret_moved |= may;
    }
    return 0;
}

/* Has the host of this message's sender been there? */
static bool sent(const struct play *y, int me, int i)
{
    const int from = of(&y->players[me], i)->from, k = same_call(y, from, me, i);
    return k >= 0 && k < y->players[from].host;
}

/* Has all that was enqueued happened, on whatever stream? */
static bool all_done(const struct player *p, int i)
{
    for (int k = p->settled; k < i; k++)
        if (on_stream(of(p, k)) && !p->done[k])
            return false;
    return true;
}

/* Have all hosts come to the first call of these ranks? */
static bool all_come(const struct play *y, int me, const struct note *a)
{
    for (int r = 0; r < y->ranks; r++) {
        const struct player *p = &y->players[r];
        bool came = r == me || !(a->members & 1u << r);
        for (int i = 0; i < p->host && !came; i++)
            came = of(p, i)->kind == COME && order_same_place(of(p, i), a) && of(p, i)->from == a->from &&
                   of(p, i)->to == a->to && strcmp(of(p, i)->what, a->what) == 0;
        if (!came)
            return false;
    }
    return true;
}

static int play_host(struct play *y, int me, bool *ret_moved, struct err *e)
{
    struct player *p = &y->players[me];
    while (p->host < p->notes->n) {
        const int i = p->host;
        const struct note *a = of(p, i);
        bool may = true;
        if (a->kind == HOST_MARK)
            may = a->mark < 0 || p->done[a->mark];
        if (a->kind == HOST_STREAM)
            may = is_over(p, p->ahead[i]);
        if (a->kind == MEET)
            TRY(all_here(y, me, i, &may, e));
        if (a->kind == TAKE)
            may = sent(y, me, i);
        if (a->kind == HOST_ALL)
            may = all_done(p, i);
        if (a->kind == CONNECT)
            may = all_come(y, me, a);
        if (!may)
            return 0;
        p->host++;
        *ret_moved = true;
    }
    return 0;
}

static int stuck(const struct play *y, struct err *e)
{
    char text[200] = "";
    for (int r = 0; r < y->ranks; r++) {
        const struct player *p = &y->players[r];
        if (p->host < p->notes->n)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%srank %d at %d of %d: %s", *text ? "; " : "", r,
                     p->host, p->notes->n, of(p, p->host)->what);
    }
    return err_set(e, -EDEADLK, "ranks wait for each other: %s", text);
}

static bool finished(const struct play *y)
{
    for (int r = 0; r < y->ranks; r++) {
        const struct player *p = &y->players[r];
        if (p->host < p->notes->n)
            return false;
        for (int i = 0; i < p->notes->n; i++)
            if (of(p, i)->kind == CALL && !p->done[i])
                return false;
    }
    return true;
}

int order_play(struct order_record *const *records, int ranks, bool one_queue, struct err *e)
{
    struct play y = {.ranks = ranks};
    bool moved = true;
    int rc = 0;
    for (int r = 0; r < ranks; r++)
        player_init(&y.players[r], order_notes(records[r]), &y.orders, r, one_queue);
    while (moved && rc == 0) {
        moved = false;
        for (int r = 0; r < ranks && rc == 0; r++) {
            rc = play_host(&y, r, &moved, e);
            if (rc == 0)
                rc = play_stream(&y, r, &moved, e);
        }
    }
    if (rc == 0 && !finished(&y))
        rc = stuck(&y, e);
    for (int r = 0; r < ranks; r++)
        player_end(&y.players[r]);
    orders_end(&y.orders);
    return rc;
}
