/* Reads the kernel's log: processes killed for lack of memory, faults of GPUs (kernel_log.h). */
#include "launcher/report/kernel_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

#define OOM_KILLED "ut of memory: Killed process " /* of the machine, or of a cgroup */
#define FIRST_NAMESPACE "pid:[4026531836]"         /* the machine's own, whose process ids the kernel logs */
#define RECORD_BYTES 8192
#define RECORDS_MAX 200000 /* bound, in case the log grows as fast as it is read */

void kernel_log_open(struct kernel_log *k, const char *path, bool whole)
{
    char space[32] = "";
    *k = (struct kernel_log){.fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    k->foreign = readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0 || strcmp(space, FIRST_NAMESPACE) != 0;
    if (k->fd >= 0 && lseek(k->fd, 0, whole ? SEEK_SET : SEEK_END) < 0)
        kernel_log_close(k);
}

void kernel_log_close(struct kernel_log *k)
{
    if (k->fd >= 0)
        close(k->fd);
    k->fd = -1;
}

static bool is_asked_for(const struct kernel_log *k, pid_t pid)
{
    for (int i = 0; i < k->n; i++)
        if (k->pids[i] == pid)
            return true;
    return false;
}

/* Parse "Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus." */
static void take_xid(struct kernel_log *k, const char *at)
{
    char bus[64];
    int number, end = 0;
    if (sscanf(at, "Xid (%63[^)]): %d%n", bus, &number, &end) != 2 || end == 0)
        return;
    const char *what = at + end;
    while (*what == ',' || *what == ' ') {
        what += strspn(what, ", ");
        if (strncmp(what, "pid=", 4) != 0 && strncmp(what, "name=", 5) != 0)
            break;
        what += strcspn(what, ",");
    }
    k->xid_ms = k->now_ms;
    snprintf(k->xid, sizeof k->xid, "Xid %d on %s: %.100s", number, bus, *what ? what : "no more is said");
}

/* Parse one record. The report of a kill for lack of memory consists of many: it begins with "invoked oom-killer",
 * lists the processes, and ends with the one that was killed. */
void kernel_log_take(struct kernel_log *k, const char *text)
{
    const char *at;
    uint64_t usage, limit, pages;
    int pid, group;
    if (strstr(text, "invoked oom-killer"))
        k->now = (struct kernel_oom){0};
    else if (sscanf(text, "memory: usage %" SCNu64 "kB, limit %" SCNu64 "kB", &usage, &limit) == 2)
        k->now.usage_kb = usage, k->now.limit_kb = limit;
    else if (sscanf(text, "[ %d ] %*d %d %*u %" SCNu64, &pid, &group, &pages) == 3) {
        if (is_asked_for(k, group) && pages > k->now.largest_pages)
            k->now.largest = group, k->now.largest_pages = pages;
    } else if ((at = strstr(text, OOM_KILLED))) {
        pid = atoi(at + strlen(OOM_KILLED));
        if (k->n_kills < KERNEL_LOG_KILLS)
            k->kills[k->n_kills] = pid;
        k->n_kills++;
        if (is_asked_for(k, pid) && !is_asked_for(k, k->found.killed)) {
            k->found = k->now;
            k->found.killed = pid;
        }
    } else if ((at = strstr(text, "NVRM: Xid (")))
        take_xid(k, at + strlen("NVRM: "));
}

int kernel_log_killed(const struct kernel_log *k, pid_t pid, uint64_t kills)
{
    const unsigned n = k->n_kills < KERNEL_LOG_KILLS ? k->n_kills : KERNEL_LOG_KILLS;
    if (k->foreign)
        return -1;
    for (unsigned i = 0; i < n; i++)
        if (k->kills[i] == pid)
            return 1;
    return n == k->n_kills && n > 0 && n >= kills ? 0 : -1;
}

/* The kernel's own clock, which its log has, runs beside CLOCK_MONOTONIC_RAW; nobody sets it. */
static int64_t age_ms(int64_t logged_us)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    const int64_t age = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - logged_us / 1000;
    return age > 0 ? age : 0;
}

/* Parse "4,1234,56789,-;text\n SUBSYSTEM=...": priority and facility, number, time. Only the kernel's own messages
 * count. */
static void take_record(struct kernel_log *k, char *record)
{
    char *text = strchr(record, ';');
    int64_t us;
    if (!text || atoi(record) >= 8)
        return;
    k->now_ms = sscanf(record, "%*u,%*u,%" SCNd64, &us) == 1 ? clock_ms() - age_ms(us) : clock_ms();
    text[strcspn(text, "\n")] = '\0';
    kernel_log_take(k, text + 1);
}

void kernel_log_read(struct kernel_log *k, const pid_t *pids, int n)
{
    char record[RECORD_BYTES + 1];
    k->pids = pids;
    k->n = n;
    for (int i = 0; k->fd >= 0 && i < RECORDS_MAX; i++) {
        const ssize_t got = read(k->fd, record, RECORD_BYTES);
        if (got > 0) {
            record[got] = '\0';
            take_record(k, record);
        } else if (got == 0 || (errno != EPIPE && errno != EINTR)) { /* EPIPE: records were overwritten */
            return;
        }
    }
}
