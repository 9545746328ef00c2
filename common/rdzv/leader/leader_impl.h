/* The inside of the leader, for leader*.c: events and time, asking, members and their news, history, decisions. */
#ifndef CRUN_COMMON_RDZV_LEADER_IMPL_H
#define CRUN_COMMON_RDZV_LEADER_IMPL_H

#include "common/rdzv/leader/leader.h"

struct leader {
    struct leader_options o;
    char *run, *principal;
    struct rdzv *machine; /* NULL: no job yet */
    struct rdzv_config config;
    char instance[LEADER_INSTANCE_LEN + 1];
    char former[LEADER_INSTANCE_LEN + 1]; /* the instance that this one continues; "": none */
    struct leader_member *members;        /* by node */
    struct leader_member *lists[LEADER_LIST_COUNT];
    struct leader_member *fresh, *unsaid;
    uint64_t numbered; /* the highest number of news so far */
    size_t known;      /* number of members that the machine knows */
    size_t elders;
    char outside[RDZV_ADDR_MAX + 1]; /* our address as members on other hosts have it, "": not known */
    struct rdzv_effects fx;
    bool over;
    int64_t over_ms;
    bool ended;
    struct rdzv_news end; /* announced to all when the job ended */
    int64_t awake_ms;     /* when this process ran again after it had been stopped */
    int64_t hold_until;   /* 0: no hold */
    bool held;            /* whether it was held at the last tick */
    int64_t first_until;  /* leader_hold_first(); 0: no such hold */
    bool begun;           /* no decision has recorded yet that the instance began, or which one it continues */
    bool changed;         /* something else is not */
    uint64_t restarts_logged;
    struct leader_history history;
};

/* leader.c */
int leader_machine_step_(struct leader *l, const struct rdzv_event *ev, int64_t now, struct err *e);
int64_t leader_last_heard_(const struct leader *l, const struct leader_member *m);
void leader_heard_(struct leader *l, struct leader_member *m, bool here, int64_t now);
bool leader_is_final_(const struct leader *l);
/* Hold the first round until the workers of all elders are dead, as far as we know. */
void leader_hold_for_elders_(struct leader *l, int64_t now);
void leader_elder_(struct leader *l, struct leader_member *m, bool is);

/* leader_ask.c */
int leader_ask_(struct leader *l, const struct leader_event *ev, int64_t now, struct err *e);
int leader_begin_(struct leader *l, const struct rdzv_config *c, const char *instance, int64_t now, struct err *e);

/* leader_member.c */
int leader_add_(struct leader *l, const char *node, struct leader_member **ret, struct err *e);
void leader_drop_(struct leader *l, struct leader_member *m);
void leader_list_(struct leader *l, struct leader_member *m, enum leader_list list); /* move to the end of a list */
void leader_set_known_(struct leader *l, struct leader_member *m, bool known, int64_t now);
void leader_touch_(struct leader *l, struct leader_member *m); /* mark it fresh and unsaid */
void leader_tell_(struct leader *l, struct leader_member *m, const struct rdzv_news *news);
void leader_keep_end_(struct leader *l, const struct rdzv_news *news); /* for nodes that come later */
void leader_take_effects_(struct leader *l);
void leader_turn_away_(struct leader *l, struct leader_member *m); /* the job has succeeded without it */

/* leader_history.c */
struct leader_before {
    enum rdzv_state state;
    uint64_t round;
    int restarts;
};
struct leader_before leader_before_(const struct leader *l);
void leader_note_(struct leader *l, const struct leader_before *before, const struct rdzv_event *ev, int64_t now);

#endif
