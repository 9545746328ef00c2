/* Finds why a worker ended: memory, its own last words, GPUs and links of its machine (causes.h). */
#include "launcher/report/causes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "launcher/base/oom.h"
#include "launcher/report/failure.h"

#define KERNEL_LOG "/dev/kmsg"
#define FAULT_OLD_MS 60000 /* before a failure: an older fault of the machine is not taken for its cause */
#define FAULT_JUST_MS 2000 /* a look at the machine may be as late */
#define NVIDIA "/proc/driver/nvidia/version"

void causes_open(struct causes *c)
{
    kernel_log_open(&c->log, KERNEL_LOG, false);
    c->largest = -1;
}

void causes_close(struct causes *c)
{
    kernel_log_close(&c->log);
}

static const char *xid_text(unsigned xid)
{
    static const struct {
        unsigned xid;
        const char *text;
    } known[] = {{13, "an exception in a kernel"},
                 {31, "a page fault of its memory"},
                 {48, "a double-bit error of its memory"},
                 {63, "a row of its memory remapped"},
                 {64, "a row of its memory that cannot be remapped"},
                 {74, "an error of NVLink"},
                 {79, "it has fallen off the bus"},
                 {94, "a contained memory error"},
                 {95, "an uncontained memory error"},
                 {119, "its firmware does not answer"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].xid == xid)
            return known[i].text;
    return "see NVIDIA's list of Xids";
}

static void read_log(struct causes *c, const struct failure_worker *all, int n)
{
    pid_t *pids = calloc((size_t)n + 1, sizeof *pids);
    for (int i = 0; pids && i < n; i++)
        pids[i] = all[i].pid;
    kernel_log_read(&c->log, pids, pids ? n : 0);
    c->log.n = 0; /* they go */
    free(pids);
}

void causes_read(struct causes *c, const struct causes_machine *m, const struct failure_worker *all, int n)
{
    read_log(c, all, n);
    c->machine = *m;
    if (m->xid_ms && m->xid_ms >= c->round_ms && !c->log.xid[0]) { /* the kernel's log says more */
        snprintf(c->log.xid, sizeof c->log.xid, "Xid %u on %s: %s", m->xid, m->xid_pci, xid_text(m->xid));
        c->log.xid_ms = m->xid_ms;
    }
}

/* --- memory */

void causes_note_memory(struct causes *c, const struct failure_worker *all, int n)
{
    char text[128];
    uint64_t pages;
    c->largest = -1;
    c->largest_kb = 0;
    for (int i = 0; i < n; i++) {
        if (all[i].ended || all[i].pid <= 0 ||
            file_read_text(text, sizeof text, "/proc/%d/statm", (int)all[i].pid) < 0 ||
            sscanf(text, "%*u %" SCNu64, &pages) != 1)
            continue;
        const uint64_t kb = pages * ((uint64_t)sysconf(_SC_PAGESIZE) >> 10);
        if (kb > c->largest_kb) {
            c->largest = all[i].rank;
            c->largest_kb = kb;
        }
    }
}

/* "61.9 of 62 GiB"; used 0: not known. */
static int put_sizes(char *out, size_t cap, uint64_t used_kb, uint64_t limit_kb)
{
    const bool large = limit_kb >= 1 << 20;
    const double unit = large ? 1 << 20 : 1 << 10;
    const char *name = large ? "GiB" : "MiB";
    if (limit_kb == 0)
        return snprintf(out, cap, "of what is not known");
    if (used_kb == 0)
        return snprintf(out, cap, "of %.3g %s", (double)limit_kb / unit, name);
    return snprintf(out, cap, "%.3g of %.3g %s", (double)used_kb / unit, (double)limit_kb / unit, name);
}

static uint64_t machine_kb(void)
{
    char text[256];
    uint64_t kb = 0;
    if (file_read_text(text, sizeof text, "/proc/meminfo") >= 0)
        sscanf(text, "MemTotal: %" SCNu64, &kb);
    return kb;
}

static int rank_of(pid_t pid, const struct failure_worker *all, int n)
{
    for (int i = 0; i < n; i++)
        if (all[i].pid == pid)
            return all[i].rank;
    return -1;
}

