/* The leader of one run id: the rendezvous machine (rdzv.h) and all that stands around it, whatever carries it. Pure:
 * no I/O, no clock, memory only for its members. whoever hosts a rendezvous drives it from connections
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
 *     workers of the instance before are its elders: no round of the new one begins before each of them is gone, or
 *     has been silent for silence_ms + kill_ms;
 *   - a job that nobody is left of: the same, for a node that names no round of it. While its nodes are merely not
 *     heard of, that node is to ask again (-EAGAIN): they may be back, or all be dead in silence_ms + kill_ms. Restarts
 *     and rounds of an instance are never carried into the next;
 *   - who leads has changed (leader_restore()): every member has a full silence_ms + kill_ms from then on. One that
 *     waits for the first round counts for it only once it is heard: it may be dead already;
 *   - who led before has lost its memory, and nodes bring what they know with their JOIN (instance, round, restarts). A
 *     job that has had no round adopts it from the first of them: that instance counts as its own, rounds and restarts
 *     go on above, and the first round is held until workers of a round before are dead (rdzv.h). A job that has had
 *     one takes such a node as a new one, and the larger number of restarts stands. A node that brings more restarts
 *     than the budget has is refused: its job has failed;
 *   - a dead member is missed late: a JOIN that finds all places taken is to ask again (-EAGAIN) until each member was
 *     heard since. If the job succeeds before, it is turned away: all members lived. It begins no instance;
 *   - what was decided may be lost (leader_hold()): nothing is decided until all that it may concern is dead;
 *   - the machine forgets a node: its news are void, but an END.
 *
 * What must outlive the leader is its decisions: text that leader_decide() gives and leader_replay() takes. Nothing may
 * be announced before the decision behind it stands. The format, a line each, in this order:
 *   @job format=3 run= principal= instance= <settings>   a new instance, or all of it; what was before is void
 *   @age ms=                                             how old the job is
 *   machine/node/gone/restart ...                        rdzv_delta() or rdzv_snapshot()
 *   @news host_node= instance= <news>                    a member's news; void once it is in a line "gone"
 *   @elder host_node=                                    it may have workers of the instance before
 *   @restart at= round= code= rank= text=                for people
 * Durations, not times: no clock outlives a leader. Who was heard or has acknowledged is not among it. */
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
    const char *run, *principal; /* copied; written into decisions, "" where the home is the run's own */
    uint64_t number_after;       /* the news of its instances are numbered above this */
    /* Every step of the machine, refused ones with their code. NULL: nobody listens. */
    void (*stepped)(void *arg, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before,
                    const struct rdzv_effects *fx, int rc);
    /* Every change of the machine's state. NULL: nobody listens. */
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
    LEADER_LIST_ENDED,  /* forgotten by the machine; kept until heard_ms + LEADER_LINGER_MS */
    LEADER_LIST_COUNT,
};

/* A node as the leader knows it; to be read only, but what is the shell's. Valid until the next step. */
struct leader_member {
    char node[RDZV_ID_MAX + 1];
    char instance[LEADER_INSTANCE_LEN + 1]; /* of its news */
    struct rdzv_news news;                  /* the newest, if has_news; its seq is the leader's */
    bool has_news;
    bool told;           /* they were sent once (LEADER_TOLD) */
    bool known;          /* to the machine */
    bool connected;      /* heard since it was last lost or gone */
    bool gone;           /* proved, since it was last heard */
    bool elder;          /* may have workers of the instance before */
    uint64_t seq;        /* the highest it was sent, or has seen of a predecessor */
    uint64_t acked;      /* news up to this one are seen or void */
    uint64_t joined_seq; /* news above this one came with or after its newest JOIN */
    int64_t heard_ms;
    /* the shell's */
    uint64_t stamp;        /* of the decision behind its news */
    char *report;          /* the shell's; freed with the member */
    uint64_t member_round; /* the newest that it was told of as a member */
    int64_t confirmed_ms;  /* the newest answer that it has got for certain was sent then, or its JOIN came; 0: none */
    int64_t refused_ms;    /* its JOIN found all places taken then; 0: it did not */
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
    LEADER_GONE,  /* all its processes are dead, or it took its leave */
    LEADER_LOST,  /* its connection is lost, nothing is proved */
    LEADER_DRAIN,
    LEADER_TICK, /* time has passed */
};

struct leader_event {
    enum leader_event_kind kind;
    const char *node;                   /* all but ASK, DRAIN, TICK */
    const struct rdzv_event *ask;       /* ASK; DRAIN: with the cause that is handed on */
    const struct rdzv_config *settings; /* JOIN */
    const char *instance;               /* JOIN: the job the node heard of last, as ask->instance; NULL: of none */
    const char *reached;                /* JOIN: our address as this node, on another host, has it; NULL: not known */
    uint64_t draw;                      /* JOIN: a random number, the name of an instance that begins */
    bool here;                          /* HEARD, ASK: it is in this process and never silent */
    uint64_t seq;                       /* SEEN */
};

