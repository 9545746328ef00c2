/* The leader (leader.h) of a job that lives in a home without a daemon (rdzv_home.h): one agent at a time leads for
 * all.
 *
 * The life of a reign:
 *   - claim the epoch with a record of our own: from then on nothing of an older leader is accepted;
 *   - read the decisions so far into a fresh machine;
 *   - then, until the job is over: look at the nodes' beats, apply what they ask and what time brings, and append each
 *     change as one decision, which carries the slots of all nodes that have news. What is not appended has
 *     not happened: slots follow the log.
 * What goes wrong, and what is done:
 *   - the leader dies, hangs or loses the home: its pulse stands still, and after lease_ms of *its own* clock any other
 *     node claims. An append that was under way is refused or stands as a whole; no two leaders' decisions mix;
 *   - the home itself lost what it had acknowledged (another incarnation of a Redis): nobody is trusted to stand where
 *     the log says. For silence_ms + kill_ms nothing is decided; then all that works without the log's knowledge is
 *     dead (rdzv_seat.h);
 *   - a node's beat stands still: RDZV_SILENT, counted from when it was last seen to move. A beat read silence_ms later
 *     proves that its lease is over: what was written before that would have been seen.
 * Blocking, one thread per host; tests/sim runs it as a coroutine that may crash or pause in every call of the home. */
#ifndef CRUN_COMMON_RDZV_HOST_H
#define CRUN_COMMON_RDZV_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

struct buf;
struct err;
struct rdzv_home;
struct rdzv_host;

struct rdzv_host_options {
    struct rdzv_config job; /* for a job that does not exist yet */
    const char *node;       /* who leads, for people */
    int64_t heartbeat_ms;   /* between two pulses, and between two looks at all beats */
    bool was_member;        /* this node has seen an epoch there: a home without one was emptied */
    uint64_t (*random)(void *arg);
    void *random_arg;
    const atomic_bool *stop; /* set, then interrupt the home: the reign ends in good order */
};

/* Claim and lead. seen: the epoch that was seen ("": none). Returns 0 when the reign ended in good order (stopped, or
 * the job is over and everybody knows), 1 when another node leads, or the error that ended it: claim again later. */
int rdzv_host_lead(struct rdzv_home *home, const struct rdzv_host_options *o, const char *seen, struct err *e);

/* The job as its decisions have it, for status displays: *ret must be destroyed, and has a machine. -ENOENT: there is
 * none. Writes nothing. */
struct leader;
int rdzv_host_read(struct rdzv_home *home, struct leader **ret, struct err *e);

#endif
