/* The rendezvous of one job: a pure state machine. No I/O, no clock; memory only for its members.
 *
 * The life of a job:
 *   - every node JOINs with its slots; when MAX are there, or MIN are there and the last call is over, the round
 *     closes: nodes are ordered, every member gets its group rank, rank base and the world size (NEWS_ROUND);
 *   - the last call is skipped when every live member of the round before is back;
 *   - workers run; every node reports DONE when all its workers exited 0; when all have, all get NEWS_END, exit code 0.
 * What goes wrong, and what is done:
 *   - a worker fails: FAIL, with the cause. All members get NEWS_STOP(failure); each JOINs again when its workers are
 *     gone. It costs one restart of the job's budget; with none left, or if the cause is fatal, all get NEWS_END with
 *     the exit code of the first failure;
 *   - a node is gone and proved dead (GONE): the same, costs one restart; the next round may start at once;
 *   - a node falls silent (SILENT): if it resumes within silence_ms + kill_ms, nothing has happened. After that its
 *     workers are dead (the agent kills them within its own budget): it is forgotten, and a running round breaks as if
 *     it were gone. No next round starts without it before;
 *   - a node whose failures (FAIL, or workers lost) broke max_node_failures rounds loses its seat: the next round takes
 *     nodes that wait as spares before it. Where there are none it stays: a round is never smaller for it;
 *   - a node joins a running round with room: NEWS_STOP(resize), no restart used up; beyond MAX it is a spare and
 *     waits, if MAX > MIN, or its JOIN says so, or it had a seat before;
 *   - any other node beyond MAX is turned away: NEWS_END(spare), EXIT_UNAVAILABLE. While a member is silent the node
 *     waits, for it may be the successor of that one;
 *   - a JOIN with `numbered` whose node_rank belongs to a node that is heard: turned away as well;
 *   - a node leaves in good order: with MIN left NEWS_STOP(resize), else the job drains;
 *   - several rounds in a row fail early: the first restart of the row is immediate, each further one waits twice as
 *     long as the one before (BACKOFF), counted from the failure;
 *   - drain: NEWS_STOP(drain), and NEWS_END with EXIT_REQUEUE when all workers are gone. With an exit code in its cause
 *     (an operator evicts the job) NEWS_END at once: the job has failed of that;
 *   - FAIL, DONE or JOIN of an older round: refused, ERR_FENCED. Round numbers only grow.
 *
 * Every NEWS_STOP is answered in one way, whatever its reason: JOIN, with the number of the stopped round, once all
 * workers are gone. The answer to that is NEWS_ROUND, or NEWS_END (drained; or this node has asked to LEAVE). A restart
 * is used up exactly when a failure breaks a running round. An agent that is refused as unknown kills its workers and
 * JOINs again.
 *
 * What keeps two rounds from ever progressing at once (tests/sim shows that each is needed):
 *   - an agent starts workers only while its newest acknowledged request is younger than silence_ms, counted from when
 *     it was sent, and kills them when it no longer is, also those it is stopping in good order: their grace ends
 *     there; a refusal is no acknowledgement;
 *   - it takes NEWS_ROUND only as the answer to its newest request, asked since it began to join (not from an older
 *     connection);
 *   - a host drops the news it kept for a node when the machine has forgotten the node (rdzv_knows()), NEWS_END
 *     excepted.
 *
 * Deadlines are absolute times of the caller's monotonic clock in ms; the caller delivers RDZV_TICK no later than
 * rdzv_deadline(). */
#ifndef CRUN_COMMON_RDZV_H
#define CRUN_COMMON_RDZV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

struct err;

#define RDZV_STATES(X)                                                                                                 \
    X(RDZV_JOINING, "joining")     /* fewer than MIN nodes are here */                                                 \
    X(RDZV_LAST_CALL, "last-call") /* MIN are here; more may come until the deadline */                                \
    X(RDZV_RUNNING, "running")     /* a round runs */                                                                  \
    X(RDZV_STOPPING, "stopping")   /* the round is broken; members stop their workers */                               \
    X(RDZV_BACKOFF, "backing-off") /* all members are back, but rounds have been failing early: the next one waits */  \
    X(RDZV_SUCCEEDED, "succeeded") /* all members DONE (final) */                                                      \
    X(RDZV_FAILED, "failed")       /* no restart is left, or too few nodes came in time (final) */                     \
    X(RDZV_DRAINED, "drained")     /* stopped in good order before the end (final) */

