/* Sends the parts of the state to their owners in another layout. */
#include "worker/state/reshard.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/reshard_plan.h"
#include "worker/state/state.h"

/* --- what a rank updates, as elements of the whole model */

struct spans {
    struct reshard_span *v;
    size_t n, cap;
};

/* The first element of a parameter of the whole model. */
static uint64_t first_of(const struct program *whole, const char *name)
{
    uint64_t at = 0;
    for (int i = 0; i < whole->nparams && strcmp(whole->params[i].name, name) != 0; i++) {
        const struct param *q = &whole->params[i];
        uint64_t n = q->role == PARAM_TRAIN;
        for (int k = 0; k < q->ndim; k++)
            n *= (uint64_t)param_whole_size(q, k);
        at += n;
    }
    return at;
}

/* Of a parameter, what an owned range has of it. */
static int add_range(struct spans *s, const struct param *q, uint64_t base, struct ownership_range r, struct err *e)
{
    for (size_t at = r.first, n; at < r.end; at += n) {
        const struct param_run run = param_run_at(q, at - q->offset);
        n = run.n < r.end - at ? run.n : r.end - at;
        TRY(ARRAY_GROW(s->v, s->cap, s->n + 1, "parts of a state", e));
        s->v[s->n++] = (struct reshard_span){.first = base + run.whole, .n = n, .at = at};
    }
    return 0;
}

static int by_first(const void *a, const void *b)
{
    const struct reshard_span *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static int list_spans(struct spans *ret, const struct state *s, struct err *e)
{
    const struct ownership *own = s->own;
    for (int i = 0; i < s->program->nparams; i++) {
        const struct param *q = &s->program->params[i];
        const uint64_t base = q->role == PARAM_TRAIN ? first_of(s->whole, q->name) : 0;
        for (int k = 0; k < own->nowned && q->role == PARAM_TRAIN; k++)
            TRY(add_range(ret, q, base, ownership_clip(own, k, q->offset, q->offset + q->count), e));
    }
    if (ret->n > 0)
        qsort(ret->v, ret->n, sizeof *ret->v, by_first);
    return 0;
}

/* --- everybody's */

struct lists {
    struct reshard_list *of; /* (world) */
    struct reshard_span *all;
};

static void lists_close(struct lists *l)
{
    free(l->of);
    free(l->all);
}

static int gather_spans(struct lists *l, const struct spans *mine, const size_t *bytes, struct comm *c, struct err *e)
{
    TRY(c->ops->all_gather_v(c, COMM_CONTROL, mine->v, l->all, bytes, NULL, e));
    const struct reshard_span *at = l->all;
    for (int r = 0; r < c->world; r++) {
        l->of[r] = (struct reshard_list){.spans = at, .n = bytes[r] / sizeof *at};
        at += l->of[r].n;
    }
    return 0;
}

static int gather_lists(struct lists *ret, const struct spans *mine, struct comm *c, struct err *e)
{
    const size_t n = mine->n * sizeof *mine->v;
    size_t *bytes = calloc((size_t)c->world, sizeof *bytes), sum = 1;
    ret->of = calloc((size_t)c->world, sizeof *ret->of);
    int rc = bytes && ret->of ? 0 : err_errno(e, ENOMEM, "parts of the state of %d ranks", c->world);
    if (rc == 0)
        rc = c->ops->all_gather(c, COMM_CONTROL, &n, bytes, sizeof n, NULL, e);
    for (int r = 0; r < c->world && rc == 0; r++)
        sum += bytes[r];
    if (rc == 0 && !(ret->all = malloc(sum)))
        rc = err_errno(e, ENOMEM, "parts of the state of %d ranks", c->world);
    if (rc == 0)
        rc = gather_spans(ret, mine, bytes, c, e);
    free(bytes);
    return rc;
}

/* --- moving */

enum { ARENAS = 4 }; /* parameters, momentum, second moments, averages */

struct way {
    const struct state *from;
    struct state *to;
    struct comm *c;
    const struct spans *has, *wants;
    char *room;
};

/* Where element i of the arena of parameters is in each of the arenas; NULL: there is no such arena, or it is frozen
 * and has no moments, or averages are whole on every rank. */
static void places(const struct state *s, size_t i, char *ret[ARENAS])
{
    const size_t param = ownership_place(s->own, OWNERSHIP_PARAMS, i),
                 moment = ownership_place(s->own, OWNERSHIP_MOMENTS, i);
    const bool trained = i < s->own->n_train, moves = s->ema_params && ownership_is_cut(s->own, OWNERSHIP_AVERAGES);
    ret[0] = (char *)s->params + state_bytes(s, param);
    ret[1] = trained ? (char *)s->momentum + state_bytes(s, moment) : NULL;
    ret[2] = trained && s->second ? (char *)s->second + state_bytes(s, moment) : NULL;
    ret[3] = moves ? (char *)s->ema_params + state_bytes(s, ownership_place(s->own, OWNERSHIP_AVERAGES, i)) : NULL;
}

/* The element of the arena that is `element` of the model: one of a span. */
static size_t element_of(const struct spans *s, uint64_t element)
{
    size_t low = 0, high = s->n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (s->v[middle].first <= element)
            low = middle;
        else
            high = middle;
    }
    return (size_t)(s->v[low].at + (element - s->v[low].first));
}

