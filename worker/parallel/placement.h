/* Where an activation is, over the ranks of the data axis and of the tensor axis, and what it takes to have it placed
 * otherwise. Pure.
 *
 * On one axis of n ranks that hold v_0 ... v_n-1, the value v is
 *   whole     v = v_0 = ... = v_n-1
 *   split     v = v_0 ... v_n-1 side by side along a dimension (uneven parts: layout_part())
 *   partial   v = v_0 + ... + v_n-1
 *
 * A transfer keeps v. Gradients have placements of their own, and a transfer back: where a value is split its gradient
 * is, too; where it is partial all terms have the same gradient, which is whole; where it is whole the gradient is
 * whole if all ranks do the same with it, and partial if each uses it for something else, as the parts of a split layer
 * do. With that the usual pairs come by themselves:
 *
 *   activation                            transfer       of its gradient
 *   split          -> whole, other use    all-gather     reduce-scatter    samples before a split layer
 *   split          -> whole, same use     all-gather     slice
 *   whole          -> whole, other use    none           all-reduce        the input of a split layer (Megatron's f)
 *   partial        -> whole, same use     all-reduce     none              its output (Megatron's g)
 *   partial        -> split               reduce-scatter all-gather
 *   whole          -> split               slice          all-gather
 *
 * f, g: M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3. */
#ifndef CRUN_WORKER_PLACEMENT_H
#define CRUN_WORKER_PLACEMENT_H

#include <stdbool.h>

enum placement_kind { PLACE_WHOLE, PLACE_SPLIT, PLACE_PARTIAL };

struct placement { /* on one axis */
    enum placement_kind kind;
    int dim; /* SPLIT: the dimension, else 0 */
};

#define TRANSFERS(X)                                                                                                   \
    X(TRANSFER_NONE, "none")                                                                                           \
    X(TRANSFER_SLICE, "slice")                   /* each rank takes its part of what it has */                         \
    X(TRANSFER_PAD, "pad")                       /* each rank puts zeros around its part: a term of the sum */         \
    X(TRANSFER_FIRST, "first")                   /* the first rank keeps the whole, the others have zeros */           \
    X(TRANSFER_ALL_GATHER, "all-gather")         /* parts side by side, on all ranks */                                \
    X(TRANSFER_ALL_REDUCE, "all-reduce")         /* sum of the terms, on all ranks */                                  \
    X(TRANSFER_REDUCE_SCATTER, "reduce-scatter") /* each rank gets its part of the sum */                              \
    X(TRANSFER_ALL_TO_ALL, "all-to-all")         /* from parts along one dimension to parts along another */

enum transfer_kind {
#define X(kind, name) kind,
    TRANSFERS(X)
#undef X
        TRANSFER_KINDS
};
const char *transfer_name(enum transfer_kind k);

struct transfer {
    enum transfer_kind kind;
    int from_dim, to_dim; /* dimension that is gathered or given up; that is cut or filled up; 0 where there is none */
};

bool placement_equal(struct placement a, struct placement b);

/* On one axis. */
struct transfer placement_transfer(struct placement from, struct placement to);

/* A value together with its gradient, on one axis. */
struct placement_pair {
    struct placement value, gradient;
};
bool placement_is_pair(struct placement_pair p); /* can the two belong together? */
struct transfer placement_transfer_back(struct placement_pair from, struct placement_pair to);

/* Both axes. Parts along the same dimension are nested: cut over the data axis first, then over the tensor axis (as
 * ranks are numbered). */
enum placement_axis { AXIS_DATA, AXIS_TENSOR, AXES };

struct transfer_step {
    enum placement_axis axis;
    struct transfer transfer;
};
enum { TRANSFER_STEPS = 3 };

/* Steps, in order; returns how many. Where the data axis changes a dimension that the tensor axis cuts before and
 * after, the tensor axis is made whole in between. */
int placement_steps(const struct placement from[AXES], const struct placement to[AXES],
                    struct transfer_step steps[TRANSFER_STEPS]);

#endif
