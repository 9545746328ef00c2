/* Lists the tensors of a checkpoint, and what this rank has of each. */
#include "worker/snapshot/slices.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

/* Slices that lie side by side, or nearly, in an arena, and in the copy. */
struct span {
    int arena; /* of slices */
    const char *device;
    size_t at, bytes;
};

/* --- the list of tensors */

/* Where a kind of tensor lies. */
struct part {
    int arena_of_state; /* which one */
    const char *prefix;
    enum slices_kind kind;
    enum param_role role;
    enum ownership_arena owned_as; /* of PARAM_TRAIN */
    char *arena;                   /* NULL: the state has none */
    char *average;                 /* the arena of its averages, or NULL */
};
enum { MODEL_PARTS = 2, PARTS = 6 };

static void list_parts(const struct state *s, struct part out[PARTS])
{
    const struct part all[PARTS] = {
        {0, "", SLICES_PARAMS, PARAM_TRAIN, OWNERSHIP_PARAMS, s->params, s->ema_params},
        {1, "", SLICES_STATISTICS, PARAM_STAT, OWNERSHIP_PARAMS, s->stats, s->ema_stats},
        {2, "momentum.", SLICES_MOMENTS, PARAM_TRAIN, OWNERSHIP_MOMENTS, s->momentum, NULL},
        {3, "second.", SLICES_MOMENTS, PARAM_TRAIN, OWNERSHIP_MOMENTS, s->second, NULL},
        {4, "ema.", SLICES_AVERAGES, PARAM_TRAIN, OWNERSHIP_AVERAGES, s->ema_params, NULL},
        {5, "ema.", SLICES_AVERAGES, PARAM_STAT, OWNERSHIP_AVERAGES, s->ema_stats, NULL},
    };
    memcpy(out, all, sizeof all);
}

struct listed { /* while the list is made */
    struct ckpt_tensor t;
    struct part part;
    const struct param *param; /* of the whole model */
};

static struct listed whole_tensor(const struct state *s, const struct part *part, const struct param *q)
{
    struct listed l = {.t = {.dtype = s->real, .ndim = q->ndim}, .part = *part, .param = q};
    snprintf(l.t.name, sizeof l.t.name, "%s%s", part->prefix, q->name);
    for (int d = 0; d < q->ndim; d++)
        l.t.shape[d] = param_whole_size(q, d);
    return l;
}

/* torchvision keeps a step counter beside every running mean. */
static bool add_counter(const struct param *q, struct listed *l)
{
    const char *tail = strstr(q->name, "running_mean");
    if (!tail)
        return false;
    *l = (struct listed){.t = {.dtype = DT_I64}, .part = {.kind = SLICES_COUNTER, .role = PARAM_STAT}, .param = q};
    snprintf(l->t.name, sizeof l->t.name, "%.*snum_batches_tracked", (int)(tail - q->name), q->name);
    return true;
}

/* parts [first, end), sorted by name; how many. */
static size_t list_file(const struct state *s, const struct part *parts, int first, int end, struct listed *v)
{
    const struct program *p = s->whole;
    size_t n = 0;
    for (int k = first; k < end; k++)
        for (int i = 0; i < p->nparams && parts[k].arena; i++) {
            const struct param *q = &p->params[i];
            if (q->role != parts[k].role || (q->frozen && parts[k].kind == SLICES_MOMENTS))
                continue;
            v[n++] = whole_tensor(s, &parts[k], q);
            n += parts[k].kind == SLICES_STATISTICS && add_counter(q, &v[n]);
        }
    return n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->t.name, ((const struct listed *)b)->t.name);
}

/* --- what this rank holds */

/* A whole parameter is one line; one that ranks share is a block of the whole. */
static struct piece block_of(const struct param *q)
{
    int64_t inner = 1;
    if (!q->sharded)
        return (struct piece){.line = (int64_t)q->count, .cols = (int64_t)q->count};
    for (int d = q->shard_dim + 1; d < q->ndim; d++)
        inner *= q->shape[d];
    return (struct piece){
        .line = q->shard_whole * inner, .col = q->shard_first * inner, .cols = q->shape[q->shard_dim] * inner};
}

