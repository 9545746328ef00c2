/* Where a rendezvous lives: a daemon's memory or its directory, a Redis, a folder all nodes share, or (tests/sim) a
 * simulated one of them.
 *
 * What a home keeps for one job:
 *   - the log of decisions: appended to by one leader at a time, and fenced: an older leader's append is refused;
 *   - the epoch: the mark of the newest leader's reign, changed by claim() only, never used twice;
 * and where agents elect their leader (Redis, shared folder), for those who have no connection to it:
 *   - the pulse: a short record that the leader renews. It proves nothing; one that stands still lets others claim;
 *   - for each node its beat (written by the node: that it lives, and what it asks) and its slot (written by the
 *     leader: its news and answers).
 * The memory and the directory of a daemon have one owner, and members come to it by connections: of the calls below
 * they have the log's alone.
 *
 * A call is asked and waited for: the caller's thread sleeps until the answer, the call's deadline, or a cancel, and
 * never on a disk. A Redis is waited for on its sockets. A folder may hold whoever touches it in the kernel, deaf to
 * SIGKILL, for as long as its server is away; so it is touched by a process of its own (home_process.h), and waited for
 * on a socket as well. A daemon's loop waits for nothing: what is appended to its directory (rendezvousd/state), by a
 * process of its own too, is reported by landed(). One thread per handle; only rdzv_home_interrupt() and
 * rdzv_home_cancel() may be called from any thread.
 *
 * Calls return 0 (or a documented value), or a negative code: the connection or the file system failed, and what was
 * asked may or may not have happened, or happens later still (a disk that comes back): that is what fence, epoch and
 * the numbers in beats and slots are for. -ETIMEDOUT: no answer within the deadline; -ECANCELED. Times are milliseconds
 * of now(). */
#ifndef CRUN_COMMON_RDZV_HOME_H
#define CRUN_COMMON_RDZV_HOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

struct err;
struct rdzv_home;

#define RDZV_IDENTITY_MAX 95
#define RDZV_EPOCH_MAX 47 /* bytes of an epoch: "12-5f0c9a77d1e2b344-0a1b2c3d", the last word being the server's mark */
#define RDZV_MARK_LEN 8

/* What a node sees at one moment. The buffers are the caller's, overwritten. */
struct rdzv_view {
    char epoch[RDZV_EPOCH_MAX + 1];       /* "": nobody ever led this job, or its home was emptied */
    char identity[RDZV_IDENTITY_MAX + 1]; /* which server reported it (identity() up to a '-'); "": there is but one */
    struct buf pulse, slot;
};

struct rdzv_slot_write {
    const char *node;
    const char *text;
    size_t len;
    bool quiet; /* no news: the node need not be woken for it */
};

/* One batch: all that a turn of the leader decided, and what it means for each node that gets news. It stands as a
 * whole or not at all. */
struct rdzv_write {
    const struct buf *decision; /* NULL: slots alone, whose nodes do not seem to have seen them */
    const struct rdzv_slot_write *slots;
    size_t slot_count;
    bool whole; /* the decision contains all that those before it do: they may be dropped */
    bool over;  /* the job is over: its traces may go after a while */
};

typedef void rdzv_beat_visit(void *arg, const char *node, const char *beat, size_t n);

enum { RDZV_UNDER_WAY = 2 }; /* it will stand, and landed() says when */

struct rdzv_home_ops {
    const char *name;

