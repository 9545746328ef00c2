/* The leader of one run id: the rendezvous machine (rdzv.h) and all that stands around it, whatever carries it. Pure:
 * no I/O, no clock, memory only for its members. The host of a rendezvous drives it from connections
 * (rendezvousd/jobs): rendezvousd, a crun that hosts, an agent that was elected; tests/sim drives it, too.
 *
 * The life of a run id:
 *   - a first JOIN begins a job: an instance (a random id) with the settings of that JOIN;
 *   - every node that asks is a member. The machine's news for it are kept, with a number that only grows, until it is
 *     known to have seen it;
 *   - members are heard; one that is not heard for silence_ms is SILENT since it was heard last;
 *   - the job is over when the machine is; its members still get their END for LEADER_LINGER_MS.
 * What goes wrong, and what is done:
 *   - a JOIN after the end, of a node that knows of it or has no part in it: a new instance. Nodes that may still have
 *     workers of the instance before are its elders: no round of the new one begins before each of them is gone, or has
 *     been silent for silence_ms + kill_ms;
 *   - a JOIN to a job that has no node left, from a node that names no round of it: a new instance, too. If the job's
 *     nodes are merely not heard, the JOIN gets -EAGAIN: in silence_ms + kill_ms they are back, or all dead. Restarts
 *     and rounds of an instance are never carried into the next;
 *   - another leader takes over (leader_restore()): every member has a full silence_ms + kill_ms from then on. One that
 *     waits for the first round counts for it only once it is heard: it may be dead already;
 *   - the leader before lost its memory, and the JOINs of nodes carry what they know (instance, round, restarts). A job
 *     that has had no round adopts it from the first of them: that instance counts as its own, rounds and restarts go
 *     on above, and the first round is held until workers of a round before are dead (rdzv.h). A job that has had one
 *     takes such a node as a new one, and the larger number of restarts stands. A node that brings more restarts than
 *     the budget has is refused: its job has failed;
 *   - a member has died, but its silence is not over: a JOIN that finds all places taken gets -EAGAIN until each member
 *     has been heard since. If the job succeeds before that, all members lived: the node is turned away, and begins no
 *     instance;
 *   - decisions may be lost (leader_hold()): nothing is decided until all workers that they may concern are dead;
 *   - the machine forgets a node: its news become void, except an END.
 *
 * What must outlive the leader is its decisions: text that leader_decide() gives and leader_replay() takes. Nothing
 * may be announced before the home has stored the decision behind it. The format, a line each, in this order:
 *   @job format=3 run= principal= instance= <settings>   a new instance, or all of it; what was before is void
 *   @age ms=                                             how old the job is
 *   machine/node/gone/restart ...                        rdzv_delta() or rdzv_snapshot()
 *   @news host_node= instance= <news>                    a member's news; void once it is in a line "gone"
 *   @elder host_node=                                    it may have workers of the instance before
 *   @restart at= round= code= rank= text=                for people
 * Durations, not times: no clock outlives a leader. Who was heard, or has acknowledged, is not recorded. */
#ifndef CRUN_COMMON_RDZV_LEADER_H
#define CRUN_COMMON_RDZV_LEADER_H

#include "common/rdzv/machine/rdzv.h"

#define HASH_NONFATAL_OOM 1
#include "common/base/seeded_hash.h"

struct buf;
struct err;
struct leader;

#define LEADER_FORMAT 3        /* of decisions, and of the files that hold them */
#define LEADER_FORMAT_OLDEST 2 /* read as well; its lines are the same */
#define LEADER_LINGER_MS 60000
#define LEADER_EVENTS 64
#define LEADER_RESTARTS 16
#define LEADER_INSTANCE_LEN RDZV_INSTANCE_MAX
#define LEADER_NAME_MAX 1023 /* bytes of a run id, and of a principal */

struct leader_options {
    const char *run, *principal; /* copied; written into decisions; "": the home belongs to this run alone */
    uint64_t number_after;       /* the news of its instances are numbered above this */
    int64_t (*wall_ms)(void);    /* by which a job ages while nobody leads it; NULL, or 0: it does not */
    /* Called for every step of the machine; for a refused one with its code. May be NULL. */
    void (*stepped)(void *arg, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before,
                    const struct rdzv_effects *fx, int rc);
    /* Called for every change of the machine's state. May be NULL. */
    void (*traced)(void *arg, enum rdzv_state from, enum rdzv_state to, uint64_t round);
    void *arg;
};

int leader_create(struct leader **ret, const struct leader_options *o, struct err *e);
void leader_destroy(struct leader *l); /* NULL allowed */

