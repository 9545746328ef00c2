/* The inside of the rendezvous machine, shared by its files:
 *   rdzv.c        what an event does in a state
 *   rdzv_round.c  how a round begins: who, in which order, with which ranks
 *   rdzv_budget.c which restarts count, and how long to wait before the next
 *   rdzv_nodes.c  the nodes, their counts and the news for each
 *   rdzv_log.c    the machine as lines of a log, and back
 *   rdzv_check.c  what must always hold
 *   rdzv_object.c making, end, what can be read of it */
#ifndef CRUN_COMMON_RDZV_IMPL_H
#define CRUN_COMMON_RDZV_IMPL_H

#include "common/rdzv/machine/rdzv.h"

#define HASH_NONFATAL_OOM 1
#include "common/base/seeded_hash.h"

#define COUNT_ONE(...) +1
enum { STATE_COUNT = 0 RDZV_STATES(COUNT_ONE), EVENT_COUNT = 0 RDZV_EVENTS(COUNT_ONE) };

struct standing {
    bool joined;  /* asks for the next round; has no workers */
    bool member;  /* of the current or last round */
    bool done;    /* all its workers of this round exited 0 */
    bool leaving; /* asked to go; still has workers */
    bool silent;  /* nothing heard of it, nothing proved */
    bool waits;   /* it may be a spare: its JOIN said so, or it had a seat before */
};

struct node {
    char id[RDZV_ID_MAX + 1];
    char addr[RDZV_ADDR_MAX + 1];
    char addrs[RDZV_ADDRS_MAX + 1];
    char role[RDZV_ROLE_MAX + 1];
    int slots, node_rank, port;
    int failures;       /* rounds that its failures broke */
    uint64_t seq;       /* of its last news */
    struct standing is; /* changed only by rdzv_stand_(), which maintains the counts */
    int64_t fence;      /* of a silent node: from then on its workers are dead */
    int group_rank;     /* member; -1 before it ever was */
    int rank_base;
    int role_base, role_world;              /* scratch of a round's start */
    unsigned ordinal;                       /* the same: place by first JOIN */
    bool last;                              /* the same: it failed too often */
    bool changed;                           /* since the last rdzv_delta() */
    struct node *prev, *next;               /* in rdzv.changed or rdzv.gone */
    struct node *silent_prev, *silent_next; /* in rdzv.silent */
    UT_hash_handle hh;                      /* in order of first JOIN */
};

/* All of the machine but its nodes and settings. */
struct core {
    enum rdzv_state state;
    enum rdzv_reason why;  /* of the last stop */
    bool begun;            /* the first event has come, so JOINING has a deadline */
    int restarts;          /* of the whole life of the job */
    int group_world;       /* members the round began with */
    int world_size;        /* their slots */
    int done_count;        /* how many of them are DONE */
    int departed_done;     /* how many of those are gone since */
    int row;               /* number of failures in a row of rounds that lived less than backoff_reset_ms */
    int64_t last_call;     /* when LAST_CALL ends, unless a hold lasts longer */
    int64_t deadline;      /* of JOINING, LAST_CALL, STOPPING, BACKOFF; INT64_MAX elsewhere */
    int64_t round_started; /* time */
    int64_t not_before;    /* time: backing off, no round starts earlier */
    uint64_t round;        /* current or last; 0 before the first */
    uint64_t round_floor;  /* highest round that any agent has heard of, perhaps from a predecessor of this machine */
    /* news of a node that was forgotten and comes back are numbered above this */
    uint64_t seq_floor;
};

/* Every count a decision needs. */
struct tally {
    int ready;    /* joined and heard: can be in the next round */
    int stopping; /* members whose workers may still live */
    int members;  /* of the round, still known */
    int staying;  /* neither leaving nor silent: would be there for a next round */
};

