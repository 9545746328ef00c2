/* Reads the kernel's log, if /dev/kmsg is readable (root, or dmesg_restrict off): which process it killed because
 * memory ran out, which one held most, and faults of GPUs that NVIDIA's driver reported (Xid). */
#ifndef CRUN_LAUNCHER_KERNEL_LOG_H
#define CRUN_LAUNCHER_KERNEL_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kernel_oom {
    pid_t killed;                /* 0: none */
    uint64_t usage_kb, limit_kb; /* of the group that had no memory left; 0: the whole machine had none */
    pid_t largest;               /* the process with most memory among those asked for, 0: not known */
    uint64_t largest_pages;
};

struct kernel_log {
    int fd;            /* -1: it cannot be read */
    const pid_t *pids; /* whose deaths are of interest */
    int n;
    struct kernel_oom now, found; /* the report being read; the first one that is about a process in pids */
    char xid[192];                /* the newest, "": none */
};

/* Open the log at its end; whole: at the oldest record that is left. */
void kernel_log_open(struct kernel_log *k, const char *path, bool whole);
void kernel_log_close(struct kernel_log *k);

/* Read new records. pids: borrowed until the next call. */
void kernel_log_read(struct kernel_log *k, const pid_t *pids, int n);

void kernel_log_take(struct kernel_log *k, const char *text); /* one record's. Pure */

#endif