/* The highest number of news so far, of members that are gone, too; number_after where there was none. */
uint64_t leader_numbered(const struct leader *l);

/* --- members */

enum leader_list {
    LEADER_LIST_NONE,   /* never silent: in this process */
    LEADER_LIST_HEARD,  /* silent at heard_ms + silence_ms */
    LEADER_LIST_SILENT, /* the machine waits for it */
    LEADER_LIST_ENDED,  /* the machine has forgotten the node; kept until heard_ms + LEADER_LINGER_MS */
    LEADER_LIST_COUNT,
};

/* A node as the leader knows it. Read only, except the fields marked as the shell's. Valid until the next step. */
struct leader_member {
    char node[RDZV_ID_MAX + 1];
    char instance[LEADER_INSTANCE_LEN + 1]; /* instance to which its news belong */
    struct rdzv_news news;                  /* the newest news, if has_news; the leader numbers it (seq) */
    bool has_news;
    bool told;           /* the news were sent once (LEADER_TOLD) */
    bool known;          /* the machine knows it */
    bool connected;      /* heard since it was last lost or gone */
    bool gone;           /* proved dead since it was last heard */
    bool elder;          /* may have workers of the instance before */
    uint64_t seq;        /* number of the newest news that was sent to it, or that it got from a leader before us */
    uint64_t acked;      /* number of the newest news that the member acknowledged, or that was withdrawn */
    uint64_t joined_seq; /* news with a higher number came with its newest JOIN, or later */
    int64_t heard_ms;
    /* the shell's */
    uint64_t stamp;        /* of the decision behind its news */
    char *report;          /* the shell's; freed with the member */
    uint64_t member_round; /* the newest round that it was told it is a member of */
    int64_t confirmed_ms;  /* when the newest answer that it certainly got was sent, or its JOIN came; 0: none */
    int64_t refused_ms;    /* when its JOIN found all places taken; 0: that has not happened */
    bool fresh, unsaid;    /* in leader_next_fresh(); not in a decision yet */
    enum leader_list list;
    struct leader_member *prev, *next;               /* of list, longest unheard first */
    struct leader_member *fresh_prev, *fresh_next;   /* fresh */
    struct leader_member *unsaid_prev, *unsaid_next; /* unsaid */
    UT_hash_handle hh;                               /* by node, in order of arrival */
};

struct leader_member *leader_find(const struct leader *l, const char *node);
struct leader_member *leader_members(const struct leader *l); /* first; then m->hh.next */
size_t leader_member_count(const struct leader *l);

/* --- events */

enum leader_event_kind {
    LEADER_ASK,   /* JOIN, FAIL, DONE or LEAVE of ask->node */
    LEADER_HEARD, /* a sign of life of a node */
    LEADER_SEEN,  /* it has seen news up to seq */
    LEADER_TOLD,  /* its newest news went out */
    LEADER_GONE,  /* all its processes are dead, or it said goodbye */
    LEADER_LOST,  /* its connection is lost, nothing is proved */
    LEADER_DRAIN,
    LEADER_TICK, /* time has passed */
};

struct leader_event {
    enum leader_event_kind kind;
    const char *node;                   /* all but ASK, DRAIN, TICK */
    const struct rdzv_event *ask;       /* ASK; DRAIN: only the cause is used */
    const struct rdzv_config *settings; /* JOIN */
    const char *instance;               /* JOIN: the instance that the node heard of last; NULL: none */
    const char *reached; /* JOIN: our address as this node, which is on another host, reached it; NULL: not known */
    uint64_t draw;       /* JOIN: a random number, from which a new instance gets its name */
    bool here;           /* HEARD, ASK: the node is in this process, and never silent */
    uint64_t seq;        /* SEEN */
};

/* Apply one event. Errors, of ASK alone; nothing has changed then: ERR_FENCED (older round), ERR_REFUSED (by the
 * machine), ERR_MISMATCH (settings differ; the text names both), -EAGAIN (not decided yet: ask again), -ENOMEM. */
int leader_step(struct leader *l, const struct leader_event *ev, int64_t now_ms, struct err *e);

/* The invariants of the leader itself; those of its machine are rdzv_check()'s. 0, or ERR_CORRUPT naming the broken
 * one. Costs a walk over all members: leader_step() looks after each event that changes the machine's state, and
 * leader_restore() at what it has read. In leader_step() a broken one ends the job, as one of the machine's does. */
int leader_check(const struct leader *l, struct err *e);

/* May a JOIN begin an instance? If not, it needs no random draw. */
bool leader_may_begin(const struct leader *l);

/* Does this JOIN come from an instance that is neither this job's nor the one that this job goes on from? */
bool leader_is_foreign(const struct leader *l, const struct leader_event *ev);

