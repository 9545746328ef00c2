/* Ranks that a layout has no place for: they wait until those that take part have ended, and end as they did. */
#ifndef CRUN_WORKER_SPARE_H
#define CRUN_WORKER_SPARE_H

#include <stdbool.h>

struct env_contract;
struct err;
struct session;
struct train_config;

/* *ret: does this rank have no place? ERR_USAGE: there are too few ranks for any. */
int spare_is(const struct train_config *cfg, const struct env_contract *env, bool *ret, struct err *e);

/* As such a rank: blocks until spare_release(), the job's end or a wish to stop (EXIT_REQUEUE), whatever comes first.
 * *ret_exit: the exit code. */
int spare_wait(const struct train_config *cfg, const struct env_contract *env, int *ret_exit, struct err *e);

/* The others end with this exit code. The rank that leads; nothing where there are no spares. */
int spare_release(const struct session *s, int code, struct err *e);

#endif
