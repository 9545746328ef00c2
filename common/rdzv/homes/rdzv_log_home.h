/* The homes that keep their log elsewhere: opened by rdzv_home_open() by the URL's scheme. */
#ifndef CRUN_COMMON_RDZV_LOG_HOME_H
#define CRUN_COMMON_RDZV_LOG_HOME_H

#include "common/rdzv/homes/rdzv_home.h"

int rdzv_log_redis_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);
int rdzv_log_file_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e);

#endif