#define RDZV_EVENTS(X)                                                                                                 \
    X(RDZV_JOIN, "join")     /* a node is ready for the next round */                                                  \
    X(RDZV_LEAVE, "leave")   /* a node wishes to go in good order: it gets STOP if it has workers, then END */         \
    X(RDZV_FAIL, "fail")     /* a worker of this node failed in `round` */                                             \
    X(RDZV_DONE, "done")     /* all workers of this node exited 0 in `round` */                                        \
    X(RDZV_GONE, "gone")     /* the node's agent and all its processes are proved dead */                              \
    X(RDZV_SILENT, "silent") /* connection lost or heartbeats missed, nothing proved */                                \
    X(RDZV_RESUME, "resume") /* a silent node is heard again */                                                        \
    X(RDZV_DRAIN, "drain")   /* stop the job in good order (operator, preemption) */                                   \
    X(RDZV_TICK, "tick")     /* time has passed */

enum rdzv_state { RDZV_STATES(CHOICE_ID) };
enum rdzv_event_kind { RDZV_EVENTS(CHOICE_ID) };

const char *rdzv_state_name(enum rdzv_state s);
const char *rdzv_event_name(enum rdzv_event_kind k);

/* Why a round was stopped or began. The numbers are those of enum crun_stop_reason. */
enum rdzv_reason { RDZV_WHY_START = 0, RDZV_WHY_FAILURE = 1, RDZV_WHY_RESIZE = 2, RDZV_WHY_DRAIN = 3 };
const char *rdzv_reason_name(enum rdzv_reason why); /* "failure" */
/* cause.text of a STOP(resize) that makes the round larger: no node leaves. */
#define RDZV_GROWS "a node has come"

#define RDZV_ID_MAX 95   /* bytes of a node id: a host name (64), process id and 64 random bits */
#define RDZV_ADDR_MAX 63 /* bytes of an address */
#define RDZV_TEXT_MAX 255
#define RDZV_ADDRS_MAX 511 /* bytes of all addresses of a node, separated by commas */
#define RDZV_ROLE_MAX 63
#define RDZV_INSTANCE_MAX 16 /* bytes of the name of one life of a job */
#define RDZV_SLOTS_MAX 4096
#define RDZV_NODES_MAX 100000

/* Order of new nodes. Members of the last round come before them in their old order, except with
 * RDZV_ORDER_NODE_RANK. */
enum rdzv_order {
    RDZV_ORDER_HOST,      /* natural order of node ids: node2 before node10 */
    RDZV_ORDER_JOIN,      /* first come, first ranked */
    RDZV_ORDER_NODE_RANK, /* by the node_rank of JOIN; then nodes without one, by id */
};

/* Settings of a job. All agents must bring the same values (rdzv_config_differs() of rdzv_wire.h). */
struct rdzv_config {
    int min_nodes, max_nodes;
    int max_restarts;          /* budget of the whole job */
    int max_node_failures;     /* nodes whose failures broke this many rounds come after all others; 0: no limit */
    int64_t restart_window_ms; /* restarts older than this no longer count against the budget; 0: all count */
    /* wait before the second restart in a row of rounds that each lived less than backoff_reset_ms; doubled for each
     * further one; 0: no wait */
    int64_t backoff_ms;
    int64_t backoff_max_ms;   /* bound of the doubling; 30000 */
    int64_t backoff_reset_ms; /* a round that lived this long ends the row; 10000 */
    enum rdzv_order order;
    int64_t join_timeout_ms; /* JOINING longer than this: the job fails; 600000 */
    int64_t last_call_ms;    /* 30000 */
    int64_t silence_ms;      /* an agent kills its workers after it got no acknowledgement for this long: 3000 */
    int64_t kill_ms;         /* bound for killing workers: 1000 */
    uint64_t first_round;    /* number of the first round; >= 1 */
    /* no round begins earlier than this after the first event, because workers of rounds that this machine has not
     * seen may run so long. 0: none are known; a JOIN that names one before the first round holds it for silence and
     * kill. Not compared, not in RDZV.JOIN */
    int64_t hold_ms;
    /* the last call before the first round ends no earlier than this after the first event: for a host that begins
     * without memory, because missing nodes may still run a round that it does not know of. 0: it has its memory.
     * Not compared, not in RDZV.JOIN */
    int64_t blank_ms;
};

struct rdzv_cause {
    int exit_code; /* as a shell sees it: 1..255, 128 + signal */
    int rank;      /* global rank of the culprit, -1 if none */
    bool fatal;    /* FAIL: trying again is useless; the job fails, even if restarts are left */
    char text[RDZV_TEXT_MAX + 1];
};

