/* Are all replicas equal? Every rank hashes what it holds copies of; the hashes are compared within the groups that
 * hold those copies (ownership.h): parameters, both moments, running statistics, moving averages, and sums of
 * gradients.
 *
 * What has one owner cannot be compared: with --zero moments, and sums of gradients but for the rest of a run (level 3:
 * parameters and averages, too). A bit that flips there goes into what its owner hands to all, and is the same
 * everywhere. Nor can what a rank adds to the sums: a gradient that is wrong before it is reduced is wrong on all. */
#ifndef CRUN_WORKER_REPLICAS_H
#define CRUN_WORKER_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"

struct comm;
struct err;
struct layout;
struct state;

#define REPLICAS_ARENAS(X)                                                                                             \
    X(REPLICAS_PARAMS, "parameters")                                                                                   \
    X(REPLICAS_MOMENTUM, "momentum")                                                                                   \
    X(REPLICAS_SECOND, "second moments")                                                                               \
    X(REPLICAS_STATS, "running statistics")                                                                            \
    X(REPLICAS_EMA_PARAMS, "averaged parameters")                                                                      \
    X(REPLICAS_EMA_STATS, "averaged statistics")                                                                       \
    X(REPLICAS_SUMS, "sums of gradients")                                                                              \
    X(REPLICAS_PAST, "parameters in earlier steps") /* of whoever keeps hashes of them, else 0 */
enum replicas_arena { REPLICAS_ARENAS(CHOICE_ID) REPLICAS_N };
const char *replicas_arena_name(enum replicas_arena a);

struct replicas_hashes {
    uint32_t of[REPLICAS_N][3]; /* of what the batch group holds copies of, the data group, and two tied stages */
};

/* Of this rank. sums: of the last step's sums of gradients and statistics, too, which are all there. */
int replicas_hash(struct state *s, bool sums, struct replicas_hashes *ret, struct err *e);

/* Of the parameters in memory alone, as quickly as can be. Host devices. */
uint32_t replicas_hash_params(const struct state *s);

/* all: of each rank of the layout. 0 if equal; ERR_MISMATCH names the arena and the first rank that differs from what
 * more than half of its group has, or, where no half agrees (two ranks), from the first of its group. */
int replicas_compare(const struct layout *l, const struct replicas_hashes *all, struct err *e);

/* All ranks: hash, and compare. */
int replicas_check(struct state *s, struct comm *c, bool sums, struct err *e);

#endif
