/* A model in parts, for the stages of a pipeline. Pure, but for the memory of programs.
 *
 *   the whole program -> stages_places(): where one tensor alone joins what is before and what is behind
 *   -> stages_cut(): parts of about equal cost; or stages_cut_at(): before layers that are named
 *   -> stages_program(): the program of one stage, its parts as chunks of it (program.h)
 *
 * A stage's program has its own parameters alone, under their names, so arenas, states and plans are of the stage. It
 * takes a tensor of its name from the stage before it; gradients of that go back. A table that the embedding and the
 * head share is a parameter of the first and of the last stage, which are tied by it (param.tied): each makes its share
 * of the gradient, and updates its copy by the sum of both. */
#ifndef CRUN_WORKER_PROGRAM_STAGES_H
#define CRUN_WORKER_PROGRAM_STAGES_H

#include <stddef.h>

struct err;
struct program;

enum { STAGES_PARTS_MAX = 256 };

/* Forward ops before which the program may be cut, ascending, into places[nfwd]; how many. Between them lie a
 * parameter or more before the first one, and the logits are behind the last one. */
int stages_places(const struct program *whole, int *places);

/* cuts[parts - 1]: the ops that the parts from the second one on begin with, so that the most expensive part is as
 * cheap as can be. Equal on all ranks of a tensor group. -EINVAL: there are not so many parts. */
int stages_cut(const struct program *whole, int parts, int *cuts, struct err *e);

/* The same before the layers (tensors "name" or "name.…") that a list names, separated by commas. -EINVAL: no such
 * layer, not in the model's order, not as many as it takes, or more than one tensor would have to be sent; with what is
 * possible. */
int stages_cut_at(const struct program *whole, const char *names, int parts, int *cuts, struct err *e);

/* The first of the parts of which parameters are trained; `parts`: none. Those before it are sent no gradients. */
int stages_first_trained(const struct program *whole, const int *cuts, int parts);

/* Floating-point operations of forward op `op` for one image, memory traffic counted as such. */
double stages_cost(const struct program *whole, int op);

/* Parts `stage`, `stage` + `stages`, ... of `parts`, differentiated. Freed with program_destroy(). */
int stages_program(struct program **ret, const struct program *whole, const int *cuts, int parts, int stages, int stage,
                   struct err *e);

#endif