struct rdzv_event {
    enum rdzv_event_kind kind;
    /* the node that the event is about (all events but TICK and DRAIN); the same for the life of an agent */
    char node[RDZV_ID_MAX + 1];
    /* FAIL, DONE: the round they are about; JOIN: the newest round that this node heard of (in ROUND or STOP), whose
     * workers here are all gone; 0: none yet */
    uint64_t round;
    /* JOIN: the highest number of restarts it heard of, plus one if it lost a running round together with its
     * rendezvous */
    int restarts;
    char instance[RDZV_INSTANCE_MAX + 1]; /* JOIN: the instance it heard of last, "": none. Only the leader uses it */
    int slots;                            /* JOIN: workers this node offers, 1..RDZV_SLOTS_MAX */
    int node_rank;                        /* JOIN: the node rank that the user gave, -1: none */
    bool waits;                           /* JOIN: it may be a spare, whatever MIN and MAX are */
    bool numbered;                /* JOIN: node_rank is a place that only one node has, not just a wish for the order */
    char addr[RDZV_ADDR_MAX + 1]; /* JOIN: address by which other nodes reach it */
    char addrs[RDZV_ADDRS_MAX + 1]; /* JOIN: every address its workers may connect from */
    int port; /* JOIN: the port where its bootstrap store listens already, in case it becomes group rank 0 */
    char role[RDZV_ROLE_MAX + 1]; /* JOIN: label of its workers */
    int64_t grace_ms;             /* SILENT: another leader may have acknowledged the node until so long after now */
    /* the reason of FAIL, GONE, LEAVE, DRAIN. LEAVE and DRAIN with exit_code 0: in good order; then text is the
     * signal that the workers of all nodes get, "": the usual one; of DRAIN with " on node '...'" appended, if a
     * node was stopped */
    struct rdzv_cause cause;
};

enum rdzv_news_kind { RDZV_NEWS_ROUND = 1, RDZV_NEWS_STOP, RDZV_NEWS_END };

/* News for one node. seq grows with every news of a node (not always by one), so that the node can ask again if a
 * connection was lost with an answer. Only the newest need be kept: it contains all that the earlier ones said. */
struct rdzv_news {
    uint64_t seq;
    enum rdzv_news_kind kind;
    uint64_t round;                      /* ROUND: the new one; STOP: the one to stop; END: the last */
    enum rdzv_reason why;                /* ROUND, STOP */
    int restart_count;                   /* restarts used up so far by the job */
    int group_rank, group_world;         /* ROUND, and END of a member of the last round; group_rank -1: not a member */
    int rank_base, world_size;           /* ROUND: global ranks rank_base .. rank_base + slots - 1 */
    int role_base, role_world;           /* ROUND: the same, counted among the workers of this node's role */
    char leader_addr[RDZV_ADDR_MAX + 1]; /* ROUND, END to a member: address of group rank 0 */
    int leader_port;                     /* likewise: of its bootstrap store */
    /* ROUND: this node waits and has no part in the round. END: it got no place; then group_world and leader_addr
     * are those of the nodes that have one, and cause.text says why, "": all places are taken */
    bool spare;
    int exit_code; /* END */
    /* STOP(failure), END: the first failure; STOP(drain), END of a drained job: who was stopped, "SIGINT on node
     * 'x'", "": an operator drained the job; STOP(resize): RDZV_GROWS, or the node that leaves */
    struct rdzv_cause cause;
};

/* Is this a STOP by which no node leaves, because the next round is larger? */
bool rdzv_news_grows(const struct rdzv_news *news);

/* Is this the start of a round for its group rank 0, which serves the members? The shell adds every address of every
 * member. */
bool rdzv_news_is_for_leader(const struct rdzv_news *news);

struct rdzv_effect {
    char node[RDZV_ID_MAX + 1];
    struct rdzv_news news;
};

/* Effects of one step, in order. The caller zeroes it once, reads v[0..n) after each step, and frees it at the end. */
struct rdzv_effects {
    struct rdzv_effect *v;
    size_t n, cap;
};
void rdzv_effects_free(struct rdzv_effects *fx);

struct rdzv; /* opaque */

/* Make a machine. -EINVAL with a sentence unless 0 < min <= max, max_restarts >= 0 and the like. */
int rdzv_create(struct rdzv **ret, const struct rdzv_config *c, struct err *e);
void rdzv_destroy(struct rdzv *r);

/* Apply one event. fx->n is reset first. Returns 0; ERR_FENCED (older round), ERR_REFUSED (job is over, unknown node,
 * bad slots): nothing changed then. A repeated JOIN, DONE or FAIL is harmless. -ENOMEM: nothing changed. */
int rdzv_step(struct rdzv *r, const struct rdzv_event *ev, int64_t now_ms, struct rdzv_effects *fx, struct err *e);

