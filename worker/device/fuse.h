/* Which ops ride along with another one, having no memory traffic of their own. Pure; cpu and cuda plans use it.
 *
 *   forward   BN, ADD with something else, RELU   done by the last of them; ADD and RELU may be absent
 *   backward  gradient ADD, RELU_BWD, BN_BWD      done by BN_BWD; the result of RELU_BWD is stored if others read it
 *   chains    ops that work element by element    done by the last of them (fuse_chains())
 *
 * An op is taken along only if nobody else reads what it makes. */
#ifndef CRUN_WORKER_DEVICE_FUSE_H
#define CRUN_WORKER_DEVICE_FUSE_H

#include <stdbool.h>

struct op;
struct plan_options;
struct program;

struct fused {
    bool skip;             /* another op does it */
    int bn, add, relu;     /* forward: this op is the last of BN [+ ADD] [+ RELU]; -1 where absent */
    int other;             /* add: the tensor that is added to BN's, else -1 */
    int relu_bwd, add_bwd; /* BN_BWD: takes these along */
    bool store_dz;         /* others read the result of relu_bwd */
    int chain, next;       /* the last op of a chain: its first one; all others: the one behind. -1 where absent */
};

enum { FUSE_CHAIN_MAX = 6 };

/* readers: per tensor, of all ops that this kind of plan could run (fuse_readers()). out: per op of the program;
 * those of [first_op, end_op) are set. nothing: mark no op (tests want every tensor). */
void fuse_ops(const struct program *p, int first_op, int end_op, const int *readers, bool nothing, struct fused *out);

/* After fuse_ops(), of what that has left: ops that work element by element, each of which is all that reads the result
 * of the one before it. Their results have one type. One of them at most has parameters; if it writes gradients it is
 * the last. */
void fuse_chains(const struct program *p, const struct plan_options *o, int first_op, int end_op, const int *readers,
                 struct fused *out);
/* The input of such an op that it works on: of a backward one the gradient. In a chain, `from` is the op before. */
int fuse_value(const struct program *p, const struct op *op, const struct op *from);

void fuse_readers(const struct program *p, bool training, int *readers);

/* May somebody ask for this tensor when ops [first_op, end_op) have run? The logits, what ops elsewhere read, what
 * nobody reads, and what was made elsewhere. */
bool fuse_outlives(const struct program *p, int first_op, int end_op, const int *readers, int tensor);

#endif