/* Into the buffer, arena after arena. *ret: bytes. */
static int pack(const struct way *w, const struct reshard_transfer *t, size_t *ret, struct err *e)
{
    const size_t bytes = state_bytes(w->from, t->n);
    char *from[ARENAS];
    *ret = 0;
    places(w->from, element_of(w->has, t->first), from);
    for (int a = 0; a < ARENAS; a++) {
        if (!from[a])
            continue;
        TRY(w->from->device->ops->download(w->from->device, w->room + *ret, from[a], bytes, e));
        *ret += bytes;
    }
    return 0;
}

static int unpack(const struct way *w, const struct reshard_transfer *t, struct err *e)
{
    const size_t bytes = state_bytes(w->to, t->n);
    size_t at = 0;
    char *to[ARENAS];
    places(w->to, element_of(w->wants, t->first), to);
    for (int a = 0; a < ARENAS; a++) {
        if (!to[a])
            continue;
        TRY(w->to->device->ops->upload(w->to->device, to[a], w->room + at, bytes, e));
        at += bytes;
    }
    return 0;
}

static int receive(const struct way *w, const struct reshard_transfer *t, struct err *e)
{
    char *to[ARENAS];
    size_t bytes = 0;
    places(w->to, element_of(w->wants, t->first), to);
    for (int a = 0; a < ARENAS; a++)
        bytes += to[a] ? state_bytes(w->to, t->n) : 0;
    TRY(comm_recv(w->c, COMM_CONTROL, w->room, bytes, t->from, NULL, e));
    return unpack(w, t, e);
}

static int move(const struct way *w, const struct reshard_transfer *t, struct err *e)
{
    struct comm_request *sent;
    size_t bytes;
    if (w->c->rank != t->from)
        return w->c->rank == t->to ? receive(w, t, e) : 0;
    TRY(pack(w, t, &bytes, e));
    if (t->from == t->to)
        return unpack(w, t, e);
    TRY(w->c->ops->isend(w->c, COMM_CONTROL, w->room, bytes, t->to, NULL, &sent, e));
    return comm_wait(sent, e);
}

static int move_all(const struct way *w, const struct lists *has, const struct lists *wants, size_t most, struct err *e)
{
    struct reshard_transfer *all;
    size_t n;
    int rc = reshard_plan(has->of, wants->of, w->c->world, most, &all, &n, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = move(w, &all[i], e);
    free(all);
    return rc;
}

int reshard(const struct state *from, struct state *to, struct comm *c, struct err *e)
{
    const size_t most = RESHARD_ROOM / (ARENAS * state_bytes(to, 1));
    struct spans has = {0}, wants = {0};
    struct lists all_have = {0}, all_want = {0};
    const struct way w = {.from = from, .to = to, .c = c, .has = &has, .wants = &wants, .room = malloc(RESHARD_ROOM)};
    int rc = w.room ? 0 : err_errno(e, ENOMEM, "give the state to other owners");
    if (rc == 0 && from)
        rc = list_spans(&has, from, e);
    if (rc == 0)
        rc = list_spans(&wants, to, e);
    if (rc == 0)
        rc = gather_lists(&all_have, &has, c, e);
    if (rc == 0)
        rc = gather_lists(&all_want, &wants, c, e);
    if (rc == 0)
        rc = move_all(&w, &all_have, &all_want, most, e);
    lists_close(&all_have);
    lists_close(&all_want);
    free(has.v);
    free(wants.v);
    free(w.room);
    return rc;
}
