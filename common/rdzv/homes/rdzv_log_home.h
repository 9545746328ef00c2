/* The homes that keep their log elsewhere, opened by rdzv_home_open() by the URL's scheme, and what they share. */
#ifndef CRUN_COMMON_RDZV_LOG_HOME_H
#define CRUN_COMMON_RDZV_LOG_HOME_H

#include "common/rdzv/homes/rdzv_home.h"

/* What an older crun finds as its job's log, and refuses by its format. */
#define RDZV_HOME_MARK "@reign epoch=0 holder=crun home=newer claim=1\n@job format=4 run= principal= instance=newer\n"

int rdzv_log_redis_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
int rdzv_log_etcd_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
int rdzv_log_kube_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
/* Touches the folder in the calling thread. */
int rdzv_log_file_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
/* Lets a process do it (o->process_fd). */
int rdzv_home_far_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);

/* A handle of zeros may be finished. */
int rdzv_home_init_(struct rdzv_home *h, const struct rdzv_home_ops *ops, struct err *e);
void rdzv_home_finish_(struct rdzv_home *h);

#endif
