/* Jobs under a virtual clock, and parties that write down what they are told. */
#ifndef CRUN_TESTS_RENDEZVOUSD_JOBS_RIG_H
#define CRUN_TESTS_RENDEZVOUSD_JOBS_RIG_H

#include "common/base/err.h"
#include "rendezvousd/jobs/jobs.h"

struct agent {
    struct jobs_party *party;
    const char *run, *node;
    struct jobs_joined joined;
    struct rdzv_news news;         /* the last it was told */
    char members[1024];            /* addresses it was told with it, "" */
    int more;                      /* the group rank that more of them begin with; 0: none */
    int told;                      /* how often */
    char question[256];            /* the last it was asked, "" */
    int questions;                 /* how often */
    bool is_void;                  /* it was told that another stands for its node */
    struct err e;                  /* of its last request */
    void (*then)(struct agent *a); /* called from inside told(), NULL: nothing */
};

extern int64_t rig_now; /* ms; starts above 0 */
int64_t rig_clock(void);

struct jobs *rig_jobs(const struct jobs_options *o); /* NULL: defaults; the clock is ours */
void rig_pass(struct jobs *j, int64_t ms);           /* time passes, deadlines are kept */

struct rdzv_config rig_config(int min, int max);

/* addr "": in this process. */
void rig_open(struct jobs *j, struct agent *a, const char *run, const char *node, const char *addr);
void rig_open_as(struct jobs *j, struct agent *a, const char *run, const char *node, const char *addr,
                 const char *principal);
int rig_join(struct agent *a, const struct rdzv_config *c, uint64_t round);
int rig_next(struct agent *a); /* acknowledges what it was told last */
int rig_say(struct agent *a, enum rdzv_event_kind kind, uint64_t round, int exit_code);
void rig_close(struct agent *a, enum jobs_end how);

#endif
