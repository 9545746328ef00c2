/* Computes which rank owns which elements of the arenas. */
#include "worker/parallel/ownership.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/numbers.h"
#include "worker/program/program.h"

enum { BUCKET_BYTES = 25 << 20, FIRST_BUCKET_BYTES = 1 << 20 };

struct layout_ranks ownership_group(const struct ownership *own, enum layout_group g)
{
    return layout_group(&own->layout, g, own->rank);
}

struct sizes { /* of pieces, elements */
    size_t small, most;
};

static int sizes_of(const struct ownership_options *o, struct sizes *ret, struct err *e)
{
    const size_t bytes = o->bucket_bytes ? o->bucket_bytes : BUCKET_BYTES;
    const size_t first = o->first_bucket_bytes ? o->first_bucket_bytes : FIRST_BUCKET_BYTES;
    if (bytes < o->elem_bytes || first < o->elem_bytes)
        return err_set(e, -EINVAL, "buckets of %zu and %zu bytes: expected at least %zu, one element", first, bytes,
                       o->elem_bytes);
    *ret = (struct sizes){.small = first / o->elem_bytes, .most = bytes / o->elem_bytes};
    return 0;
}

/* Parameters side by side that are summed in one group: sent, updated and gathered alike. */
struct run {
    size_t first, end;
    enum layout_group group;
    bool frozen, tied;
};

/* Where the place of the parameter that has element `at` ends; the end of the run behind the last one. */
static size_t param_end(const struct program *p, const struct run *r, size_t at)
{
    size_t end = r->end;
    for (int i = 0; i < p->nparams; i++) {
        const size_t one = program_param_end(p, &p->params[i]);
        if (p->params[i].role == PARAM_TRAIN && one > at && one < end)
            end = one;
    }
    return end;
}

static enum layout_group group_of(const struct param *q)
{
    return q->sharded ? LAYOUT_DATA : LAYOUT_BATCH;
}

/* The run that begins at `at`; empty at the end of the arena. */
static struct run next_run(const struct program *p, size_t at)
{
    const struct param *q = program_param_from(p, at);
    struct run r = {.first = at,
                    .end = at < p->n_train ? p->n_train : program_params(p),
                    .group = q ? group_of(q) : LAYOUT_BATCH,
                    .frozen = at >= p->n_train,
                    .tied = q && q->tied};
    while (q && group_of(q) == r.group && q->frozen == r.frozen && q->tied == r.tied)
        q = program_param_from(p, q->offset + q->count);
    if (q)
        r.end = q->offset;
    return r;
}

/* The piece [first, end) of r, behind the others, not counted yet. part: of each rank; 0: it is not cut. */
static void add_piece(struct ownership *own, const struct run *r, size_t first, size_t end, size_t part)
{
    const struct layout_ranks g = ownership_group(own, r->group);
    struct ownership_piece *p = &own->pieces[own->npieces];
    *p = (struct ownership_piece){.first = first,
                                  .end = end,
                                  .group = r->group,
                                  .part = part,
                                  .tied = r->tied,
                                  .ranks = g.count,
                                  .index = g.index,
                                  .distance = layout_second_distance(&own->layout, &g),
                                  .second = {.first = end, .end = end}};
    p->mine = p->saved = ownership_part(p, g.index);
    if (part && p->distance)
        p->second = ownership_part(p, (g.index + g.count - p->distance) % g.count);
    if (!part && g.index > 0)
        p->saved.end = p->saved.first;
}

/* The same, counted, if it is not empty; at most cap pieces. */
static int add_some(struct ownership *own, int cap, const struct run *r, size_t first, size_t end, size_t part,
                    struct err *e)
{
    if (first == end)
        return 0;
    if (own->npieces == cap)
        return err_set(e, -ENOSPC, "more than %d pieces of an arena", cap);
    add_piece(own, r, first, end, part);
    own->npieces++;
    return 0;
}

/* Where the piece of r that begins at `at` ends. The first one is small, and the last one, too, if there is more than
 * one small one's worth: what is left to send when backward ends is what the training thread waits for. That goes for
 * each run, by itself: ranks that share one may have others before and after it that differ. */
static size_t piece_end(const struct sizes *z, const struct run *r, size_t at)
{
    const size_t left = r->end - at, last = min_size(z->small, left);
    if (at == r->first)
        return at + last;
    return left == last ? r->end : at + min_size(z->most, left - last);
}

/* The same where parameters are gathered: with the parameter that makes it as much as a small one. r has whole
 * units. */
static size_t gathered_end(const struct program *p, const struct sizes *z, const struct run *r, size_t unit, size_t at)
{
    size_t end = at;
    while (end < r->end && end - at < z->small)
        end = r->first + (param_end(p, r, end) - r->first + unit - 1) / unit * unit;
    return min_size(min_size(end, r->end), at + z->most);
}

