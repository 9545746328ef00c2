#include "worker/parallel/residency.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/pages.h"

/* Pieces [first, end) hold what is read. */
struct read {
    int first, end;
    int gathers, drops; /* where its pieces begin in the lists below; they end where the next one's begin */
};

struct list { /* of pieces */
    int *at, n;
    size_t cap;
};

struct residency {
    struct plan_needs needs;
    const struct ownership *own;
    struct ddp *d;
    char *arena;
    size_t size;
    struct read *reads; /* (n + 1) */
    int n;
    struct list gathers, drops;
    size_t peak;
    uint64_t *tickets; /* (npieces): when it was asked for; 0: not since it was last given back */
};

/* --- what is settled when the plan is made */

static bool is_cut(const struct residency *r, int piece)
{
    return r->own->pieces[piece].part > 0;
}

/* Elements of a piece that others own. */
static size_t foreign(const struct residency *r, int piece)
{
    const struct ownership_piece *p = &r->own->pieces[piece];
    return p->end - p->first - p->part;
}

static struct read find_pieces(const struct residency *r, const struct plan_range *range)
{
    const struct ownership_piece *p = r->own->pieces;
    struct read v = {0};
    while (v.first < r->own->npieces && p[v.first].end <= range->first)
        v.first++;
    for (v.end = v.first; v.end < r->own->npieces && p[v.end].first < range->end;)
        v.end++;
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

static int settle(void *ctx, const struct plan_range *reads, int n, struct err *e)
{
    struct residency *r = ctx;
    bool *here = calloc((size_t)r->own->npieces + 1, sizeof *here);
    int rc = 0, far = 0;
    r->reads = calloc((size_t)n + 1, sizeof *r->reads);
    r->n = n;
    if (!here || !r->reads)
        rc = err_errno(e, ENOMEM, "%d reads of parameters", n);
    for (int i = 0; i < n && rc == 0; i++)
        r->reads[i] = find_pieces(r, &reads[i]);
    for (int i = 0; i < n && rc == 0; i++)
        rc = settle_read(r, i, here, &far, e);
    if (rc == 0)
        r->reads[n] = (struct read){.gathers = r->gathers.n, .drops = r->drops.n};
    free(here);
    return rc;
}

/* --- while it runs */

static int need(void *ctx, int i, struct err *e)
{
    struct residency *r = ctx;
    const struct read *v = &r->reads[i];
    uint64_t last = 0;
    for (int g = v->gathers; g < v[1].gathers; g++)
        TRY(ddp_fetch(r->d, r->arena, r->gathers.at[g], &r->tickets[r->gathers.at[g]], e));
    for (int k = v->first; k < v->end; k++)
        last = r->tickets[k] > last ? r->tickets[k] : last;
    return last > 0 ? ddp_fetched(r->d, last, e) : 0;
}

static void release(void *ctx, int i)
{
    struct residency *r = ctx;
    const struct read *v = &r->reads[i];
    for (int k = v->drops; k < v[1].drops; k++) {
        const struct ownership_piece *p = &r->own->pieces[r->drops.at[k]];
        const struct ownership_range mine = ownership_part(p, ownership_group(r->own, p->group).index);
        pages_drop(r->arena, p->first * r->size, mine.first * r->size);
        pages_drop(r->arena, mine.end * r->size, p->end * r->size);
        r->tickets[r->drops.at[k]] = 0;
    }
}

int residency_create(struct residency **ret, const struct ownership *own, struct ddp *d, void *arena, size_t size,
                     struct err *e)
{
    struct residency *r = calloc(1, sizeof *r);
    uint64_t *tickets = calloc((size_t)own->npieces + 1, sizeof *tickets);
    if (!r || !tickets) {
        free(r);
        free(tickets);
        return err_errno(e, ENOMEM, "parameters that come and go");
    }
    *r = (struct residency){.needs = {.ctx = r, .order = settle, .need = need, .release = release},
                            .own = own,
                            .d = d,
                            .arena = arena,
                            .size = size,
                            .tickets = tickets};
    *ret = r;
    return 0;
}

void residency_destroy(struct residency *r)
{
    if (!r)
        return;
    free(r->reads);
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
