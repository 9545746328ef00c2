/* What elect.c and elect_made.c share: the simulated home. */
#ifndef CRUN_TESTS_ELECT_IMPL_H
#define CRUN_TESTS_ELECT_IMPL_H

#include "tests/sim/elect.h"

enum { LOG = 4096, STATES = 64 };

struct entry {
    char epoch[RDZV_EPOCH_MAX + 1];
    uint64_t number;
    char *text; /* in the arena */
};

struct store { /* what one server of the home holds */
    struct rdzv_claim claim;
    bool has_claim;
    int first, count; /* of entries */
    struct entry log[LOG];
    char identity[RDZV_IDENTITY_MAX + 1];
};

struct shared {     /* a world and its home */
    struct world w; /* first */
    enum elect_kind kind;
    bool safe_replicas;
    int live_from;
    struct store home, old; /* old: a primary that lives on */
    int64_t old_until, old_confirms_until;
    bool on_old[NODES];
    int64_t home_away_until, out_of_home[NODES];
    struct {
        int64_t at;
        struct rdzv_claim claim;
        bool has_claim;
    } states[STATES]; /* of the claim: a ring */
    unsigned state_count;
    struct made { /* elect_made.c: where it is, and who plays which part */
        int step;
        struct node *leader, *member, *looker;
        int64_t until;
        uint64_t higher;
    } made;
};

/* api_world.c: the home of a node as its shipped code has it, in a fiber that stands for the thread that waits. */
struct keeper; /* of one node */
bool elect_is_api_(const struct world *w);
void elect_keep_(struct world *w, struct node *n); /* a node is born: a fresh handle */
const struct rdzv_home_ops *elect_home_(const struct node *n);
void elect_keeper_(struct world *w, const struct message *m);  /* M_KEEPER */
void elect_request_(struct world *w, const struct message *m); /* M_HOME: a request arrives */
void elect_end_(struct world *w);

/* elect_standby.c: daemons, over the home of elect.c */
void elect_daemon_born_(struct world *w, struct node *n);
void elect_daemon_loaded_(struct world *w, struct node *n, const char *log);
void elect_daemon_resigns_(struct world *w, struct node *n);
void elect_daemon_tick_(struct world *w, struct node *n); /* it dials the leader; and ends where its term is over */
int64_t elect_daemon_deadline_(const struct node *n);
void elect_queue_(struct world *w, struct node *n, uint64_t number, char *text, const char *epoch, bool whole);

static inline struct shared *shared(struct world *w)
{
    return (struct shared *)w;
}

void elect_push_(struct world *w, struct node *n, struct election_event ev);
void elect_empty_(struct world *w); /* the home, which has another identity then */

/* The next step of a schedule that is made for one fault; it says when the one after follows. */
void elect_made_(struct world *w);

#endif
