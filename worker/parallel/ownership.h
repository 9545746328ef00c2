/* Who owns what of the arenas (program.h). Pure, but for the memory of its lists.
 *
 * A rank's arena of parameters is cut into pieces. All elements of a piece are summed in one group of ranks, those that
 * hold copies of it: gradients of whole parameters over the batch group, of parameters split over the tensor group over
 * the data group. A piece is as much as is sent at once (a bucket); gradients lie in backward order, so piece k is
 * complete before piece k + 1.
 *
 *   zero = 0   every rank of the group has all of the piece:
 *                all-reduce of gradients, everybody updates everything
 *   zero > 0   each rank of the group owns one part of the piece, part `index` of equal ones:
 *                reduce-scatter of gradients, everybody updates its part, all-gather of parameters
 *
 *   arena of gradients    | piece 0 (split params) | piece 1       | piece 2       |rest|
 *   zero > 0, batch of 4                           |p0 |p1 |p2 |p3 |p0 |p1 |p2 |p3 |all |
 *
 * Parts are multiples of OWNERSHIP_ALIGN elements. What is left of a run of like parameters is less than one unit a
 * rank: the rest, a piece that every rank of the group has all of.
 *
 *   arena          summed         zero = 0   1       2       3          (H: all of it on each rank of the group;
 *   parameters     -              H          H       H       own         own: what it updates)
 *   gradients      as above       H          H       own     own
 *   moments        -              H          own     own     own
 *   averages       -              H          H       H       own
 *   statistics     batch group    H          H       H       H
 *
 * With second owners (layout.h) `own` is two parts of each piece that is cut: the rank's, and the one of which it is
 * the second owner. It gets the sums of both and makes the same update of both, bit for bit.
 *
 * Frozen parameters lie behind the others, in pieces of their own: nothing of them is summed or updated, so they are
 * cut with zero = 3 alone, and there are no moments of them.
 *
 * With zero = 3 a piece is also what is gathered at once: some parameters side by side, at least a small bucket's
 * worth, or a part of a large one. Where parameters are padded to a unit of all ranks (program_align()) a piece ends
 * where a parameter does. Of moments only what is owned has a place, side by side. The other arenas are address
 * space: their elements stay where they are, memory is there for what is owned, and for the rest while it is used. But
 * where memory is not the host's (`compact`) parameters and averages lie as moments do.
 *
 * A parameter that the first and the last stage hold (param.tied) has pieces of its own, equal ones in both, so a rank
 * of one stage has the same part of them as the rank at its place in the other.
 *
 * Averages are held as the parameters are: a model is evaluated with them. All ranks of a group find the same pieces of
 * it, in the same order. Where in the arena they are differs, if parts of split parameters before them are uneven. */
#ifndef CRUN_WORKER_OWNERSHIP_H
#define CRUN_WORKER_OWNERSHIP_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/parallel/layout.h"

struct err;
struct program;

enum { OWNERSHIP_ALIGN = 16 }; /* elements; parameters begin at multiples of it */

enum ownership_arena { OWNERSHIP_PARAMS, OWNERSHIP_GRADIENTS, OWNERSHIP_MOMENTS, OWNERSHIP_AVERAGES };

/* [first, end) of the arena; empty: first == end. kept: where its first element is in arenas of which only what is
 * owned has a place. */
struct ownership_range {
    size_t first, end, kept;
};

struct ownership_piece {
    size_t first, end;             /* elements of the arena */
    enum layout_group group;       /* who holds copies: gradients are summed over it */
    size_t part;                   /* elements of a rank's part; 0: not cut */
    int ranks, index;              /* of the group; this rank's in it */
    int distance;                  /* to the second owner (layout_second_distance()) */
    struct ownership_range mine;   /* this rank's part, or all of a piece that is not cut: it updates it */
    struct ownership_range second; /* it is the second owner of, and updates, too; empty: nothing */
    struct ownership_range saved;  /* it saves: of its group's ranks one saves each element */
    bool tied;                     /* another stage has it, too, cut alike: what a rank has of the sums, or all of them,
                                    * is summed once more over LAYOUT_ENDS */
};

