/* One worker process and the page shared with it. */
#ifndef CRUN_LAUNCHER_CHILD_H
#define CRUN_LAUNCHER_CHILD_H

#include <stdbool.h>

#include "common/crun/crun_page.h"
#include "launcher/report/failure.h"

struct err;

struct child {
    int local;
    int pidfd;              /* -1: none */
    bool guest;             /* in a process group that is not its own */
    struct crun_page *page; /* mapped until the next round begins */
};

/* A fresh page; *ret_fd is close-on-exec and the caller's. 1: one that cannot be shared, as file sizes are limited;
 * *ret_fd is untouched. */
int child_page_create(struct child *c, int notify_fd, int *ret_fd, struct err *e);
void child_page_drop(struct child *c);

/* The reason first, then the signals. */
void child_stop(struct child *c, pid_t pid, int reason);
void child_kill(struct child *c);

#endif
