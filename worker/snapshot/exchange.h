/* Which rank holds what of each tensor of a checkpoint. Pure, but for the memory of its lists.
 *
 * A tensor is `rows` lines of `line` elements. A rank holds pieces of it: a block of columns, and of that block the
 * elements [first, end), counted row by row. So a slice of a whole parameter is a piece of one line, rows of a layer
 * that ranks share are blocks of full width, and its columns are blocks that are narrower.
 *
 *        line = 6, block of column 2, 3 columns            elements of the block
 *        . . 0 1 2 .                                       first = 1, end = 5: those in capitals
 *        . . 3 4 5 .       row 1:  . . 3 4 5 .             . . 0 A B .
 *                                                          . . C D 5 .
 * Each element of a tensor is `saved` by one rank; copies that others hold are not. */
#ifndef CRUN_WORKER_SNAPSHOT_EXCHANGE_H
#define CRUN_WORKER_SNAPSHOT_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct piece {
    int32_t tensor;         /* in a list that is the same on all ranks */
    int32_t saved;          /* 1: this rank gives it when a checkpoint is saved */
    int64_t line;           /* elements */
    int64_t row, col, cols; /* of the block: its first row and column, its width */
    int64_t first, end;     /* elements of the block */
};

/* n elements of the tensor from element `whole` on: those of the block from `held` on. */
struct segment {
    int64_t whole, held, n;
};

/* The first segment of the piece in elements [from, to) of the tensor; false: none. The next one: from = whole + n. */
bool piece_segment(const struct piece *p, int64_t from, int64_t to, struct segment *ret);
/* What the piece has of elements [from, to) of the tensor: elements [*first, *first + n) of the block; returns n. */
int64_t piece_range(const struct piece *p, int64_t from, int64_t to, int64_t *first);
int64_t piece_count(const struct piece *p);

/* Lists of all ranks: those of rank r are [begin[r], begin[r + 1]), by tensor. */
struct exchange {
    int world;
    size_t *begin;
    struct piece *pieces;
};

/* Owns both lists afterwards, also on failure. counts[ntensors]: elements. -EINVAL names a tensor of which the ranks
 * do not save each element once. */
int exchange_init(struct exchange *x, int world, size_t *begin, struct piece *pieces, const int64_t *counts,
                  int ntensors, struct err *e);
void exchange_finish(struct exchange *x);

/* The pieces that a rank holds of a tensor: *n of them. */
const struct piece *exchange_of(const struct exchange *x, int rank, int tensor, size_t *n);
/* Does the rank hold all of the tensor, `count` elements? */
bool exchange_whole(const struct exchange *x, int rank, int tensor, int64_t count);
bool exchange_all_whole(const struct exchange *x, int tensor, int64_t count);

#endif