/* Apply one. Errors, of ASK alone: ERR_FENCED (older round), ERR_REFUSED (by the machine), ERR_MISMATCH (settings; both
 * are named), -EAGAIN (ask again: it is not decided yet), -ENOMEM; nothing has changed then. */
int leader_step(struct leader *l, const struct leader_event *ev, int64_t now_ms, struct err *e);

/* May a JOIN begin an instance? Else it needs no draw. */
bool leader_may_begin(const struct leader *l);

/* Does this JOIN come from an instance that this job neither is nor goes on from? */
bool leader_is_foreign(const struct leader *l, const struct leader_event *ev);

/* When the next LEADER_TICK is due; INT64_MAX: never. */
int64_t leader_deadline(const struct leader *l);

/* We did not run ourselves until now: that is nobody's silence. */
void leader_awake(struct leader *l, int64_t now_ms);

/* Nothing is asked or decided before: what is not known of may be at work. Later holds only add. */
void leader_hold(struct leader *l, int64_t until_ms, int64_t now_ms);
int64_t leader_held_until(const struct leader *l); /* 0: never was */
/* The first round of a job begins no earlier, from now on; later or earlier than was set before. INT64_MAX: none does.
 * Replaces the wait for the rounds that a JOIN names, where settings.hold_ms is set. */
void leader_hold_first(struct leader *l, int64_t until_ms);

/* Members whose news are new, each once. NULL: no more. */
struct leader_member *leader_next_fresh(struct leader *l);
/* The member `node`, made if need be. NULL: no memory. */
struct leader_member *leader_member_of(struct leader *l, const char *node);
/* A JOIN of `node` found no place, and is asked again: if the job succeeds meanwhile that node is turned away.
 * NULL: no memory. */
struct leader_member *leader_put_off(struct leader *l, const char *node, int64_t now_ms);
/* The JOIN of m was put off, and the job has succeeded: it came for that one, and must not begin the next. m NULL
 * allowed. */
bool leader_came_in_vain(const struct leader *l, const struct leader_member *m);
/* Its END again, or for the first time: it knows of the job that is over. round: of END where there is none. */
void leader_remind_end(struct leader *l, struct leader_member *m, uint64_t round);

/* --- what it is */

struct leader_happening {
    int64_t at_ms; /* since the job's start */
    uint64_t round;
    char text[RDZV_ID_MAX + RDZV_TEXT_MAX + 34]; /* UTF-8; a node and a whole cause */
};

struct leader_restart {
    int64_t at_ms;
    uint64_t round; /* the one that broke */
    struct rdzv_cause cause;
};

/* For people. Rings: the newest of `count`. */
struct leader_history {
    struct leader_happening events[LEADER_EVENTS];
    uint64_t event_count;
    struct leader_restart restarts[LEADER_RESTARTS];
    uint64_t restart_count;
    int64_t started_ms;
};

struct rdzv *leader_machine(const struct leader *l);             /* NULL: there is no job */
const struct rdzv_config *leader_config(const struct leader *l); /* of the job */
const char *leader_instance(const struct leader *l);             /* "": there is no job */
const struct leader_history *leader_history(const struct leader *l);
bool leader_is_over(const struct leader *l);
int64_t leader_over_since(const struct leader *l); /* 0: it is not */
/* Nobody is left of a job that had no round yet, but for those that must still be notified. */
bool leader_is_empty(const struct leader *l);
/* Append every address of the round's members whose group ranks are from `from` to below `to`, comma separated.
 * -ENOMEM. */
int leader_addresses(const struct leader *l, int from, int to, struct buf *out);
bool leader_lists_address(const char *addrs, const char *addr); /* "a,b" has it; an empty one is in no list */

/* --- decisions */

/* Is there anything to say since the last one? */
bool leader_undecided(const struct leader *l);
bool leader_begins(const struct leader *l); /* the next one begins an instance */
/* Append the decision: what has changed; all of it if `whole`, or if none was written yet. -ENOMEM, -E2BIG: *out may
 * hold a part. */
int leader_decide(struct leader *l, int64_t now_ms, bool whole, struct buf *out, struct err *e);
/* The same whole text; says nothing of what is decided. */
int leader_text(struct leader *l, int64_t now_ms, struct buf *out, struct err *e);
int leader_age_line(const struct leader *l, int64_t now_ms, struct buf *out);
/* Take over decisions in the order they were written, on a leader fresh from leader_create(). Lines of a shell ("@reign
 * ...") are passed over. ERR_CORRUPT, -ENOMEM. */
int leader_replay(struct leader *l, const char *text, size_t n, int64_t now_ms, struct err *e);
/* After the last of them: from now on it is ours. Members that are not heard are given up grace_ms later than any
 * other: who led before may have acknowledged them until then. */
int leader_restore(struct leader *l, int64_t now_ms, int64_t grace_ms, struct err *e);

/* The names of the log. "": none was read. */
const char *leader_run(const struct leader *l);
const char *leader_principal(const struct leader *l);

#endif
