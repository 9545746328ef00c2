#include "worker/snapshot/exchange.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/numbers.h"

/* The first element of the block that lies at `whole` or after it; it may be beyond the block's end. */
static int64_t held_from(const struct piece *p, int64_t whole)
{
    const int64_t row = whole / p->line - p->row, col = whole % p->line - p->col;
    if (row < 0)
        return 0;
    return row * p->cols + max_i64(0, min_i64(col, p->cols));
}

static int64_t whole_of(const struct piece *p, int64_t held)
{
    return (p->row + held / p->cols) * p->line + p->col + held % p->cols;
}

int64_t piece_count(const struct piece *p)
{
    return p->end - p->first;
}

int64_t piece_range(const struct piece *p, int64_t from, int64_t to, int64_t *first)
{
    *first = max_i64(p->first, held_from(p, from));
    return max_i64(0, min_i64(p->end, held_from(p, to)) - *first);
}

bool piece_segment(const struct piece *p, int64_t from, int64_t to, struct segment *ret)
{
    int64_t first;
    const int64_t left = piece_range(p, from, to, &first);
    if (left == 0)
        return false;
    const int64_t in_row = p->cols == p->line ? left : min_i64(left, p->cols - first % p->cols);
    *ret = (struct segment){.whole = whole_of(p, first), .held = first, .n = in_row};
    return true;
}

static int check_cover(const struct exchange *x, const int64_t *counts, int ntensors, struct err *e)
{
    int64_t *saved = calloc((size_t)ntensors + 1, sizeof *saved);
    if (!saved)
        return err_errno(e, ENOMEM, "%d tensors of a checkpoint", ntensors);
    int rc = 0;
    for (size_t i = 0; i < x->begin[x->world] && rc == 0; i++) {
        const struct piece *p = &x->pieces[i];
        const bool sound = p->tensor >= 0 && p->tensor < ntensors && p->cols > 0 && p->first >= 0 && p->first < p->end;
        if (!sound || p->row < 0 || p->col < 0 || p->col + p->cols > p->line ||
            whole_of(p, p->end - 1) >= counts[p->tensor])
            rc = err_set(e, -EINVAL, "a rank holds an impossible piece of tensor %d of a checkpoint", (int)p->tensor);
        else if (p->saved)
            saved[p->tensor] += piece_count(p);
    }
    for (int t = 0; t < ntensors && rc == 0; t++)
        if (saved[t] != counts[t])
            rc = err_set(e, -EINVAL, "ranks save %" PRId64 " elements of tensor %d of a checkpoint: expected %" PRId64,
                         saved[t], t, counts[t]);
    free(saved);
    return rc;
}

int exchange_init(struct exchange *x, int world, size_t *begin, struct piece *pieces, const int64_t *counts,
                  int ntensors, struct err *e)
{
    *x = (struct exchange){.world = world, .begin = begin, .pieces = pieces};
    return check_cover(x, counts, ntensors, e);
}

void exchange_finish(struct exchange *x)
{
    free(x->begin);
    free(x->pieces);
    *x = (struct exchange){0};
}

/* The first piece of the rank that is of `tensor` or of a later one. */
static size_t lower_bound(const struct exchange *x, int rank, int tensor)
{
    size_t low = x->begin[rank], high = x->begin[rank + 1];
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (x->pieces[mid].tensor < tensor)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct piece *exchange_of(const struct exchange *x, int rank, int tensor, size_t *n)
{
    const size_t first = lower_bound(x, rank, tensor);
    *n = lower_bound(x, rank, tensor + 1) - first;
    return x->pieces + first;
}

bool exchange_whole(const struct exchange *x, int rank, int tensor, int64_t count)
{
    size_t n;
    int64_t held = 0;
    const struct piece *p = exchange_of(x, rank, tensor, &n);
    for (size_t i = 0; i < n; i++)
        held += piece_count(&p[i]);
    return held == count; /* pieces of one rank do not overlap */
}

bool exchange_all_whole(const struct exchange *x, int tensor, int64_t count)
{
    for (int r = 0; r < x->world; r++)
        if (!exchange_whole(x, r, tensor, count))
            return false;
    return true;
}