/* The kernel's log, if readable, is about this death; the group's files have the totals so far. */
char *causes_memory(const struct causes *c, const struct oom_kills *k, const struct failure_worker *w,
                    const struct failure_worker *all, int n, char out[CAUSES_TEXT_MAX])
{
    uint64_t used_kb = 0, limit_kb = 0, machine = machine_kb();
    char sizes[80];
    const struct kernel_oom *o = c->log.found.killed == w->pid ? &c->log.found : NULL;
    oom_kills_sizes(k, &used_kb, &limit_kb);
    if (o && o->limit_kb > 0) {
        used_kb = o->usage_kb;
        limit_kb = o->limit_kb;
    } else if (limit_kb == 0 || limit_kb > machine) {
        used_kb = 0;
        limit_kb = machine;
    }
    put_sizes(sizes, sizeof sizes, used_kb, limit_kb);
    const int largest = o && o->largest ? rank_of(o->largest, all, n) : -1;
    if (largest >= 0 && n > 1)
        snprintf(out, CAUSES_TEXT_MAX, " (%s; the largest: rank %d)", sizes, largest);
    else if (c->largest >= 0)
        snprintf(out, CAUSES_TEXT_MAX, " (%s; of the others rank %d held most, %.3g MiB)", sizes, c->largest,
                 (double)c->largest_kb / 1024);
    else
        snprintf(out, CAUSES_TEXT_MAX, " (%s)", sizes);
    return out;
}

/* Kills of its cgroup that were not those of workers which had ended so before. */
static uint64_t other_kills(const struct failure_worker *w, const struct failure_worker *all, int n)
{
    uint64_t kills = w->kills;
    for (int i = 0; i < n && kills > 0; i++)
        kills -= all[i].ending.oom && all[i].order < w->order;
    return kills;
}

bool causes_is_oom(struct causes *c, const struct failure_worker *w, const struct failure_worker *all, int n)
{
    read_log(c, all, n);
    const int killed = kernel_log_killed(&c->log, w->pid, w->kills);
    return killed >= 0 ? killed : other_kills(w, all, n) == 1;
}

const char *causes_kills(const struct causes *c, const struct failure_worker *w, const struct failure_worker *all,
                         int n, char out[CAUSES_TEXT_MAX])
{
    const uint64_t kills = other_kills(w, all, n);
    const char *of = kills == 1 ? "process" : "processes";
    if (kills == 0 || w->hung[0])
        return NULL;
    if (w->ending.signaled && kernel_log_killed(&c->log, w->pid, w->kills) == 0)
        snprintf(out, CAUSES_TEXT_MAX, "; the kernel also killed %" PRIu64 " %s of its cgroup for want of memory",
                 kills, of);
    else
        snprintf(out, CAUSES_TEXT_MAX, ", after the kernel killed %" PRIu64 " %s of its cgroup (out of memory)", kills,
                 of);
    return out;
}

/* --- its own words */

static const struct {
    const char *says, *means;
} words[] = {{"No space left on device", "a file system without space"},
             {"Disk quota exceeded", "a disk quota that is used up"},
             {"Read-only file system", "a read-only file system"},
             {"Stale file handle", "a file that its server does not know any more"},
             {"uncorrectable ECC error", "a GPU whose memory is damaged"},
             {"CUDA out of memory", "the GPU's memory is full"},
             {"CUDA error: out of memory", "the GPU's memory is full"}};

static const char *find_words(const char *text, char out[CAUSES_TEXT_MAX])
{
    for (size_t i = 0; text && i < sizeof words / sizeof *words; i++)
        if (strstr(text, words[i].says)) {
            snprintf(out, CAUSES_TEXT_MAX, ": %s (it said: %s)", words[i].means, words[i].says);
            return out;
        }
    return NULL;
}

/* Who sent the signal that the worker died of, as libcrun's handler saw it (common/crun/crun_crash.c). NULL: the record
 * is of another signal, which it survived, or names nobody. */