/* Pieces of whole units, and the rest. */
static int cut_run(struct ownership *own, const struct program *p, const struct run *r, const struct sizes *z, int cap,
                   struct err *e)
{
    const size_t ranks = (size_t)ownership_group(own, r->group).count;
    const bool cut = own->layout.zero > (r->frozen ? 2 : 0) && ranks > 1;
    const size_t unit = cut ? ranks * OWNERSHIP_ALIGN : 1;
    struct run whole = *r;
    whole.end = r->first + (r->end - r->first) / unit * unit;
    const struct sizes by_unit = {.small = (z->small + unit - 1) / unit * unit,
                                  .most = (z->most + unit - 1) / unit * unit};
    for (size_t at = r->first, end; at < whole.end; at = end) {
        end = cut && own->layout.zero == 3 ? gathered_end(p, &by_unit, &whole, unit, at)
                                           : piece_end(&by_unit, &whole, at);
        TRY(add_some(own, cap, r, at, end, cut ? (end - at) / ranks : 0, e));
    }
    return add_some(own, cap, r, whole.end, r->end, 0, e);
}

static int list_pieces(struct ownership *own, const struct program *p, const struct sizes *z, struct err *e)
{
    int runs = 0;
    for (struct run r = next_run(p, 0); r.first < r.end; r = next_run(p, r.end))
        runs++;
    const int cap = (int)(own->n_params / min_size(z->small, z->most)) + 4 * runs + 1;
    own->pieces = calloc((size_t)cap + 1, sizeof *own->pieces);
    own->owned = calloc(2 * (size_t)cap, sizeof *own->owned);
    if (!own->pieces || !own->owned)
        return err_errno(e, ENOMEM, "%d pieces of an arena", cap);
    for (struct run r = next_run(p, 0); r.first < r.end; r = next_run(p, r.end)) {
        TRY(cut_run(own, p, &r, z, cap, e));
        own->nbuckets = r.frozen ? own->nbuckets : own->npieces;
        if (r.tied && layout_place(&own->layout, own->rank).stage > 0)
            own->copy = (struct ownership_range){.first = r.first, .end = r.end};
    }
    add_piece(own, &(struct run){.group = LAYOUT_BATCH}, own->n_train, own->n_train, 0);
    return 0;
}

struct ownership_range ownership_part(const struct ownership_piece *piece, int index)
{
    const size_t first = piece->first + (size_t)index * piece->part;
    return piece->part ? (struct ownership_range){.first = first, .end = first + piece->part}
                       : (struct ownership_range){.first = piece->first, .end = piece->end};
}

/* What this rank updates of a piece, in ascending order; the second one may be empty. */
static void updated(const struct ownership_piece *piece, struct ownership_range ret[2])
{
    const bool in_order = piece->mine.first < piece->second.first;
    ret[0] = in_order ? piece->mine : piece->second;
    ret[1] = in_order ? piece->second : piece->mine;
}

void ownership_gaps(const struct ownership_piece *piece, struct ownership_range ret[OWNERSHIP_GAPS], int *n)
{
    struct ownership_range has[2];
    updated(piece, has);
    const size_t ends[] = {piece->first, has[0].first, has[0].end, has[1].first, has[1].end, piece->end};
    *n = 0;
    for (int i = 0; i < OWNERSHIP_GAPS; i++)
        if (ends[2 * i] < ends[2 * i + 1])
            ret[(*n)++] = (struct ownership_range){.first = ends[2 * i], .end = ends[2 * i + 1]};
}

size_t ownership_foreign(const struct ownership_piece *piece)
{
    return piece->end - piece->first - ownership_updated(piece);
}

size_t ownership_updated(const struct ownership_piece *piece)
{
    return piece->mine.end - piece->mine.first + piece->second.end - piece->second.first;
}

static void add_owned(struct ownership *own, struct ownership_range r, size_t *kept)
{
    struct ownership_range *last = own->nowned ? &own->owned[own->nowned - 1] : NULL;
    if (r.first == r.end)
        return;
    if (last && last->end == r.first && r.first != own->n_train)
        last->end = r.end;
    else
        own->owned[own->nowned++] = (struct ownership_range){r.first, r.end, *kept};
    *kept += r.end - r.first;
}

static void list_owned(struct ownership *own)
{
    size_t kept = 0;
    for (int i = 0; i < own->npieces; i++) {
        struct ownership_range r[2];
        updated(&own->pieces[i], r);
        add_owned(own, r[0], &kept);
        add_owned(own, r[1], &kept);
    }
}