struct room { /* for slices */
    size_t cap;
};

static int add_slice(struct slices *s, struct room *room, struct slice v, struct err *e)
{
    TRY(ARRAY_GROW(s->held, room->cap, s->n_held + 1, "slices", e));
    v.copied = SIZE_MAX;
    s->held[s->n_held++] = v;
    return 0;
}

static char *element(const struct state *s, char *arena, size_t i)
{
    return arena ? arena + state_bytes(s, i) : NULL;
}

/* What [r.first, r.end) of the arena has of a parameter. */
static int add_range(struct slices *s, struct room *room, int tensor, const struct listed *l, struct ownership_range r,
                     bool saved, struct err *e)
{
    const struct ownership *own = s->state->own;
    const struct param *q = l->param;
    const size_t first = r.first > q->offset ? r.first : q->offset,
                 end = r.end < q->offset + q->count ? r.end : q->offset + q->count;
    if (first >= end)
        return 0;
    for (size_t i = first - q->offset, n; i < end - q->offset; i += n) {
        const size_t at = ownership_place(own, l->part.owned_as, q->offset + i), left = end - q->offset - i;
        struct slice v = {.piece = block_of(q), .arena = l->part.arena_of_state};
        n = left;
        if (q->shard_more) { /* queries, keys and values one by one */
            const struct param_run run = param_run_at(q, i);
            n = run.n < left ? run.n : left;
            v.piece.col = (int64_t)(run.whole - i);
            v.piece.cols = (int64_t)(i + run.n);
        }
        v.piece.tensor = tensor;
        v.piece.saved = saved;
        v.piece.first = (int64_t)i;
        v.piece.end = (int64_t)(i + n);
        v.memory = element(s->state, l->part.arena, at);
        v.average = element(s->state, l->part.average, at); /* held as the parameters are */
        TRY(add_slice(s, room, v, e));
    }
    return 0;
}

/* Of one piece of the arena (ownership.h). */
static int add_owned(struct slices *s, struct room *room, int tensor, const struct listed *l,
                     const struct ownership_piece *p, struct err *e)
{
    const struct ownership *own = s->state->own;
    const bool cut = p->part > 0 && ownership_is_cut(own, l->part.owned_as);
    const struct ownership_range all = {.first = p->first, .end = p->end};
    const bool copy = p->tied && own->copy.first < own->copy.end;
    TRY(add_range(s, room, tensor, l, cut ? p->mine : all, (cut || p->index == 0) && !copy, e));
    return cut ? add_range(s, room, tensor, l, p->second, false, e) : 0;
}

static int add_trained(struct slices *s, struct room *room, int tensor, const struct listed *l, struct err *e)
{
    const struct ownership *own = s->state->own;
    const struct param *q = l->param;
    for (int k = 0; k < own->npieces; k++) {
        struct ownership_piece p = own->pieces[k];
        if (p.end <= q->offset || p.first >= q->offset + q->count)
            continue;
        if (!ownership_is_cut(own, l->part.owned_as)) { /* one piece of it, whatever it is sent in */
            p.first = q->offset;
            p.end = q->offset + q->count;
            return add_owned(s, room, tensor, l, &p, e);
        }
        TRY(add_owned(s, room, tensor, l, &p, e));
    }
    return 0;
}

/* Every rank of a stage holds its statistics and counters. */
static int add_statistic(struct slices *s, struct room *room, int tensor, const struct listed *l, struct err *e)
{
    const int64_t n = l->part.kind == SLICES_COUNTER ? 1 : (int64_t)l->param->count;
    const struct slice v = {.piece = {.tensor = tensor,
                                      .saved = ownership_group(s->state->own, LAYOUT_BATCH).index == 0,
                                      .line = n,
                                      .cols = n,
                                      .end = n},
                            .arena = l->part.arena_of_state,
                            .memory = element(s->state, l->part.arena, l->param->offset),
                            .average = element(s->state, l->part.average, l->param->offset)};
    return n > 0 ? add_slice(s, room, v, e) : 0;
}

