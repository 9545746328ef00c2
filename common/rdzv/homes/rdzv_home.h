/* Where a rendezvous lives: a daemon's memory or its directory, a Redis, an etcd, a Kubernetes, a folder all nodes
 * share, or (tests/sim) a simulated one of them.
 *
 * What a home keeps for one job:
 *   - the log of decisions: appended to by one leader at a time, and fenced: an older leader's append is refused;
 *   - where agents elect their leader (all but those of a daemon) the claim (rdzv_claim.h): who leads, where it
 *     listens, and how often it was renewed. Claim, renewal and release are each one compare-and-set; who is no leader
 *     and has none reads it, nobody else does.
 * The memory and the directory of a daemon have one owner, who needs no claim: of the calls below they have identity,
 * load, append, forget and close. Daemons that share a home (rendezvousd/state/state_shared.h) have one claim for all
 * jobs, and hand out homes without one for each.
 *
 * A call is asked and waited for: the caller's thread sleeps until the answer, the call's deadline, or a cancel, and
 * never on a disk. A Redis or an etcd is waited for on its sockets. A folder may hold whoever touches it in the kernel,
 * deaf to SIGKILL, for as long as its server is away; so it is touched by a process of its own (home_process.h), and
 * waited for on a socket as well. A daemon's loop waits for nothing: what is appended to its directory
 * (rendezvousd/state), by a process of its own too, is reported by landed(). One thread per handle; only
 * rdzv_home_cancel() may be called from any thread.
 *
 * Calls return 0 (or a documented value), or a negative code: the connection or the file system failed, and what was
 * asked may or may not have happened, or happens later still (a disk that comes back): that is what fence, epoch and
 * the count of renewals are for. A call that failed may be made again. -ETIMEDOUT: no answer within the deadline;
 * -ESTALE: a folder's path names another one now, which the next call goes by; -ECANCELED. Times are milliseconds of
 * clock_ms(). */
#ifndef CRUN_COMMON_RDZV_HOME_H
#define CRUN_COMMON_RDZV_HOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/rdzv/homes/rdzv_claim.h"

struct err;
struct rdzv_home;

#define RDZV_IDENTITY_MAX 95

/* All that a turn of the leader decided. It stands as a whole or not at all. */
struct rdzv_write {
    const struct buf *decision;
    const char *epoch; /* whose it is; NULL where there is but one owner */
    bool whole;        /* the decision contains all that those before it do: they may be dropped */
    bool over;         /* the job is over: its traces may go after a while */
};

enum { RDZV_UNDER_WAY = 2 }; /* it will stand, and landed() says when */

struct rdzv_home_ops {
    const char *name;

    /* Which incarnation of the home we are connected to. While it is the same, nothing written was ever lost. From
     * claim() on a home whose incarnation has changed refuses all calls of that leader as if another one led. */
    int (*identity)(struct rdzv_home *h, char ret[RDZV_IDENTITY_MAX + 1], struct err *e);
    /* Append the decisions, from the newest whole one on, to *ret. Leaders: after claim(). */
    int (*load)(struct rdzv_home *h, struct buf *ret, struct err *e);
    /* By rdzv_home_append(). 1: the decision stands; 0: another one leads, nothing happened; RDZV_UNDER_WAY. */
    int (*append)(struct rdzv_home *h, const struct rdzv_write *w, struct err *e);
    /* The job is over, and nobody needs to know any more: its traces may go. */
    void (*forget)(struct rdzv_home *h);
    void (*close)(struct rdzv_home *h); /* NULL allowed; waits for nobody */

    /* --- from here on only where leaders are elected */
    /* 1: *ret is the claim; 0: nobody ever claimed. */
    int (*look)(struct rdzv_home *h, struct rdzv_claim *ret, struct err *e);
    /* After identity(): replace exactly `seen` (epoch "": there is none) by `own`; record is the first line of its log.
     * 1, or 0 if the claim is another one by now. */
    int (*claim)(struct rdzv_home *h, const struct rdzv_claim *seen, const struct rdzv_claim *own,
                 const struct buf *record, struct err *e);
    /* Count own->n up by one, or more where an earlier renewal happened after all; with own->released let it go.
     * 1, or 0: another one has claimed. */
    int (*renew)(struct rdzv_home *h, struct rdzv_claim *own, struct err *e);
    /* After identity(): for how long another server may have gone on acknowledging what this one does not know (a Redis
     * primary behind a partition); NULL: never. */
    int64_t (*lag_ms)(struct rdzv_home *h);
    /* After identity(): this server took over from one that lag_ms() is about, and no decision of any job shows that
     * somebody has waited since. NULL: never. */
    bool (*took_over)(struct rdzv_home *h);
    /* Nobody looks any more, for now: what is kept open for it goes. NULL: nothing is. */
    void (*rest)(struct rdzv_home *h);
    int64_t valid_ms; /* D of a claim here; 0: ELECTION_D_MS */
    /* For so long a leader may go on without the home (rdzv_claim.h). Only where nothing that was written is ever lost.
     * 0: not at all. */
    int64_t away_ms;
};

struct rdzv_home {
    const struct rdzv_home_ops *ops; /* first member of every home's struct */
    int cancel_fd;                   /* an eventfd, readable: cancelled */
    uint64_t asked, stands;          /* numbers of the decision appended last, and of the last that stands */
    /* More of what was under way stands. Called on the owner's loop, may append; NULL: not called. */
    void (*landed)(void *arg);
    /* The log could not be written and is gone: what is appended counts as standing, and is kept nowhere. When it may
     * be written anew, rewrite() is called on the owner's loop, who appends something whole, or waits for the next
     * time. NULL: it stays lost. */
    bool unlogged;
    void (*rewrite)(void *arg);
    void *arg; /* of both */
};

/* Append; it counts as `asked`. As rdzv_home_ops.append. */
int rdzv_home_append(struct rdzv_home *h, const struct rdzv_write *w, struct err *e);

/* The call under way, and all that follow, end at once with -ECANCELED. For good. */
void rdzv_home_cancel(struct rdzv_home *h);

struct rdzv_home_options {
    const char *run_id;
    int64_t io_timeout_ms; /* of one call */
    int64_t keep_ms;       /* how long traces outlive the last renewal; 3600000 */
    bool allow_unsafe;     /* a leader takes a Redis that may lose what it acknowledged while an old primary lives */
    int64_t max_lag_ms;    /* that of a Redis which does not say its min-replicas-max-lag; 0: not known */
    /* The socket to a process that runs home_process(), which then does what may be held by a disk; borrowed. 0: none,
     * and calls of a folder may block in the kernel. */
    int process_fd;
};

/* url: "redis://...", "rediss://...", "redis+sentinel://...", "rediss+sentinel://...", "etcd://...", "etcds://...",
 * "k8s://..." or "file:///dir". -EINVAL with a sentence for a bad one; the home itself is first reached by the first
 * call. */
int rdzv_home_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);

/* The memory of this process: what is appended stands, and nobody reads it again. The struct is the caller's. */
void rdzv_memory_init(struct rdzv_home *ret);

#endif
