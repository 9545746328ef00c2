/* How long a small message to another rank and back takes: tried where all ranks wait for the network, for whoever
 * looks for the one whose link is slow (crun_links() of libcrun). */
#ifndef CRUN_WORKER_LINKS_H
#define CRUN_WORKER_LINKS_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct err;

enum {
    LINKS_EVERY = 10, /* steps: before the last of ten, so that who judges these has it */
    LINKS_PEERS = 8,  /* ranks that one rank tries, at most */
    LINKS_KNOWN = 64  /* steps after which a wait is compared with the usual one */
};

struct links { /* all-zero at first */
    int64_t steps;
    double usual_ns; /* wait of a step, mostly */
};

/* Does this rank wait for the network: for a fifth of the step, and for more than usual? */
bool links_wait(struct links *l, int64_t wait_ns, int64_t total_ns);

/* Who rank `rank` of `world` tries in turn `turn` < world: each rank one other one, or itself (nobody). Pure. */
int links_peer(int rank, int world, int turn);

/* All ranks. Tells crun the result. */
int links_try(struct comm *c, struct err *e);

#endif