static int fill(struct slices *s, const struct listed *v, struct err *e)
{
    const struct program *p = s->state->program;
    struct room room = {0};
    for (size_t i = 0; i < s->n; i++) {
        const int mine = program_find_param(p, v[i].param->name);
        struct listed l = v[i];
        s->tensors[i] = l.t;
        s->kinds[i] = l.part.kind;
        if (mine < 0)
            continue; /* of another stage */
        l.param = &p->params[mine];
        TRY(l.part.role == PARAM_TRAIN ? add_trained(s, &room, (int)i, &l, e) : add_statistic(s, &room, (int)i, &l, e));
    }
    return 0;
}

int slices_init(struct slices *s, struct state *state, struct err *e)
{
    struct part parts[PARTS];
    struct listed *v = calloc((size_t)state->whole->nparams * 5 + 1, sizeof *v);
    *s = (struct slices){.state = state};
    if (!v)
        return err_errno(e, ENOMEM, "tensors of a checkpoint");
    list_parts(state, parts);
    s->n_model = list_file(state, parts, 0, MODEL_PARTS, v);
    s->n = s->n_model + list_file(state, parts, MODEL_PARTS, PARTS, v + s->n_model);
    qsort(v, s->n_model, sizeof *v, by_name);
    qsort(v + s->n_model, s->n - s->n_model, sizeof *v, by_name);
    s->tensors = calloc(s->n + 1, sizeof *s->tensors);
    s->kinds = calloc(s->n + 1, sizeof *s->kinds);
    int rc = s->tensors && s->kinds ? fill(s, v, e) : err_errno(e, ENOMEM, "tensors of a checkpoint");
    free(v);
    if (rc < 0)
        slices_finish(s);
    return rc;
}

void slices_finish(struct slices *s)
{
    free(s->tensors);
    free(s->kinds);
    free(s->held);
    free(s->copy);
    free(s->spans);
    *s = (struct slices){0};
}

int64_t slices_count(const struct slices *s, size_t tensor)
{
    int64_t n = 1;
    for (int d = 0; d < s->tensors[tensor].ndim; d++)
        n *= s->tensors[tensor].shape[d];
    return n;
}

size_t slices_size(const struct slices *s, size_t tensor)
{
    return dtype_size(s->tensors[tensor].dtype);
}

int64_t slices_bytes(const struct slices *s)
{
    int64_t sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += slices_count(s, i) * (int64_t)slices_size(s, i);
    return sum;
}

/* --- the copy */

static size_t bytes_of(const struct slices *s, const struct slice *v)
{
    return (size_t)piece_count(&v->piece) * slices_size(s, (size_t)v->piece.tensor);
}

/* The same in each process, wherever its arenas are. */
static int by_place(const void *a, const void *b)
{
    const struct slice *x = *(const struct slice *const *)a, *y = *(const struct slice *const *)b;
    if (x->arena != y->arena)
        return x->arena < y->arena ? -1 : 1;
    return x->memory < y->memory ? -1 : x->memory > y->memory;
}

/* The slice goes behind the last span, or makes it longer: what lies between two parameters is copied along. */
static void extend(struct slices *s, struct slice *v)
{
    struct span *last = s->n_spans && s->spans[s->n_spans - 1].arena == v->arena ? &s->spans[s->n_spans - 1] : NULL;
    const size_t gap = last ? (size_t)(v->memory - (last->device + last->bytes)) : SIZE_MAX;
    if (gap > state_bytes(s->state, OWNERSHIP_ALIGN)) {
        last = &s->spans[s->n_spans++];
        *last = (struct span){.arena = v->arena, .device = v->memory, .at = s->copy_bytes};
    }
    v->copied = last->at + (size_t)(v->memory - last->device);
    last->bytes = (size_t)(v->memory - last->device) + bytes_of(s, v);
    s->copy_bytes = last->at + last->bytes;
}

