/* Sends the state to ranks that do not have it. */
#include "worker/state/hand_over.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/holders.h"
#include "worker/state/state.h"

#define ROOM ((size_t)4 << 20) /* bytes on their way at once */

struct way {
    struct state *s;
    struct comm *c;
    const bool *here;
    enum hand_over_what what;
    int from, to;
    char *room;
};

static int send_bytes(const struct way *w, const char *at, size_t bytes, struct err *e)
{
    struct comm_request *sent;
    TRY(w->s->device->ops->download(w->s->device, w->room, at, bytes, e));
    TRY(w->c->ops->isend(w->c, COMM_CONTROL, w->room, bytes, w->to, NULL, &sent, e));
    return comm_wait(sent, e);
}

static int take_bytes(const struct way *w, char *at, size_t bytes, struct err *e)
{
    TRY(comm_recv(w->c, COMM_CONTROL, w->room, bytes, w->from, NULL, e));
    return w->s->device->ops->upload(w->s->device, at, w->room, bytes, e);
}

static bool is_mine(const struct way *w)
{
    return w->c->rank == w->from || w->c->rank == w->to;
}

/* n elements of an arena, from `first` of its memory on; NULL: there is none. */
static int move(const struct way *w, void *arena, size_t first, size_t n, struct err *e)
{
    char *p = arena ? (char *)arena + state_bytes(w->s, first) : NULL;
    if (!arena)
        return 0;
    for (size_t left = state_bytes(w->s, n), bytes; left > 0; left -= bytes, p += bytes) {
        bytes = left < ROOM ? left : ROOM;
        TRY(w->c->rank == w->from ? send_bytes(w, p, bytes, e) : take_bytes(w, p, bytes, e));
    }
    return 0;
}

/* Elements [r.first, r.end) of the arenas of parameters, all of one owned range or whole. */
static int move_range(const struct way *w, struct ownership_range r, struct err *e)
{
    const struct state *s = w->s;
    const struct ownership *own = s->own;
    const size_t n = r.end - r.first;
    if (n == 0 || !is_mine(w))
        return 0;
    if (w->what != HAND_OVER_UPDATED)
        return move(w, s->ema_params, ownership_place(own, OWNERSHIP_AVERAGES, r.first), n, e);
    TRY(move(w, s->params, ownership_place(own, OWNERSHIP_PARAMS, r.first), n, e));
    if (r.first >= own->n_train) /* frozen */
        return 0;
    TRY(move(w, s->momentum, ownership_place(own, OWNERSHIP_MOMENTS, r.first), n, e));
    return move(w, s->second, ownership_place(own, OWNERSHIP_MOMENTS, r.first), n, e);
}

/* Member `part`'s part of a piece, which the rank keeps as its owner or as its second owner. */
static int move_part(struct way *w, const struct layout_ranks *g, const struct ownership_piece *p, int part,
                     struct err *e)
{
    w->from = holders_of_part(g, p->distance, part, w->here);
    return move_range(w, ownership_part(p, part), e);
}

/* g: of the piece, as rank `to` is in it. */
static int move_piece(struct way *w, const struct layout_ranks *g, const struct ownership_piece *p, struct err *e)
{
    const struct ownership *own = w->s->own;
    const bool cut = w->what == HAND_OVER_UPDATED || ownership_is_cut(own, OWNERSHIP_AVERAGES);
    w->from = holders_of_whole(g, w->here);
    if (p->part == 0 || !cut)
        return move_range(w, (struct ownership_range){.first = p->first, .end = p->end}, e);
    if (w->what == HAND_OVER_WHOLE)
        return 0;
    TRY(move_part(w, g, p, g->index, e));
    return p->distance ? move_part(w, g, p, (g->index + g->count - p->distance) % g->count, e) : 0;
}

/* Ranks of a group find the same pieces of it in the same order, wherever they lie in their arenas. */
static int move_pieces(struct way *w, struct err *e)
{
    const struct ownership *own = w->s->own;
    for (int k = 0; k < own->npieces; k++) {
        const struct ownership_piece *p = &own->pieces[k];
        const struct layout_ranks mine = ownership_group(own, p->group),
                                  g = layout_group(&own->layout, p->group, w->to);
        if (mine.first == g.first)
            TRY(move_piece(w, &g, p, e));
    }
    return 0;
}

static int move_statistics(struct way *w, struct err *e)
{
    const struct layout_ranks g = layout_group(&w->s->own->layout, LAYOUT_BATCH, w->to);
    const size_t n = program_statistics(w->s->program);
    w->from = holders_of_whole(&g, w->here);
    if (!is_mine(w))
        return 0;
    TRY(move(w, w->s->stats, 0, n, e));
    return move(w, w->s->ema_stats, 0, n, e);
}

int hand_over(struct state *s, struct comm *c, const bool *here, enum hand_over_what what, struct err *e)
{
    struct way w = {.s = s, .c = c, .here = here, .what = what, .room = malloc(ROOM)};
    int rc = w.room ? 0 : err_errno(e, ENOMEM, "hand over the state");
    for (w.to = 0; w.to < c->world && rc == 0; w.to++) {
        if (here[w.to])
            continue;
        rc = move_pieces(&w, e);
        if (rc == 0 && what != HAND_OVER_UPDATED)
            rc = move_statistics(&w, e);
    }
    free(w.room);
    return rc;
}
