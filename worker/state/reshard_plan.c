/* Computes who gives what to whom between two layouts. */
#include "worker/state/reshard_plan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"

/* Elements [cuts[k], cuts[k + 1]) are with holders[first[k]] to holders[first[k + 1]], in ascending order: no span
 * begins or ends between two cuts. */
struct index {
    uint64_t *cuts;
    size_t ncuts, *first;
    int *holders;
};

static void index_close(struct index *x)
{
    free(x->cuts);
    free(x->first);
    free(x->holders);
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void list_cuts(struct index *x, const struct reshard_list *has, int world)
{
    size_t n = 0;
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < has[r].n; i++) {
            x->cuts[n++] = has[r].spans[i].first;
            x->cuts[n++] = has[r].spans[i].first + has[r].spans[i].n;
        }
    qsort(x->cuts, n, sizeof *x->cuts, ascending);
    for (size_t i = 0; i < n; i++)
        if (x->ncuts == 0 || x->cuts[i] != x->cuts[x->ncuts - 1])
            x->cuts[x->ncuts++] = x->cuts[i];
}

/* The last cut that is not behind `at`; 0 where all are. */
static size_t cut_before(const struct index *x, uint64_t at)
{
    size_t low = 0, high = x->ncuts;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (x->cuts[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* With holders NULL they are counted into first[k + 1]; else first[k] moves behind those of k. */
static void each_holder(struct index *x, const struct reshard_list *has, int world)
{
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < has[r].n; i++) {
            const struct reshard_span *s = &has[r].spans[i];
            for (size_t k = cut_before(x, s->first); k + 1 < x->ncuts && x->cuts[k] < s->first + s->n; k++)
                if (x->holders)
                    x->holders[x->first[k]++] = r;
                else
                    x->first[k + 1]++;
        }
}

static int index_open(struct index *x, const struct reshard_list *has, int world, struct err *e)
{
    size_t n = 0;
    for (int r = 0; r < world; r++)
        n += 2 * has[r].n;
    x->cuts = calloc(n + 1, sizeof *x->cuts);
    x->first = calloc(n + 2, sizeof *x->first);
    if (!x->cuts || !x->first)
        return err_errno(e, ENOMEM, "%zu parts of a state", n);
    list_cuts(x, has, world);
    each_holder(x, has, world);
    for (size_t k = 0; k < x->ncuts; k++)
        x->first[k + 1] += x->first[k];
    x->holders = calloc(x->first[x->ncuts] + 1, sizeof *x->holders);
    if (!x->holders)
        return err_errno(e, ENOMEM, "%zu parts of a state", n);
    each_holder(x, has, world);
    memmove(x->first + 1, x->first, x->ncuts * sizeof *x->first);
    x->first[0] = 0;
    return 0;
}

struct planning {
    struct index index;
    uint64_t *given; /* (world), elements so far */
    size_t most;
    struct reshard_transfer *all;
    size_t n, cap;
};

/* -1: nobody has elements from cut k on. */
static int choose(const struct planning *p, size_t k, int to)
{
    int best = -1;
    for (size_t i = p->index.first[k]; i < p->index.first[k + 1]; i++) {
        const int r = p->index.holders[i];
        if (r == to)
            return r;
        if (best < 0 || p->given[r] < p->given[best])
            best = r;
    }
    return best;
}

static int add(struct planning *p, struct reshard_transfer t, struct err *e)
{
    TRY(ARRAY_GROW(p->all, p->cap, p->n + 1, "transfers of a state", e));
    if (t.from != t.to)
        p->given[t.from] += t.n;
    p->all[p->n++] = t;
    return 0;
}

static int plan_span(struct planning *p, const struct reshard_span *want, int to, struct err *e)
{
    const struct index *x = &p->index;
    const uint64_t end = want->first + want->n;
    size_t k = cut_before(x, want->first);
    for (uint64_t at = want->first, n; at < end; at += n) {
        while (k + 1 < x->ncuts && x->cuts[k + 1] <= at)
            k++;
        const bool is_inside = k + 1 < x->ncuts && x->cuts[k] <= at;
        const int from = is_inside ? choose(p, k, to) : -1;
        if (from < 0)
            return err_set(e, -ENODATA, "rank %d needs element %llu of the model, which no rank has", to,
                           (unsigned long long)at);
        n = (end < x->cuts[k + 1] ? end : x->cuts[k + 1]) - at;
        n = n < p->most ? n : p->most;
        TRY(add(p, (struct reshard_transfer){.first = at, .n = n, .from = from, .to = to}, e));
    }
    return 0;
}

static int in_order(const void *a, const void *b)
{
    const struct reshard_transfer *x = a, *y = b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first) : (x->to > y->to) - (x->to < y->to);
}

int reshard_plan(const struct reshard_list *has, const struct reshard_list *wants, int world, size_t most,
                 struct reshard_transfer **ret, size_t *ret_n, struct err *e)
{
    struct planning p = {.given = calloc((size_t)world, sizeof *p.given), .most = most};
    int rc = p.given ? 0 : err_errno(e, ENOMEM, "%d ranks that give parts of a state", world);
    if (rc == 0)
        rc = index_open(&p.index, has, world, e);
    for (int to = 0; to < world; to++)
        for (size_t i = 0; i < wants[to].n && rc == 0; i++)
            rc = plan_span(&p, &wants[to].spans[i], to, e);
    index_close(&p.index);
    free(p.given);
    if (rc < 0) {
        free(p.all);
        return rc;
    }
    if (p.n > 0)
        qsort(p.all, p.n, sizeof *p.all, in_order);
    *ret = p.all;
    *ret_n = p.n;
    return 0;
}