    /* --- the leader: from identity() on over one connection; when that is lost, every call fails until the next
     * identity() ---- */
    /* Which incarnation of the home we are connected to. While it is the same, nothing written was ever lost. */
    int (*identity)(struct rdzv_home *h, char ret[RDZV_IDENTITY_MAX + 1], struct err *e);
    /* Become the leader if the epoch is still `seen` ("": none): it becomes `epoch`, and record is the first decision
     * under it (not written where there is but one owner). 1, or 0 if somebody else was first. */
    int (*claim)(struct rdzv_home *h, const char *seen, const char *epoch, const struct buf *record, struct err *e);
    /* Append the decisions, from the newest whole one on, to *ret. Only after claim(). */
    int (*load)(struct rdzv_home *h, struct buf *ret, struct err *e);
    /* By rdzv_home_append(). 1: the decision stands and the slots are written; 0: another one leads, nothing happened;
     * RDZV_UNDER_WAY. */
    int (*append)(struct rdzv_home *h, const struct rdzv_write *w, struct err *e);
    /* The node takes its leave: its traces may go, and if it is the last, the job's. NULL: the job is forgotten. */
    void (*forget)(struct rdzv_home *h, const char *node);
    void (*close)(struct rdzv_home *h); /* NULL allowed; waits for nobody */

    /* --- from here on only where leaders are elected */
    int64_t (*now)(struct rdzv_home *h);
    /* After identity(): for how long another server may have gone on acknowledging what this one does not know (a Redis
     * primary behind a partition); NULL: never. */
    int64_t (*lag_ms)(struct rdzv_home *h);
    /* After identity(): this server took over from one that lag_ms() is about, and no decision of any job shows that
     * somebody has waited since. NULL: never. */
    bool (*took_over)(struct rdzv_home *h);
    /* 1, or 0: another one leads. */
    int (*pulse)(struct rdzv_home *h, const struct buf *record, struct err *e);
    /* Beats of all nodes, or of those that called since the last time. */
    int (*beats)(struct rdzv_home *h, bool all, rdzv_beat_visit *visit, void *arg, struct err *e);
    /* Until a node calls, the time is over, or interrupt(). */
    int (*wait_calls)(struct rdzv_home *h, int64_t timeout_ms, struct err *e);

    /* --- every node */
    /* Write our beat, then see: nothing is seen that was there before the beat was. call: the leader should look
     * soon. */
    int (*exchange)(struct rdzv_home *h, const char *node, const struct buf *beat, bool call, struct rdzv_view *ret,
                    struct err *e);
    /* Until the slot of the node may have changed, the time is over, or interrupt(). */
    int (*wait_slot)(struct rdzv_home *h, const char *node, int64_t timeout_ms, struct err *e);
    /* The address under which others reach this host, as far as the home can tell. */
    int (*address)(struct rdzv_home *h, char *ret, size_t cap, struct err *e);
};

struct rdzv_home {
    const struct rdzv_home_ops *ops; /* first member of every home's struct */
    int wake_fd, cancel_fd;          /* eventfds, readable: interrupted; cancelled */
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

/* The wait under way (wait_slot, wait_calls), or else the next one, returns at once. */
void rdzv_home_interrupt(struct rdzv_home *h);
/* The call under way, and all that follow, end at once with -ECANCELED. For good. */
void rdzv_home_cancel(struct rdzv_home *h);

struct rdzv_home_options {
    const char *run_id;
    int64_t io_timeout_ms; /* of one call */
    int64_t keep_ms;       /* how long traces outlive the last beat or pulse; 3600000 */
    bool allow_unsafe;     /* a leader takes a Redis that may lose what it acknowledged while an old primary lives */
    int64_t max_lag_ms;    /* that of a Redis which does not say its min-replicas-max-lag; 0: not known */
    /* The socket to a process that runs home_process(), which then does what may be held by a disk; borrowed. 0: none,
     * and calls of a folder may block in the kernel. */
    int process_fd;
    int wake_fd; /* an eventfd that interrupts arrive at, taken over; 0: one of its own */
};

/* What an epoch says of the server it was claimed on: a sum of its identity up to a '-'. */
void rdzv_home_mark(const char *identity, char ret[RDZV_MARK_LEN + 1]);

/* url: "redis://...", "rediss://...", "redis+sentinel://...", "rediss+sentinel://..." or "file:///dir". -EINVAL with a
 * sentence for a bad one; the home itself is first reached by the first call. */
int rdzv_home_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);

/* The memory of this process: what is appended stands, and nobody reads it again. The struct is the caller's. */
void rdzv_memory_init(struct rdzv_home *ret);

#endif
