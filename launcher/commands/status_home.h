/* What a job's log in a Redis or a directory says, as `crun status` shows it. */
#ifndef CRUN_LAUNCHER_STATUS_HOME_H
#define CRUN_LAUNCHER_STATUS_HOME_H

#include <stdint.h>

struct err;

/* url: as rdzv_home_open() takes it. *ret: JSON like RDZV.STATUS's, without what only a daemon knows (limits, events,
 * reports); freed with free(). -ENOENT: there is no such job. Blocks up to timeout_ms for each call of the home. */
int status_read_home(const char *url, const char *run, int64_t timeout_ms, char **ret, struct err *e);

#endif
