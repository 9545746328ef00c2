/* The state goes to other owners, where the number of ranks has changed and parts of it are cut for so many of them
 * (ZeRO): over the communicator, a piece at a time, from the ranks that updated it to those that will. No file is
 * touched.
 *
 *   round n, 4 ranks    | 0, 2 | 1, 3 | 0, 2 | 1, 3 |     owner and second owner; ranks 2 and 3 are lost
 *   round n + 1, 2      |   0, 1    |   0, 1       |
 *
 * Both states are there until the new one is whole everywhere: a round that breaks in between leaves the old one as it
 * was. What every rank has whole (statistics; below level 3 parameters, averages and sums of gradients, too) has one
 * place in memory for both. So besides what a rank always holds there are, until then, its old moments, at level 3 its
 * old parameters, averages and sums, and a buffer of RESHARD_ROOM. */
#ifndef CRUN_WORKER_STATE_RESHARD_H
#define CRUN_WORKER_STATE_RESHARD_H

#include <stddef.h>

struct comm;
struct err;
struct state;

#define RESHARD_ROOM ((size_t)4 << 20) /* bytes, at least one element of each arena */

/* Of each element that this rank updates in `to`: the parameter, its moments, and, where averages are cut, its average.
 * from: what this rank has, of its own layout and place in it; NULL: nothing. Of parameters a rank has what it updates.
 * c: all ranks that take part; each calls it, with equal whole models. -ENODATA: an element is with nobody. After a
 * failure `to` is undefined where it is not `from`'s memory, and there as good as before. */
int reshard(const struct state *from, struct state *to, struct comm *c, struct err *e);

#endif