/* Before the first round: let none begin before until_ms; replaces an earlier call. No effects; the next RDZV_TICK
 * applies it. */
void rdzv_hold(struct rdzv *r, int64_t until_ms);

/* Number the news of nodes that come from now on above `seq`, which some of them have seen in the job before. Call
 * before any node has come. */
void rdzv_number_after(struct rdzv *r, uint64_t seq);

/* Set a function to be called at every change of state, in the middle of a step: it must not call the machine. NULL:
 * none. */
void rdzv_trace(struct rdzv *r, void (*changed)(void *arg, enum rdzv_state from, enum rdzv_state to, uint64_t round),
                void *arg);

/* When the next RDZV_TICK is due; INT64_MAX if never. */
int64_t rdzv_deadline(const struct rdzv *r);

/* In JOINING: true; too few nodes have been there since *ret_since, and the job is given up at *ret_until. False in
 * other states. */
bool rdzv_waits(const struct rdzv *r, int64_t *ret_since, int64_t *ret_until);
/* True: MIN nodes are here, and the round begins at *ret_at if no more come. */
bool rdzv_begins(const struct rdzv *r, int64_t *ret_at);

enum rdzv_state rdzv_state(const struct rdzv *r);
uint64_t rdzv_round(const struct rdzv *r); /* current or last round, 0 before the first */
int rdzv_restarts(const struct rdzv *r);
int rdzv_nodes(const struct rdzv *r); /* nodes known, spares included */
bool rdzv_knows(const struct rdzv *r, const char *node);

/* One node as others may see it. Strings are borrowed until the next step. */
struct rdzv_member {
    const char *node, *addr, *addrs, *role;
    int slots, node_rank, port;
    int group_rank, rank_base; /* -1: not a member of the current or last round */
    int failures;              /* rounds that its failures broke */
    bool member, ready, done, silent, leaving;
};
/* Visit every node known, members first in group-rank order. Stops when visit() returns other than 0, and returns
 * that. */
int rdzv_members(struct rdzv *r, int (*visit)(void *arg, const struct rdzv_member *m), void *arg);

/* --- decisions: what a successor of this machine needs (decision 0003) -----------------------------------------
 * A log is lines "machine ...", "node ...", "gone ...", "restart ..." of fields as in rdzv_wire.h; settings are not
 * among them. */

/* Append what the steps since the last call changed: every field of the machine and of each changed or forgotten
 * node, and the deadlines as durations from now_ms; nothing if nothing changed. The host logs the effects. The first
 * call after rdzv_create() gives the whole; after rdzv_replay() the replayed lines count as written. -ENOMEM,
 * -E2BIG: nothing is appended and nothing is lost for the next call. */
struct buf;
int rdzv_delta(struct rdzv *r, int64_t now_ms, struct buf *out, struct err *e);
/* Append the whole state, in the same lines. Does not change what the next rdzv_delta() gives. */
int rdzv_snapshot(const struct rdzv *r, int64_t now_ms, struct buf *out, struct err *e);
/* Take over lines of rdzv_snapshot() or rdzv_delta() in the order they were written, on a machine fresh from
 * rdzv_create() with the same settings (or one that only ever replayed). Every duration starts anew at now_ms.
 * ERR_CORRUPT names the line, -ENOMEM: the machine must be destroyed. */
int rdzv_replay(struct rdzv *r, const char *text, size_t n, int64_t now_ms, struct err *e);

/* Learn what a predecessor had done whose last decisions are lost, from what others report: later rounds get numbers
 * above `round`, and `restarts` are used up (never more than the budget; with a window they count from now_ms on).
 * Values lower than the known ones change nothing. -ENOMEM. */
int rdzv_raise(struct rdzv *r, uint64_t round, int restarts, int64_t now_ms, struct err *e);

/* The lowest number that the next round can have. */
uint64_t rdzv_next_round(const struct rdzv *r);

/* Every invariant that must hold after every step (ranks dense, round live at most once, budget exact, ...). 0, or
 * ERR_CORRUPT naming the broken one. Costs a walk over all nodes: the simulator looks after every step, rdzv_step()
 * itself after each that changes the state. In rdzv_step() a broken one ends the job: FAILED with EXIT_INTERNAL. */
int rdzv_check(const struct rdzv *r, struct err *e);
const char *rdzv_broken(const struct rdzv *r); /* the invariant that ended the job; "": none has */
/* End the job for an invariant that its caller found broken. -ENOMEM: nothing changed. */
int rdzv_break(struct rdzv *r, const char *why, int64_t now_ms, struct rdzv_effects *fx);

#endif
