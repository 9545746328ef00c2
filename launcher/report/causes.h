/* Why a worker ended, if somebody saw it: the kernel (memory, GPUs), the worker's last words (disks, GPU memory),
 * libcrun's handler (who sent a signal). Nothing is guessed. */
#ifndef CRUN_LAUNCHER_CAUSES_H
#define CRUN_LAUNCHER_CAUSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/report/kernel_log.h"

struct failure_worker;
struct oom_kills;

#define CAUSES_TEXT_MAX 256
#define CAUSES_XIDS_MAX (CAUSES_TEXT_MAX + 96)

/* What the gauges process has seen of this machine's GPUs and links since the job began; zeroed: nothing. */
struct causes_machine {
    int64_t xid_ms, link_ms; /* clock_ms() of the newest Xid, and of the newest change of a link; 0: none */
    unsigned xid;
    char xid_pci[32], remap_pci[32]; /* the GPU with the Xid; one with rows to be remapped, "": none */
    bool link_down;                  /* it still is */
    char link[128];                  /* "eth0 went down" */
};

struct causes {
    struct kernel_log log; /* from the job's beginning; its xid: from the round's beginning */
    struct causes_machine machine;
    int64_t round_ms; /* when the round began */
    /* rank of the worker that held most memory when another one was killed for lack of it, -1: not known */
    int largest;
    uint64_t largest_kb;
};

void causes_open(struct causes *c);
void causes_close(struct causes *c);

/* A worker died of SIGKILL, and w->kills > 0: was it killed because memory ran out? The kernel's log knows. If it does
 * not say: yes, if each other kill was that of a worker. */
bool causes_is_oom(struct causes *c, const struct failure_worker *w, const struct failure_worker *all, int n);

/* A worker was killed because memory ran out: note how much the other workers hold now. */
void causes_note_memory(struct causes *c, const struct failure_worker *all, int n);

/* Read what the kernel has logged about these workers, and note what was seen of the machine; call it after a round,
 * before what follows. */
void causes_read(struct causes *c, const struct causes_machine *m, const struct failure_worker *all, int n);

/* Text to follow "killed by the kernel: out of memory": " (61.9 of 62 GiB; the largest: rank 12)". Returns out. */
char *causes_memory(const struct causes *c, const struct oom_kills *k, const struct failure_worker *w,
                    const struct failure_worker *all, int n, char out[CAUSES_TEXT_MAX]);

/* Text to follow another worker's ending, from its error message and its last line; NULL: neither gives a reason.
 * Pure. */
const char *causes_words(const struct failure_worker *w, const char *message, const char *last_line,
                         char out[CAUSES_TEXT_MAX]);

/* Text to follow an ending that is not that of a worker killed for lack of memory: what else of its cgroup was, such as
 * a process that the worker had forked. NULL: nothing. Pure. */
const char *causes_kills(const struct causes *c, const struct failure_worker *w, const struct failure_worker *all,
                         int n, char out[CAUSES_TEXT_MAX]);

/* A round begins: forget what was logged about GPUs and memory before. */
void causes_begin_round(struct causes *c);
/* A fault of this machine in this round, at most a minute before the failure: of a GPU ("Xid 79 on PCI:0000:3b:00: GPU
 * has fallen off the bus"), else of a link that went down, or still is ("eth0 went down"). hung: the failure began
 * before failed_ms (clock_ms()), nobody knows when, so the fault may be older. ret_before_s: how many seconds before
 * failed_ms it came, 0: 2 at most. NULL: none was seen. */
const char *causes_fault(const struct causes *c, int64_t failed_ms, bool hung, double *ret_before_s);
/* The report's line `xid`: the newest fault of a GPU, in this round or before, or that it cannot be known; memory to be
 * remapped. NULL: there is no driver. */
const char *causes_xids(const struct causes *c, char out[CAUSES_XIDS_MAX]);
/* Its line `link`: what became of one, and how long before the worker's end that was seen. NULL: nothing. */
const char *causes_link(const struct causes *c, const struct failure_worker *w, char out[CAUSES_TEXT_MAX]);

#endif
