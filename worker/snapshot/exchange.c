/* Computes which pieces of tensors go from which rank to which. */
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

static int check_piece(const struct piece *p, const int64_t *counts, int ntensors, struct err *e)
{
    const bool sound = p->tensor >= 0 && p->tensor < ntensors && p->cols > 0 && p->first >= 0 && p->first < p->end;
    return sound && p->row >= 0 && p->col >= 0 && p->col + p->cols <= p->line &&
                   whole_of(p, p->end - 1) < counts[p->tensor]
               ? 0
               : err_set(e, -EINVAL, "a rank holds an impossible piece of tensor %d of a checkpoint", (int)p->tensor);
}

static bool of_one_block(const struct piece *a, const struct piece *b)
{
    return a->row == b->row && a->col == b->col && a->cols == b->cols;
}

/* Has any element of a, of another block of the tensor, its place in b, too? */
static bool overlap(const struct piece *a, const struct piece *b)
{
    const bool apart = a->col + a->cols <= b->col || b->col + b->cols <= a->col;
    int64_t from = max_i64(whole_of(a, a->first), whole_of(b, b->first)), first;
    const int64_t to = 1 + min_i64(whole_of(a, a->end - 1), whole_of(b, b->end - 1));
    for (struct segment g; !apart && from < to && piece_segment(a, from, to, &g); from = g.whole + g.n)
        if (piece_range(b, g.whole, g.whole + g.n, &first) > 0)
            return true;
    return false;
}

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *left, const void *right)
{
    const struct piece *a = *(const struct piece *const *)left, *b = *(const struct piece *const *)right;
    const int by[] = {compare(a->tensor, b->tensor), compare(a->row, b->row), compare(a->col, b->col),
                      compare(a->cols, b->cols), compare(a->first, b->first)};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        if (by[i])
            return by[i];
    return 0;
}

/* The n pieces of tensor t that are saved, by their places, are all of it, each element once: as many, and no two of
 * them overlap. */
static int check_saved(const struct piece *const *saved, size_t n, int t, int64_t count, struct err *e)
{
    int64_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += piece_count(saved[i]);
    if (all != count)
        return err_set(e, -EINVAL, "ranks save %" PRId64 " elements of tensor %d of a checkpoint: expected %" PRId64,
                       all, t, count);
    bool twice = false;
    for (size_t i = 1, block = 0; i < n && !twice; i++) {
        const bool goes_on = of_one_block(saved[i - 1], saved[i]);
        block = goes_on ? block : i;
        twice = goes_on && saved[i]->first < saved[i - 1]->end;
        for (size_t k = 0; k < block && !twice; k++)
            twice = overlap(saved[i], saved[k]);
    }
    return twice ? err_set(e, -EINVAL, "two ranks save the same elements of tensor %d of a checkpoint", t) : 0;
}

static int check_cover(const struct exchange *x, const int64_t *counts, int ntensors, struct err *e)
{
    const size_t all = x->begin[x->world];
    const struct piece **saved = calloc(all + 1, sizeof *saved);
    size_t n = 0, from = 0;
    int rc = saved ? 0 : err_errno(e, ENOMEM, "%zu pieces of a checkpoint", all);
    for (size_t i = 0; i < all && rc == 0; i++) {
        rc = check_piece(&x->pieces[i], counts, ntensors, e);
        if (x->pieces[i].saved)
            saved[n++] = &x->pieces[i];
    }
    if (rc == 0)
        qsort(saved, n, sizeof *saved, by_place);
    for (int t = 0; t < ntensors && rc == 0; t++) {
        size_t to = from;
        while (to < n && saved[to]->tensor == t)
            to++;
        rc = check_saved(saved + from, to - from, t, counts[t], e);
        from = to;
    }
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
