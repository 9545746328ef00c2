/* One job told step by step: what is asked, and word for word what everybody is told. For tests with a main of their
 * own. */
#ifndef CRUN_TESTS_SIM_SCENARIO_H
#define CRUN_TESTS_SIM_SCENARIO_H

#include "common/base/buf.h"
#include "common/rdzv/machine/rdzv.h"

struct job {
    struct rdzv *r;
    struct rdzv_effects fx;
    struct buf said;
    int64_t now;
};

struct rdzv_config job_config(int min, int max,
                              int restarts); /* join timeout 600 s, last call 30 s, silence 3 s, kill 1 s */
struct job begin_with(const struct rdzv_config *c);
struct job begin(int min, int max, int restarts);
void end(struct job *j);

/* The code of rdzv_step(); every rule of rdzv_check() holds afterwards. */
int step_event(struct job *j, const struct rdzv_event *ev);
int step(struct job *j, enum rdzv_event_kind kind, const char *node, uint64_t round, int slots);

/* The event is taken, and this is what is told. */
void says_event(struct job *j, const struct rdzv_event *ev, const char *expected);
void says(struct job *j, enum rdzv_event_kind kind, const char *node, uint64_t round, const char *expected);

/* The next deadline is `at`; then this is told. */
void ticks(struct job *j, int64_t at, const char *expected);

#endif