int ownership_init(struct ownership *own, const struct layout *l, int rank, const struct program *p,
                   const struct ownership_options *o, struct err *e)
{
    struct sizes z = {0};
    *own = (struct ownership){.layout = *l,
                              .rank = rank,
                              .n_train = p->n_train,
                              .n_params = program_params(p),
                              .whole_gradients = o->whole_gradients,
                              .compact = o->compact};
    TRY(sizes_of(o, &z, e));
    int rc = list_pieces(own, p, &z, e);
    if (rc < 0) {
        ownership_finish(own);
        return rc;
    }
    list_owned(own);
    return 0;
}

int ownership_init_alone(struct ownership *own, const struct program *p, struct err *e)
{
    const struct layout one = {.world = 1, .data = 1, .tensor = 1, .stages = 1};
    return ownership_init(own, &one, 0, p, &(struct ownership_options){.elem_bytes = 1}, e);
}

void ownership_finish(struct ownership *own)
{
    free(own->pieces);
    free(own->owned);
    *own = (struct ownership){0};
}

bool ownership_is_cut(const struct ownership *own, enum ownership_arena a)
{
    static const int from_level[] = {
        [OWNERSHIP_PARAMS] = 3, [OWNERSHIP_GRADIENTS] = 2, [OWNERSHIP_MOMENTS] = 1, [OWNERSHIP_AVERAGES] = 3};
    return own->layout.zero >= from_level[a] && !(a == OWNERSHIP_GRADIENTS && own->whole_gradients);
}

bool ownership_ties(const struct ownership *own)
{
    bool ties = false;
    for (int k = 0; k < own->npieces; k++)
        ties |= own->pieces[k].tied;
    return ties;
}

bool ownership_gathers(const struct ownership *own)
{
    return ownership_is_cut(own, OWNERSHIP_PARAMS) && ownership_group(own, LAYOUT_BATCH).count > 1;
}

bool ownership_is_handed_out(const struct ownership *own)
{
    return ownership_is_cut(own, OWNERSHIP_MOMENTS) && !ownership_is_cut(own, OWNERSHIP_PARAMS);
}

bool ownership_cuts_tensors(const struct ownership *own)
{
    return own->layout.tensor > 1 || ownership_is_cut(own, OWNERSHIP_MOMENTS);
}

bool ownership_is_spread(const struct ownership *own)
{
    return own->layout.stages > 1 || ownership_cuts_tensors(own);
}

static bool has_frozen(enum ownership_arena a)
{
    return a == OWNERSHIP_PARAMS || a == OWNERSHIP_AVERAGES;
}

size_t ownership_elements(const struct ownership *own, enum ownership_arena a)
{
    const size_t all = has_frozen(a) ? own->n_params : own->n_train;
    int n = own->nowned;
    if (!ownership_is_cut(own, a))
        return all;
    while (n > 0 && own->owned[n - 1].end > all)
        n--;
    return n > 0 ? own->owned[n - 1].kept + own->owned[n - 1].end - own->owned[n - 1].first : 0;
}

const struct ownership_piece *ownership_bucket(const struct ownership *own, int k)
{
    return &own->pieces[k < own->nbuckets ? k : own->npieces];
}

size_t ownership_place(const struct ownership *own, enum ownership_arena a, size_t i)
{
    int k = 0;
    const bool side_by_side = a == OWNERSHIP_MOMENTS || (own->compact && a != OWNERSHIP_GRADIENTS);
    if (!side_by_side || !ownership_is_cut(own, a))
        return i;
    while (k < own->nowned && i >= own->owned[k].end)
        k++;
    assert(k < own->nowned && i >= own->owned[k].first);
    return own->owned[k].kept + (i - own->owned[k].first);
}

struct ownership_range ownership_clip(const struct ownership *own, int k, size_t first, size_t end)
{
    const struct ownership_range *r = &own->owned[k];
    const size_t from = min_size(max_size(first, r->first), r->end), to = max_size(from, min_size(end, r->end));
    return (struct ownership_range){from, to, r->kept + (from - r->first)};
}

size_t ownership_largest_piece(const struct ownership *own)
{
    size_t most = 1;
    for (int k = 0; k < own->nbuckets; k++)
        most = own->pieces[k].end - own->pieces[k].first > most ? own->pieces[k].end - own->pieces[k].first : most;
    return most;
}

size_t ownership_largest_part(const struct ownership *own)
{
    size_t most = 0;
    for (int k = 0; k < own->nbuckets; k++)
        most = own->pieces[k].part > most ? own->pieces[k].part : most;
    return most;
}

/* Where parameters are gathered in the same order as gradients are reduced, more would only wait. */
size_t ownership_window(const struct ownership *own)
{
    return (ownership_is_cut(own, OWNERSHIP_PARAMS) ? 1 : 2) * ownership_largest_piece(own);
}
