/* The homes that keep their log elsewhere, opened by rdzv_home_open() by the URL's scheme, and what they share. */
#ifndef CRUN_COMMON_RDZV_LOG_HOME_H
#define CRUN_COMMON_RDZV_LOG_HOME_H

#include "common/rdzv/homes/rdzv_home.h"

int rdzv_log_redis_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
/* Touches the folder in the calling thread. */
int rdzv_log_file_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
/* Lets a process do it (o->process_fd). */
int rdzv_home_far_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);

/* wake_fd is taken over; 0: one is made. A handle of zeros may be finished. */
int rdzv_home_init_(struct rdzv_home *h, const struct rdzv_home_ops *ops, int wake_fd, struct err *e);
void rdzv_home_finish_(struct rdzv_home *h);
/* Sleep until events on fd (-1: none), the deadline (0), or an interrupt (-EINTR, taken). 1: there are events.
 * -ECANCELED. lost_fd: a socket whose end wakes as an interrupt does, -1: none. */
int rdzv_home_wait_(struct rdzv_home *h, int fd, int lost_fd, int64_t deadline);

#endif
