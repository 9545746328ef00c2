/* Gathers the parameters of the next reads, and drops those that were read. */
#include "worker/parallel/residency.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/device/liveness.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/pages.h"
#include "worker/program/program.h"

/* Pieces [first, end) hold what is read. */
struct read {
    int first, end;
    int gathers, drops; /* where its pieces begin in the lists below; they end where the next one's begin */
    size_t offset;      /* of its first element in its first piece */
    size_t at;          /* windows: where that element is, bytes; SIZE_MAX: in the arena */
};

struct list { /* of pieces */
    int *at, n;
    size_t cap;
};

struct residency {
    struct plan_needs needs;
    const struct ownership *own;
    struct ddp *d;
    struct device *device;
    char *arena;
    size_t size;   /* of an element, bytes */
    char *windows; /* memory of the device's, of window_bytes; NULL: pieces come to their places in the arena */
    size_t window_bytes;
    size_t *gathered_to; /* per entry of gathers: where in the windows */
    size_t *now_at;      /* per piece: where it is now, while reads are gone through */
    void **events;       /* (npieces): it has come */
    struct read *reads;  /* (n + 1) */
    int n;
    struct list gathers, drops;
    size_t peak;
    uint64_t *tickets; /* (npieces): when it was asked for; 0: not since it was last given back */
};

/* --- what is settled when the plan is made */

static bool has_windows(const struct residency *r)
{
    return r->own->compact;
}

static bool is_cut(const struct residency *r, int piece)
{
    return r->own->pieces[piece].part > 0;
}

/* Elements of a piece that others own. */
static size_t foreign(const struct residency *r, int piece)
{
    return ownership_foreign(&r->own->pieces[piece]);
}

static int mixed(const struct ownership_piece *p, struct err *e)
{
    return err_set(e, -ENOTSUP, "parameters [%zu, %zu) are read together with some that are not cut", p->first, p->end);
}

/* With windows a read is of pieces that are cut, or of such as are not. */
static int check_read(const struct residency *r, const struct read *v, struct err *e)
{
    for (int k = v->first; k < v->end && has_windows(r); k++)
        if (is_cut(r, k) != is_cut(r, v->first))
            return mixed(&r->own->pieces[k], e);
    return 0;
}

static struct read find_pieces(const struct residency *r, const struct plan_range *range)
{
    const struct ownership_piece *p = r->own->pieces;
    struct read v = {0};
    while (v.first < r->own->npieces && p[v.first].end <= range->first)
        v.first++;
    for (v.end = v.first; v.end < r->own->npieces && p[v.end].first < range->end;)
        v.end++;
    v.offset = v.first < r->own->npieces ? range->first - p[v.first].first : 0;
    v.at = SIZE_MAX;
    return v;
}

static int append(struct list *l, int piece, struct err *e)
{
    TRY(ARRAY_GROW(l->at, l->cap, (size_t)l->n + 1, "pieces of parameters", e));
    l->at[l->n++] = piece;
    return 0;
}

static int gather_missing(struct residency *r, const struct read *v, bool *here, struct err *e)
{
    for (int k = v->first; k < v->end; k++) {
        if (here[k] || !is_cut(r, k))
            continue;
        TRY(append(&r->gathers, k, e));
        here[k] = true;
    }
    return 0;
}

/* The next read behind i that has a piece which read i does not have; r->n: none has. */
static int next_other(const struct residency *r, int i)
{
    const struct read *v = &r->reads[i];
    for (int j = i + 1; j < r->n; j++)
        for (int k = r->reads[j].first; k < r->reads[j].end; k++)
            if (is_cut(r, k) && (k < v->first || k >= v->end))
                return j;
    return r->n;
}

/* Is piece k in one of the reads (i, last]? */
static bool is_read(const struct residency *r, int k, int i, int last)
{
    for (i++; i <= last && i < r->n; i++)
        if (k >= r->reads[i].first && k < r->reads[i].end)
            return true;
    return false;
}

/* *far: what is here stays if a read up to that one is in it: those that were looked ahead to, and the one behind them,
 * so that nothing goes and comes back for a single read in between. */
static int settle_read(struct residency *r, int i, bool *here, int *far, struct err *e)
{
    size_t held = 0;
    r->reads[i].gathers = r->gathers.n;
    r->reads[i].drops = r->drops.n;
    TRY(gather_missing(r, &r->reads[i], here, e));
    const int next = next_other(r, i);
    if (next < r->n)
        TRY(gather_missing(r, &r->reads[next], here, e));
    const int behind = next < r->n ? next_other(r, next) : r->n;
    *far = behind > *far ? behind : *far;
    for (int k = 0; k < r->own->npieces; k++) {
        held += here[k] ? foreign(r, k) : 0;
        if (!here[k] || is_read(r, k, i, *far))
            continue;
        TRY(append(&r->drops, k, e));
        here[k] = false;
    }
    r->peak = held > r->peak ? held : r->peak;
    return 0;
}

/* --- windows */

/* Pieces side by side that reads hold together, from the first one's gather to the last one's drop. */
struct group {
    int first, end; /* pieces */
};

