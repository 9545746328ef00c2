/* The kernel's own words of a death, where /dev/kmsg may be read (root, or dmesg_restrict off): which process it killed
 * for want of memory and who held most, and what NVIDIA's driver reported of its GPUs (Xid). */
#ifndef CRUN_LAUNCHER_KERNEL_LOG_H
#define CRUN_LAUNCHER_KERNEL_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kernel_oom {
    pid_t killed;                /* 0: none */
    uint64_t usage_kb, limit_kb; /* of the group that had no room; 0: the machine had none */
    pid_t largest;               /* of the processes that are asked for, 0: not known */
    uint64_t largest_pages;
};

struct kernel_log {
    int fd;            /* -1: it cannot be read */
    const pid_t *pids; /* whose deaths are of interest */
    int n;
    struct kernel_oom now, found; /* the report that is being read; the first about one of pids */
    char xid[192];                /* the newest, "": none */
};

/* From now on; whole: from the oldest record that is left. */
void kernel_log_open(struct kernel_log *k, const char *path, bool whole);
void kernel_log_close(struct kernel_log *k);

/* What has come. pids: borrowed until the next call. */
void kernel_log_read(struct kernel_log *k, const pid_t *pids, int n);

void kernel_log_take(struct kernel_log *k, const char *text); /* one record's. Pure */

#endif
