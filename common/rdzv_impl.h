/* The inside of the rendezvous machine, shared by rdzv.c (what happens) and rdzv_check.c (what must always hold). */
#ifndef CRUN_COMMON_RDZV_IMPL_H
#define CRUN_COMMON_RDZV_IMPL_H

#include "common/rdzv.h"

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define COUNT_ONE(...) +1
enum { STATE_COUNT = 0 RDZV_STATES(COUNT_ONE), EVENT_COUNT = 0 RDZV_EVENTS(COUNT_ONE) };

struct node {
    char id[RDZV_ID_MAX + 1];
    char addr[RDZV_ADDR_MAX + 1];
    int slots;
    uint64_t seq;      /* of its last news */
    bool joined;       /* asks for the next round; has no workers */
    bool member;       /* of the current or last round */
    bool done;         /* all its workers of this round exited 0 */
    bool leaving;      /* asked to go; still has workers */
    bool silent;       /* nothing heard of it, nothing proved */
    int64_t fence;     /* silent: from then on its workers are dead */
    int group_rank;    /* member */
    int rank_base;     /* member */
    UT_hash_handle hh; /* in order of first JOIN */
};

struct rdzv {
    struct rdzv_config config;
    enum rdzv_state state;
    bool begun;             /* the first event was seen: JOINING has a deadline */
    int64_t state_deadline; /* of JOINING, LAST_CALL, STOPPING; INT64_MAX elsewhere */
    uint64_t round;         /* current or last; 0 before the first */
    uint64_t round_floor;   /* the highest round any agent was told of, perhaps by a predecessor of this machine */
    uint64_t seq_floor;     /* an id that was forgotten and comes back goes on above this */
    enum rdzv_reason why;   /* of the last stop */
    int restarts;
    int group_world;     /* members the round began with */
    int world_size;      /* their slots */
    int done_count;      /* how many of them are DONE */
    int departed_done;   /* how many of those are gone since */
    struct node *nodes;  /* by id */
    struct node **order; /* scratch of start_round, room for all nodes */
    size_t order_cap;
};

/* One walk over the nodes; every count a decision needs. */
struct tally {
    int ready;    /* joined and heard of: can be in the next round */
    int stopping; /* members whose workers may still live */
    int members;  /* of the round, still known */
    int staying;  /* would be there for a next round: neither leaving nor silent */
};
struct tally rdzv_tally_(const struct rdzv *r);

#endif
