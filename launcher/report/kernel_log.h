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

#define KERNEL_LOG_KILLS 64

struct kernel_log {
    int fd;            /* -1: it cannot be read */
    bool foreign;      /* its process ids are not ours: this process is in a PID namespace of its own */
    const pid_t *pids; /* whose deaths are of interest */
    int n;
    struct kernel_oom now, found;  /* the report being read; the first one that is about a process in pids */
    pid_t kills[KERNEL_LOG_KILLS]; /* the first ones killed for lack of memory, of any cgroup */
    unsigned n_kills;              /* their number, which may be larger */
    char xid[192];                 /* the newest, "": none */
    int64_t now_ms, xid_ms;        /* clock_ms() when the record being read, and that Xid, were logged */
};

/* Open the log at its end; whole: at the oldest record that is left. */
void kernel_log_open(struct kernel_log *k, const char *path, bool whole);
void kernel_log_close(struct kernel_log *k);

/* Read new records. pids: borrowed until the next call. */
void kernel_log_read(struct kernel_log *k, const pid_t *pids, int n);

/* Was the process killed for lack of memory? kills: so many were, as the files of its cgroup say. 1: yes; 0: no; -1:
 * the log does not say. Pure. */
int kernel_log_killed(const struct kernel_log *k, pid_t pid, uint64_t kills);

void kernel_log_take(struct kernel_log *k, const char *text); /* one record's. Pure */

#endif