int slices_plan_copy(struct slices *s, const bool *wanted, struct err *e)
{
    struct slice **v = calloc(s->n_held + 1, sizeof(struct slice *));
    size_t n = 0;
    s->spans = calloc(s->n_held + 1, sizeof *s->spans);
    if (!v || !s->spans) {
        free(v);
        return err_errno(e, ENOMEM, "list of %zu slices", s->n_held);
    }
    for (size_t i = 0; i < s->n_held; i++)
        if (wanted[i] && s->held[i].memory)
            v[n++] = &s->held[i];
    qsort(v, n, sizeof *v, by_place);
    for (size_t i = 0; i < n; i++)
        extend(s, v[i]);
    free(v);
    return 0;
}

int slices_reserve(struct slices *s, const bool *wanted, struct err *e)
{
    TRY(slices_plan_copy(s, wanted, e));
    s->copy = malloc(s->copy_bytes + 1);
    if (!s->copy)
        return err_errno(e, ENOMEM, "host copy of %zu bytes of the training state", s->copy_bytes);
    memset(s->copy, 0, s->copy_bytes); /* the pages are taken now, not in the first save */
    return 0;
}

int slices_copy(struct slices *s, struct err *e)
{
    struct device *d = s->state->device;
    for (size_t i = 0; i < s->n_spans; i++)
        TRY(d->ops->download(d, s->copy + s->spans[i].at, s->spans[i].device, s->spans[i].bytes, e));
    return 0;
}

int slices_copy_back(struct slices *s, struct err *e)
{
    struct device *d = s->state->device;
    s->state->version++;
    for (size_t i = 0; i < s->n_held; i++) { /* not whole spans: between two slices lies what is not the state's */
        const struct slice *v = &s->held[i];
        if (v->copied != SIZE_MAX)
            TRY(d->ops->upload(d, v->memory, s->copy + v->copied, bytes_of(s, v), e));
    }
    return 0;
}

int slices_get(const struct slices *s, const struct slice *v, int64_t first, int64_t n, void *room, const void **ret,
               struct err *e)
{
    const size_t size = slices_size(s, (size_t)v->piece.tensor), at = (size_t)(first - v->piece.first) * size;
    *ret = !v->memory ? (const char *)&s->updates : v->copied != SIZE_MAX ? s->copy + v->copied + at : room;
    if (*ret != room)
        return 0;
    struct device *d = s->state->device;
    return d->ops->download(d, room, v->memory + at, (size_t)n * size, e);
}

int slices_put(struct slices *s, const struct slice *v, int64_t first, int64_t n, const void *from, bool averages,
               struct err *e)
{
    const size_t size = slices_size(s, (size_t)v->piece.tensor), at = (size_t)(first - v->piece.first) * size;
    struct device *d = s->state->device;
    if (!v->memory)
        return 0;
    TRY(d->ops->upload(d, v->memory + at, from, (size_t)n * size, e));
    return averages && v->average ? d->ops->upload(d, v->average + at, from, (size_t)n * size, e) : 0;
}

static bool finite_values(enum dtype t, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(t == DT_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i]))
            return false;
    return true;
}

static int slice_finite(const struct slices *s, const struct slice *v, void *room, size_t bytes, bool *ret,
                        struct err *e)
{
    const int64_t most = (int64_t)(bytes / slices_size(s, (size_t)v->piece.tensor));
    *ret = true;
    for (int64_t at = v->piece.first; at < v->piece.end && *ret; at += most) {
        const int64_t n = v->piece.end - at < most ? v->piece.end - at : most;
        const void *values;
        TRY(slices_get(s, v, at, n, room, &values, e));
        *ret = finite_values(s->state->real, values, (size_t)n);
    }
    return 0;
}

int slices_find_infinite(const struct slices *s, void *room, size_t bytes, size_t *ret, struct err *e)
{
    *ret = s->n;
    for (size_t i = 0; i < s->n_held; i++) { /* by tensor */
        const struct slice *v = &s->held[i];
        bool finite;
        if (!v->memory || (s->copy && v->copied == SIZE_MAX))
            continue;
        TRY(slice_finite(s, v, room, bytes, &finite, e));
        if (!finite) {
            *ret = (size_t)v->piece.tensor;
            return 0;
        }
    }
    return 0;
}
