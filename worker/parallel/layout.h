/* Which rank does what: data parallel replicas, tensor groups, pipeline stages. Pure: no I/O, no clock, no memory.
 *
 *   ranks that take part = data x tensor x stages; rank = (stage * data + d) * tensor + t
 *
 *                        d = 0      d = 1           data = 2, tensor = 2, stages = 2
 *                        t: 0  1    t: 0  1
 *             stage 0       0  1       2  3         tensor group of rank 2: {2, 3}     data group: {0, 2}
 *             stage 1       4  5       6  7         batch group: {0, 1, 2, 3}          stage group: {2, 6}
 *
 * A replica of the model is tensor x stages ranks. The ranks of a tensor group hold parts of its split parameters and
 * copies of the others; they take different samples, so that all ranks of a stage share a batch. Consecutive ranks are
 * mostly of one machine: tensor groups talk most and lie closest.
 *
 * Ranks beyond data x tensor x stages are spares. Who owns which part of an arena: ownership.h. */
#ifndef CRUN_WORKER_LAYOUT_H
#define CRUN_WORKER_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

struct err;

struct layout {
    int world;                /* ranks there are, spares included */
    int data, tensor, stages; /* >= 1 */
    /* what is cut over the ranks that hold copies: 0 nothing, 1 moments, 2 gradients, too, 3 parameters, too */
    int zero;
    bool seconds; /* each part of what is cut has a second owner */
    int nodes;    /* >= 1: that the ranks lie on, one after another, as many on each */
};

/* data = world / (tensor * stages), rounded down; no second owners, one node. ERR_USAGE: a size below 1, zero outside
 * 0..3, or a world that holds no replica. */
int layout_plan(struct layout *ret, int world, int tensor, int stages, int zero, struct err *e);

bool layout_equal(const struct layout *a, const struct layout *b);

int layout_members(const struct layout *l); /* ranks that take part: [0, members) */
bool layout_is_spare(const struct layout *l, int rank);

struct layout_place {
    int stage, data, tensor;
};
struct layout_place layout_place(const struct layout *l, int rank); /* of a rank that takes part */
int layout_rank(const struct layout *l, struct layout_place p);

enum layout_group {
    LAYOUT_ALL,    /* who takes part */
    LAYOUT_BATCH,  /* of one stage: data x tensor */
    LAYOUT_DATA,   /* of one stage and one place in the tensor group: who holds the same parts */
    LAYOUT_TENSOR, /* of one stage and one replica: who holds the parts of one copy */
    LAYOUT_STAGES, /* of one place in all stages: a pipeline */
    LAYOUT_ENDS,   /* of one place in the first and the last stage, who may share a parameter */
    LAYOUT_GROUPS
};

/* Ranks first, first + stride, ...: count of them; index: which of them the asking rank is. */
struct layout_ranks {
    int first, stride, count, index;
};
struct layout_ranks layout_group(const struct layout *l, enum layout_group g, int rank); /* that `rank` is in */
int layout_group_rank(const struct layout_ranks *g, int index);

/* Of what is cut over a group its member i is the owner of part i, and member (i + distance) % count the second one,
 * which repeats the owner's update of it: another rank, of another node for as many parts as ranks allow. 0: there are
 * no second owners, or nobody else is in the group. */
int layout_second_distance(const struct layout *l, const struct layout_ranks *g);

/* The same place in the next stage (by = 1) or the one before (by = -1); -1: there is none. */
int layout_neighbour(const struct layout *l, int rank, int by);

/* The rank that collects what is saved, and speaks for the run. */
int layout_writer(const struct layout *l);

/* Part `index` of n things over `parts` ranks: sizes differ by one at most, the first ones are the larger. */
struct layout_part {
    size_t first, n;
};
struct layout_part layout_part(size_t n, int parts, int index);

#endif