static const char *find_sender(struct ending end, const char *message, char out[CAUSES_TEXT_MAX])
{
    static const char outside[] = " sent by a process outside of its container";
    char name[32], crashed[64];
    int sender, read = 0;
    const int n = snprintf(crashed, sizeof crashed, "crashed: %s", signal_text(end.value, name, sizeof name));
    if (!end.signaled || !message || strncmp(message, crashed, (size_t)n) != 0)
        return NULL;
    if (strcmp(message + n, outside) == 0)
        snprintf(out, CAUSES_TEXT_MAX, ", which a process outside of its container sent");
    else if (sscanf(message + n, " sent by process %d%n", &sender, &read) == 1 && !message[n + read])
        snprintf(out, CAUSES_TEXT_MAX, ", which process %d sent", sender);
    else
        return NULL;
    return out;
}

const char *causes_words(const struct failure_worker *w, const char *message, const char *last_line,
                         char out[CAUSES_TEXT_MAX])
{
    if (find_sender(w->ending, message, out))
        return out;
    if (w->ending.signaled && w->ending.value != SIGABRT)
        return NULL; /* its last words are older than what ended it */
    const char *found = find_words(message, out);
    return found ? found : find_words(last_line, out);
}

/* --- the machine */

void causes_begin_round(struct causes *c)
{
    kernel_log_read(&c->log, NULL, 0);
    c->log.xid[0] = '\0';
    c->log.n_kills = 0;
    c->round_ms = clock_ms();
}

const char *causes_fault(const struct causes *c, int64_t failed_ms, bool hung, double *ret_before_s)
{
    const struct causes_machine *m = &c->machine;
    const int64_t oldest = hung ? INT64_MIN : failed_ms - FAULT_OLD_MS;
    const bool of_gpu = c->log.xid[0] && c->log.xid_ms >= oldest;
    const bool of_link = m->link_ms && m->link_ms >= oldest && (m->link_down || m->link_ms >= c->round_ms);
    const int64_t before_ms = failed_ms - (of_gpu ? c->log.xid_ms : m->link_ms);
    *ret_before_s = before_ms > FAULT_JUST_MS ? (double)before_ms / 1e3 : 0;
    return of_gpu ? c->log.xid : of_link ? m->link : NULL;
}

/* Whether a fault of a GPU was seen before this round. NULL: there is no driver. */
static const char *earlier_xid(const struct causes_machine *m, char out[CAUSES_TEXT_MAX])
{
    struct kernel_log whole;
    if (m->xid_ms) {
        snprintf(out, CAUSES_TEXT_MAX, "none in this round; before it Xid %u on %s", m->xid, m->xid_pci);
        return out;
    }
    if (access(NVIDIA, F_OK) < 0)
        return NULL;
    kernel_log_open(&whole, KERNEL_LOG, true);
    kernel_log_read(&whole, NULL, 0);
    if (whole.fd < 0)
        snprintf(out, CAUSES_TEXT_MAX, "Xids before this job: not readable here (" KERNEL_LOG ")");
    else if (whole.xid[0])
        snprintf(out, CAUSES_TEXT_MAX, "none in this round; before it %s", whole.xid);
    else
        snprintf(out, CAUSES_TEXT_MAX, "none");
    kernel_log_close(&whole);
    return out;
}

const char *causes_xids(const struct causes *c, char out[CAUSES_XIDS_MAX])
{
    const char *remap = c->machine.remap_pci;
    char earlier[CAUSES_TEXT_MAX];
    const char *text = c->log.xid[0] ? c->log.xid : earlier_xid(&c->machine, earlier);
    if (!text && !remap[0])
        return NULL;
    snprintf(out, CAUSES_XIDS_MAX, "%s%s%s", text ? text : "none",
             remap[0] ? "; memory is to be remapped at the next reset of " : "", remap);
    return out;
}

const char *causes_link(const struct causes *c, const struct failure_worker *w, char out[CAUSES_TEXT_MAX])
{
    const struct causes_machine *m = &c->machine;
    const double before_s = (double)w->ended_ns / 1e9 - (double)m->link_ms / 1e3;
    if (!m->link_ms)
        return NULL;
    snprintf(out, CAUSES_TEXT_MAX, "%s (seen %.1f s %s%s)", m->link, fabs(before_s), before_s < 0 ? "later" : "earlier",
             m->link_ms < c->round_ms ? ", in another round" : "");
    return out;
}