struct rdzv {
    struct rdzv_config config;
    struct core m;
    void (*changed_state)(void *arg, enum rdzv_state from, enum rdzv_state to, uint64_t round);
    void *trace_arg;
    int64_t blank_until; /* the last call before the first round ends no earlier than this time */
    struct core logged;  /* m as the last rdzv_delta() wrote it */
    bool logging; /* rdzv_delta() or rdzv_replay() was called: remember forgotten nodes for the next rdzv_delta() */
    struct node *nodes;                                 /* by id */
    struct node *leader;                                /* group rank 0; NULL if it is gone */
    struct node *changed;                               /* since the last rdzv_delta(), in that order */
    struct node *gone;                                  /* forgotten since the last rdzv_delta() */
    struct node *silent;                                /* in order of their fences */
    int ready, working, working_done, members, staying; /* counts; working: members that have not joined again yet */
    int heirs; /* count of nodes that may succeed a silent member: heard, not members, and may not be spares */
    int64_t *restart_times; /* times of restarts that may still count, oldest first; only with a restart window */
    size_t restart_n, restart_cap;
    bool restart_new;    /* a restart is not in the log yet */
    struct node **order; /* scratch, room for all nodes */
    size_t order_cap;
    char broken[RDZV_TEXT_MAX + 1]; /* the rule that a step broke, "": none */
};

/* The arguments of a handler. */
struct step {
    struct rdzv *r;
    struct node *n; /* the event's node; NULL for TICK, DRAIN */
    const struct rdzv_event *ev;
    int64_t now;
    struct rdzv_effects *fx; /* room for two news of each node */
    struct err *e;
};

/* rdzv_nodes.c */
struct node *rdzv_find_(const struct rdzv *r, const char *id);
int rdzv_add_node_(struct rdzv *r, const char *id, struct node **ret, struct err *e); /* ERR_REFUSED, -ENOMEM */
void rdzv_forget_(struct rdzv *r, struct node *n);
void rdzv_free_gone_(struct rdzv *r);
void rdzv_touch_(struct rdzv *r, struct node *n);                     /* include n in the next delta */
void rdzv_stand_(struct rdzv *r, struct node *n, struct standing to); /* set n->fence before */
int rdzv_by_rank_(const void *a, const void *b);                      /* of qsort(3): struct node * by group rank */
struct tally rdzv_tally_(const struct rdzv *r);
struct rdzv_news *rdzv_tell_(struct step *s, struct node *n, enum rdzv_news_kind kind);

/* rdzv_round.c */
void rdzv_start_round_(struct step *s); /* begin a round with the nodes that are ready, MAX at most */
void rdzv_tell_round_(struct step *s, struct node *n);
bool rdzv_may_wait_(const struct rdzv *r, const struct node *n); /* as a spare */
/* Turn a node away for lack of a place: it gets END and is forgotten. why: NULL: all places are taken. */
void rdzv_turn_away_(struct step *s, struct node *n, const struct rdzv_cause *why);
void rdzv_name_leader_(const struct rdzv *r, struct rdzv_news *news); /* of the current or last round */

void rdzv_set_state_(struct rdzv *r, enum rdzv_state to, int64_t deadline);
void rdzv_tell_end_(struct step *s, struct node *n, int exit_code, const struct rdzv_cause *cause); /* cause: or NULL */
/* End the job: every node gets END. */
void rdzv_finish_(struct step *s, enum rdzv_state how, int exit_code, const struct rdzv_cause *cause);
/* Stop the running round: every member gets STOP. */
void rdzv_stop_round_(struct step *s, enum rdzv_reason why, const struct rdzv_cause *cause);
/* A failure breaks the running round: use up one restart; if none is left, the job fails. */
void rdzv_fail_round_(struct step *s, const struct rdzv_cause *cause);

/* rdzv_budget.c */
int rdzv_reserve_restart_(struct rdzv *r); /* room for one more; -ENOMEM */
/* how many restarts, from the oldest on, are outside the window */
size_t rdzv_expired_restarts_(const struct rdzv *r, int64_t now);
void rdzv_forget_restarts_(struct rdzv *r, int64_t now); /* those */
int rdzv_used_up_(struct rdzv *r, int64_t now);          /* restarts that count against the budget now */
void rdzv_use_up_restart_(struct rdzv *r, int64_t now);  /* reserved before */
/* How long the next round waits after this failure: 0 for the first restart of a row, then twice as long each time. */
int64_t rdzv_backoff_(const struct rdzv *r);

#endif
