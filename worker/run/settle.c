#include "worker/run/settle.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

#define PIECE ((size_t)4 << 20) /* bytes on their way at once */

struct standing {
    int64_t updates, epoch; /* -1: it has no state */
};

static bool is_before(const struct standing *a, const struct standing *b)
{
    return a->updates != b->updates ? a->updates < b->updates : a->epoch < b->epoch;
}

static int furthest(const struct standing *all, int world)
{
    int best = 0;
    for (int r = 1; r < world; r++)
        if (is_before(&all[best], &all[r]))
            best = r;
    return best;
}

/* --- the state, from one rank to another */

static int send_piece(struct state *s, struct comm *c, char *at, size_t bytes, int peer, void *room, struct err *e)
{
    struct comm_request *sent;
    TRY(s->device->ops->download(s->device, room, at, bytes, e));
    TRY(c->ops->isend(c, COMM_CONTROL, room, bytes, peer, NULL, &sent, e));
    return comm_wait(sent, e);
}

static int take_piece(struct state *s, struct comm *c, char *at, size_t bytes, int peer, void *room, struct err *e)
{
    TRY(comm_recv(c, COMM_CONTROL, room, bytes, peer, NULL, e));
    return s->device->ops->upload(s->device, at, room, bytes, e);
}

/* One end of the way from `from` to `to`. */
static int hand_over(struct state *s, struct comm *c, int from, int to, void *room, struct err *e)
{
    struct state_arena arenas[STATE_ARENAS];
    state_arenas(s, arenas);
    for (int i = 0; i < STATE_ARENAS; i++) {
        const size_t bytes = arenas[i].at ? state_bytes(s, arenas[i].n) : 0;
        for (size_t at = 0, n; at < bytes; at += n) {
            char *p = (char *)arenas[i].at + at;
            n = bytes - at < PIECE ? bytes - at : PIECE;
            TRY(c->rank == from ? send_piece(s, c, p, n, to, room, e) : take_piece(s, c, p, n, from, room, e));
        }
    }
    return 0;
}

/* Who is behind is given the state, one after another. */
static int level(struct state *s, struct comm *c, const struct standing *all, int from, bool *has, struct err *e)
{
    void *room = malloc(PIECE);
    int rc = room ? 0 : err_errno(e, ENOMEM, "hand over the state");
    for (int r = 0; r < c->world && rc == 0; r++) {
        if (!is_before(&all[r], &all[from]) || (c->rank != from && c->rank != r))
            continue;
        if (c->rank == r) {
            *has = false;
            s->version++;
        }
        rc = hand_over(s, c, from, r, room, e);
        *has = *has || rc == 0;
    }
    free(room);
    return rc;
}

int settle(struct state *state, struct comm *c, bool *has, struct settled *s, struct err *e)
{
    struct standing *all = calloc((size_t)c->world, sizeof *all);
    const struct standing mine = {.updates = *has ? s->at.updates : -1, .epoch = *has ? s->at.epoch : -1};
    int rc = all ? 0 : err_errno(e, ENOMEM, "settle on a step");
    if (rc == 0)
        rc = c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
    const int from = rc == 0 ? furthest(all, c->world) : 0;
    const bool any = rc == 0 && all[from].updates >= 0;
    if (any)
        rc = c->ops->broadcast(c, COMM_CONTROL, s, sizeof *s, from, NULL, e);
    if (any && rc == 0) {
        rc = level(state, c, all, from, has, e);
        state->loss_scale = s->scale;
    }
    free(all);
    if (rc == 0 && !any && state->version > 1) /* its initial values are gone, too: a process that begins has them */
        return err_set(e, -ESTALE, "the ranks that had the state are gone, and this one was being given it");
    return rc < 0 ? rc : any;
}