/* When the next LEADER_TICK is due; INT64_MAX: never. */
int64_t leader_deadline(const struct leader *l);

/* This process was stopped until now: no member is silent because of that. */
void leader_awake(struct leader *l, int64_t now_ms);

/* Refuse and decide nothing before until_ms: workers that this leader does not know of may run. A later call can
 * only lengthen it. */
void leader_hold(struct leader *l, int64_t until_ms, int64_t now_ms);
int64_t leader_held_until(const struct leader *l); /* 0: never was */
/* From now on the first round of a job begins no earlier than until_ms; replaces an earlier call. INT64_MAX: none
 * begins. Replaces the wait for the rounds that a JOIN names, if settings.hold_ms is set. */
void leader_hold_first(struct leader *l, int64_t until_ms);

/* The next member with news to send, each once. NULL: no more. */
struct leader_member *leader_next_fresh(struct leader *l);
/* Find the member `node`, or make it. NULL: no memory. */
struct leader_member *leader_member_of(struct leader *l, const char *node);
/* Remember that a JOIN of `node` found no place and will be repeated: if the job succeeds before that, the node is
 * turned away. NULL: no memory. */
struct leader_member *leader_put_off(struct leader *l, const char *node, int64_t now_ms);
/* Was the JOIN of m put off until the job succeeded? Then the node wanted that job, and must not begin the next one.
 * m may be NULL. */
bool leader_came_in_vain(const struct leader *l, const struct leader_member *m);
/* Give a node the END of the job that is over, again or for the first time. round: used if there is no END yet. */
void leader_remind_end(struct leader *l, struct leader_member *m, uint64_t round);

/* --- what it is */

struct leader_happening {
    int64_t at_ms; /* since the job's start */
    uint64_t round;
    char text[RDZV_ID_MAX + RDZV_TEXT_MAX + 34]; /* UTF-8; a node and a whole cause */
};

struct leader_restart {
    int64_t at_ms;
    uint64_t round; /* the round that broke */
    struct rdzv_cause cause;
};

/* History for people. Rings: the newest of `count`. */
struct leader_history {
    struct leader_happening events[LEADER_EVENTS];
    uint64_t event_count;
    struct leader_restart restarts[LEADER_RESTARTS];
    uint64_t restart_count;
    int64_t started_ms, counted_ms; /* counted_ms: no earlier than that, and by no wall clock */
};

struct rdzv *leader_machine(const struct leader *l);             /* NULL: there is no job */
const struct rdzv_config *leader_config(const struct leader *l); /* of the job */
const char *leader_instance(const struct leader *l);             /* "": there is no job */
const struct leader_history *leader_history(const struct leader *l);
bool leader_is_over(const struct leader *l);
int64_t leader_over_since(const struct leader *l); /* 0: it is not */
/* The job had no round yet, and has no node but those that must still be told something. */
bool leader_is_empty(const struct leader *l);
/* Append every address of the round's members whose group ranks are from `from` to below `to`, comma separated.
 * -ENOMEM. */
int leader_addresses(const struct leader *l, int from, int to, struct buf *out);
bool leader_lists_address(const char *addrs, const char *addr); /* is addr one of addrs ("a,b")? "": no */

/* --- decisions */

/* Is there anything that no decision has recorded yet? */
bool leader_undecided(const struct leader *l);
bool leader_begins(const struct leader *l); /* the next one begins an instance */
/* Append the decision: what has changed, or everything if `whole` or if none was written yet. -ENOMEM, -E2BIG: *out
 * may hold a part. */
int leader_decide(struct leader *l, int64_t now_ms, bool whole, struct buf *out, struct err *e);
/* Append the same text as a whole decision, without counting it as decided. */
int leader_text(struct leader *l, int64_t now_ms, struct buf *out, struct err *e);
int leader_age_line(const struct leader *l, int64_t now_ms, struct buf *out);
/* Take over decisions, in the order in which they were written, into a fresh leader. Lines of the shell ("@reign
 * ...") are skipped. ERR_CORRUPT, -ENOMEM. */
int leader_replay(struct leader *l, const char *text, size_t n, int64_t now_ms, struct err *e);
/* Call after the last leader_replay(): this leader leads from now on. Members that are not heard are given up
 * grace_ms later than usual, because the leader before may have acknowledged them until then. */
int leader_restore(struct leader *l, int64_t now_ms, int64_t grace_ms, struct err *e);

/* Run id and principal that the log names. "": none was read. */
const char *leader_run(const struct leader *l);
const char *leader_principal(const struct leader *l);

#endif