static bool held_together(const struct residency *r, int k)
{
    for (int i = 0; i < r->n; i++)
        if (r->reads[i].first <= k && k + 1 < r->reads[i].end)
            return true;
    return false;
}

static struct group group_of(const struct residency *r, int k)
{
    struct group g = {k, k + 1};
    while (g.first > 0 && held_together(r, g.first - 1))
        g.first--;
    while (g.end < r->own->npieces && held_together(r, g.end - 1))
        g.end++;
    return g;
}

/* While windows are placed: what is here of each group, and since when. */
struct placing {
    struct live_buffer *buffers; /* one each time that a group comes */
    int n;
    int *of;          /* per piece: the buffer it is in; -1: it is not here */
    int *gathered_in; /* per gather: its buffer */
};

static size_t bytes_before(const struct residency *r, int piece)
{
    return (r->own->pieces[piece].first - r->own->pieces[group_of(r, piece).first].first) * r->size;
}

static void come(struct residency *r, struct placing *p, int piece, int read, int gather)
{
    const struct group g = group_of(r, piece);
    int at = -1;
    for (int k = g.first; k < g.end; k++)
        at = p->of[k] >= 0 ? p->of[k] : at;
    if (at < 0) {
        const size_t bytes = (r->own->pieces[g.end - 1].end - r->own->pieces[g.first].first) * r->size;
        at = p->n;
        p->buffers[p->n++] = (struct live_buffer){.bytes = bytes, .first = read, .last = read};
    }
    p->of[piece] = at;
    p->gathered_in[gather] = at;
}

static void go_through_reads(struct residency *r, struct placing *p)
{
    for (int i = 0; i < r->n; i++) {
        const struct read *v = &r->reads[i];
        for (int g = v->gathers; g < v[1].gathers; g++)
            come(r, p, r->gathers.at[g], i, g);
        for (int k = 0; k < r->own->npieces; k++)
            if (p->of[k] >= 0)
                p->buffers[p->of[k]].last = i;
        for (int d = v->drops; d < v[1].drops; d++)
            p->of[r->drops.at[d]] = -1;
    }
}

/* Where each gather goes to, and where each read finds its first element. */
static void fill_in(struct residency *r, const struct placing *p)
{
    for (int i = 0; i < r->n; i++) {
        struct read *v = &r->reads[i];
        for (int g = v->gathers; g < v[1].gathers; g++) {
            const int piece = r->gathers.at[g];
            r->gathered_to[g] = r->now_at[piece] = p->buffers[p->gathered_in[g]].offset + bytes_before(r, piece);
        }
        if (v->first < v->end && is_cut(r, v->first))
            v->at = r->now_at[v->first] + v->offset * r->size;
    }
}

static int take_windows(struct residency *r, struct err *e)
{
    const struct device_async *a = r->device->ops->async;
    void *p = NULL;
    r->peak = r->window_bytes / r->size;
    if (r->window_bytes)
        TRY(r->device->ops->alloc(r->device, r->window_bytes, &p, e));
    r->windows = p;
    for (int k = 0; k < r->own->npieces; k++)
        if (!r->events[k])
            TRY(a->event_open(r->device, &r->events[k], e));
    return 0;
}

static int place_windows(struct residency *r, struct err *e)
{
    enum { WINDOW_ALIGN = 256 };
    const size_t gathers = (size_t)r->gathers.n + 1, pieces = (size_t)r->own->npieces + 1;
    struct placing p = {.buffers = calloc(gathers, sizeof *p.buffers),
                        .of = malloc(pieces * sizeof *p.of),
                        .gathered_in = calloc(gathers, sizeof *p.gathered_in)};
    r->gathered_to = calloc(gathers, sizeof *r->gathered_to);
    r->now_at = calloc(pieces, sizeof *r->now_at);
    int rc = p.buffers && p.of && p.gathered_in && r->gathered_to && r->now_at
                 ? 0
                 : err_errno(e, ENOMEM, "windows of %d pieces", r->own->npieces);
    for (size_t k = 0; k < pieces && p.of; k++)
        p.of[k] = -1;
    if (rc == 0) {
        go_through_reads(r, &p);
        rc = liveness_place(p.buffers, p.n, WINDOW_ALIGN, &r->window_bytes, e);
    }
    if (rc == 0) {
        fill_in(r, &p);
        rc = take_windows(r, e);
    }
    free(p.buffers);
    free(p.of);
    free(p.gathered_in);
    return rc;
}

/* A plan that is made once more says it once more. */
static void forget(struct residency *r)
{
    if (r->windows)
        r->device->ops->release(r->device, r->windows);
    free(r->reads);
    free(r->gathered_to);
    free(r->now_at);
    r->windows = NULL;
    r->reads = NULL;
    r->gathered_to = r->now_at = NULL;
    r->gathers.n = r->drops.n = 0;
    r->peak = r->window_bytes = 0;
}