struct ownership {
    struct layout layout;
    int rank;
    size_t n_train, n_params;       /* elements of this rank's whole arenas: of gradients; of parameters */
    struct ownership_piece *pieces; /* (npieces + 1), the last one empty, of the batch group, for the tail (ddp.h) */
    int npieces, nbuckets;          /* nbuckets: the first ones, of trained parameters, which are summed */
    struct ownership_range *owned;  /* what this rank updates, ascending, neighbours in one */
    int nowned;
    struct ownership_range copy; /* elements that the first stage has, too, and saves, and counts in norms; or none */
    bool whole_gradients, compact;
};

struct ownership_options {
    size_t elem_bytes;         /* of the arena */
    size_t bucket_bytes;       /* of gradients that are sent at once, 0: 25 MiB; rounded up to what can be cut */
    size_t first_bucket_bytes; /* of the first and of the last; 0: 1 MiB */
    bool whole_gradients;      /* level 2 of ZeRO cuts moments alone */
    bool compact;              /* parameters and averages that are cut take the place of what is owned, and no more */
};

/* Of `rank`, whose program p is: parameters with `sharded` are its part of those that the tensor group splits. */
int ownership_init(struct ownership *own, const struct layout *l, int rank, const struct program *p,
                   const struct ownership_options *o, struct err *e);
/* A rank that is alone. */
int ownership_init_alone(struct ownership *own, const struct program *p, struct err *e);
void ownership_finish(struct ownership *own);

struct layout_ranks ownership_group(const struct ownership *own, enum layout_group g); /* of this rank */

/* Does this rank keep only what it owns of an arena? Else all of it. */
bool ownership_is_cut(const struct ownership *own, enum ownership_arena a);
size_t ownership_elements(const struct ownership *own, enum ownership_arena a); /* that this rank keeps */

/* Do other ranks have elements of the model, or sums of gradients, that this one does not have? Then norms and the like
 * take all of them (`saved` of the pieces). */
bool ownership_is_spread(const struct ownership *own);

/* Has this rank's stage a parameter that another stage has, too? */
bool ownership_ties(const struct ownership *own);

/* Do parameters that others own come and go (residency.h)? */
bool ownership_gathers(const struct ownership *own);

/* Does each rank update a part of the parameters, which all then get (ZeRO 1 and 2)? */
bool ownership_is_handed_out(const struct ownership *own);

/* Do other ranks have elements, or sums of gradients, of tensors that this one has a part of? */
bool ownership_cuts_tensors(const struct ownership *own);

/* [first, end) of a piece that rank `index` of its group updates. */
struct ownership_range ownership_part(const struct ownership_piece *piece, int index);

/* What this rank updates nothing of, of a piece that is cut: *n ranges between what it does. */
enum { OWNERSHIP_GAPS = 3 };
void ownership_gaps(const struct ownership_piece *piece, struct ownership_range ret[OWNERSHIP_GAPS], int *n);
/* Elements of a piece that this rank does not update, 0: it is not cut; and those that it does. */
size_t ownership_foreign(const struct ownership_piece *piece);
size_t ownership_updated(const struct ownership_piece *piece);

/* Of gradients, that is, of trained parameters: */
size_t ownership_largest_piece(const struct ownership *own); /* elements, at least 1: what a buffer for any takes */
size_t ownership_largest_part(const struct ownership *own);  /* of a rank; 0: nothing is cut */
/* Elements of gradients that wait to be reduced, at most, where they are cut: then backward waits. */
size_t ownership_window(const struct ownership *own);

/* What is summed as bucket k: piece k < nbuckets, or (k == nbuckets) nothing but the tail. */
const struct ownership_piece *ownership_bucket(const struct ownership *own, int k);

/* Where element i, which this rank keeps, is in its memory of the arena. */
size_t ownership_place(const struct ownership *own, enum ownership_arena a, size_t i);

/* The part of [first, end) that the k-th owned range has; first == end: none. */
struct ownership_range ownership_clip(const struct ownership *own, int k, size_t first, size_t end);

#endif
