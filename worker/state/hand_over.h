/* The state of ranks that have it to ranks that do not, over the communicator, a piece at a time: no file is touched,
 * and nobody holds more than a buffer besides. */
#ifndef CRUN_WORKER_STATE_HAND_OVER_H
#define CRUN_WORKER_STATE_HAND_OVER_H

#include <stdbool.h>

struct comm;
struct err;
struct state;

enum hand_over_what {
    HAND_OVER_UPDATED,  /* parameters, those that a rank updates itself, and moments */
    HAND_OVER_FOLLOWED, /* averages, which follow once all parameters are there, and statistics */
    HAND_OVER_WHOLE     /* of those what every rank of a group has whole */
};

/* Who is not here[members] gets what it keeps, one rank after another, each element from a rank that is;
 * holders_check() has found that there are such. c: of all ranks that take part; each calls it with the same
 * arguments. */
int hand_over(struct state *s, struct comm *c, const bool *here, enum hand_over_what what, struct err *e);

#endif