static int settle(void *ctx, const struct plan_range *reads, int n, struct err *e)
{
    struct residency *r = ctx;
    bool *here = calloc((size_t)r->own->npieces + 1, sizeof *here);
    int rc = 0, far = 0;
    forget(r);
    r->reads = calloc((size_t)n + 1, sizeof *r->reads);
    r->n = n;
    if (!here || !r->reads)
        rc = err_errno(e, ENOMEM, "%d reads of parameters", n);
    for (int i = 0; i < n && rc == 0; i++) {
        r->reads[i] = find_pieces(r, &reads[i]);
        rc = check_read(r, &r->reads[i], e);
    }
    for (int i = 0; i < n && rc == 0; i++)
        rc = settle_read(r, i, here, &far, e);
    if (rc == 0)
        r->reads[n] = (struct read){.gathers = r->gathers.n, .drops = r->drops.n};
    free(here);
    return rc == 0 && has_windows(r) ? place_windows(r, e) : rc;
}

static const void *at(void *ctx, int i)
{
    const struct residency *r = ctx;
    const struct read *v = &r->reads[i];
    if (v->at != SIZE_MAX)
        return r->windows + v->at;
    const size_t first = r->own->pieces[v->first].first + v->offset;
    return r->arena + ownership_place(r->own, OWNERSHIP_PARAMS, first) * r->size;
}

/* --- while it runs */

static int fetch(struct residency *r, int g, struct err *e)
{
    const int k = r->gathers.at[g];
    const size_t mine = ownership_place(r->own, OWNERSHIP_PARAMS, r->own->pieces[k].mine.first);
    const struct ddp_fetch f = {.piece = k,
                                .mine = r->arena + mine * r->size,
                                .to = r->windows ? r->windows + r->gathered_to[g]
                                                 : r->arena + r->own->pieces[k].first * r->size,
                                .event = r->events[k]};
    return ddp_fetch(r->d, &f, &r->tickets[k], e);
}

/* What the device computes from now on sees piece k. */
static int join(const struct residency *r, int k, struct err *e)
{
    const struct device_async *a = r->device->ops->async;
    return a && r->tickets[k] && !ddp_blocks(r->d) ? a->follow(r->device, r->events[k], a->compute(r->device), e) : 0;
}

static int need(void *ctx, int i, struct err *e)
{
    struct residency *r = ctx;
    const struct read *v = &r->reads[i];
    uint64_t last = 0;
    for (int g = v->gathers; g < v[1].gathers; g++)
        TRY(fetch(r, g, e));
    for (int k = v->first; k < v->end; k++)
        last = r->tickets[k] > last ? r->tickets[k] : last;
    TRY(last > 0 ? ddp_fetched(r->d, last, e) : 0);
    for (int k = v->first; k < v->end; k++)
        TRY(join(r, k, e));
    return 0;
}

static void release(void *ctx, int i)
{
    struct residency *r = ctx;
    const struct read *v = &r->reads[i];
    for (int k = v->drops; k < v[1].drops; k++) {
        struct ownership_range gaps[OWNERSHIP_GAPS];
        int n;
        ownership_gaps(&r->own->pieces[r->drops.at[k]], gaps, &n);
        for (int j = 0; j < n && !has_windows(r); j++)
            pages_drop(r->arena, gaps[j].first * r->size, gaps[j].end * r->size);
        r->tickets[r->drops.at[k]] = 0;
    }
}

int residency_create(struct residency **ret, const struct ownership *own, struct ddp *d, struct device *device,
                     void *arena, struct err *e)
{
    struct residency *r = calloc(1, sizeof *r);
    uint64_t *tickets = calloc((size_t)own->npieces + 1, sizeof *tickets);
    void **events = calloc((size_t)own->npieces + 1, sizeof *events);
    if (!r || !tickets || !events) {
        free(r);
        free(tickets);
        free(events);
        return err_errno(e, ENOMEM, "parameters that come and go");
    }
    *r = (struct residency){.needs = {.ctx = r, .order = settle, .need = need, .release = release},
                            .own = own,
                            .d = d,
                            .device = device,
                            .arena = arena,
                            .size = dtype_size(device->ops->real),
                            .events = events,
                            .tickets = tickets};
    r->needs.at = has_windows(r) ? at : NULL;
    r->needs.on_host = d && ddp_blocks(d);
    *ret = r;
    return 0;
}

void residency_destroy(struct residency *r)
{
    if (!r)
        return;
    forget(r);
    for (int k = 0; k < r->own->npieces; k++)
        if (r->events[k])
            r->device->ops->async->event_close(r->device, r->events[k]);
    free(r->events);
    free(r->gathers.at);
    free(r->drops.at);
    free(r->tickets);
    free(r);
}

const struct plan_needs *residency_needs(const struct residency *r)
{
    return &r->needs;
}

size_t residency_peak(const struct residency *r)
{
    return r->peak;
}

const int *residency_gathers(const struct residency *r, int *ret_n)
{
    *ret_n = r->gathers.n;
    return r->gathers.at;
}

int residency_reads(const struct residency *r)
{
    return r->n;
}

struct residency_read residency_read(const struct residency *r, int k)
{
    const struct read *v = &r->reads[k];
    return (struct residency_read){v->first, v->end, v->gathers, v[1].gathers};
}
