/* One of several daemons over one state (--state): who leads serves the jobs in it, the others stand by.
 *
 * The state is a home (rdzv_home.h) with one claim for all jobs, and their log (state_shared.h). Who claims, renews and
 * releases is said by the election of nodes (common/rdzv/client/election.h), of which a daemon that stands by is a node
 * that goes on looking. It also dials whoever leads, every PROBE_MS, and hangs up: an address that took such a call and
 * now refuses one has no process any more, so the claim is replaced at once, and D is owed.
 *
 * A daemon has one term at most. Who has lost its claim cannot know what its clients were told since, so it begins
 * anew, as a process without jobs, connections or keys (lost()). Loop thread only, but for what waits for the home and
 * what dials. */
#ifndef CRUN_RENDEZVOUSD_STANDBY_H
#define CRUN_RENDEZVOUSD_STANDBY_H

#include <stdbool.h>
#include <uv.h>

#include "rendezvousd/net/server.h"

struct err;
struct jobs;
struct rdzv_home;
struct standby;

#define STANDBY_RUN "rendezvousd" /* the run id under which a home keeps the state */

struct standby_options {
    const char *state;        /* a folder's path, "file:///...", "etcd://...", "etcds://..." or "k8s://..." */
    const char *advertise;    /* where others reach this daemon, numeric */
    void (*leads)(void *arg); /* the jobs of the state are loaded, and served from now on */
    /* This daemon's term is over, and not by standby_leave(). why: the state makes no sense; NULL: another one leads,
     * or the state took a decision of ours too late */
    void (*lost)(void *arg, const struct err *why);
    void (*left)(void *arg); /* after standby_leave(): the claim is released, or that was tried */
    void *arg;
};

/* -EINVAL: not such a state; -ENOMEM; or no process for a folder can be started. Before any job or thread. */
int standby_open(struct standby **ret, uv_loop_t *loop, const struct standby_options *o, struct err *e);
/* Begin: `jobs` (jobs_options.shared is standby_log()) get those of the state once this daemon leads. */
void standby_begin(struct standby *s, struct jobs *jobs, int port);
struct state_shared *standby_log(struct standby *s);
const struct server_standby *standby_notice(const struct standby *s); /* for server_set_standby() */
bool standby_is_leading(const struct standby *s);
/* Serve nobody any more, and release the claim: left() follows, within KEEPER_FAREWELL_MS. */
void standby_leave(struct standby *s);
/* All jobs must have been destroyed. NULL allowed; the loop must turn once more. */
void standby_close(struct standby *s);

#endif
