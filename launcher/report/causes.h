/* Why a worker ended, as far as somebody saw it: the kernel (memory, GPUs), the worker's own last words (disks, GPU
 * memory), libcrun's handler (who sent a signal). What nobody saw is not guessed. */
#ifndef CRUN_LAUNCHER_CAUSES_H
#define CRUN_LAUNCHER_CAUSES_H

#include <stddef.h>
#include <stdint.h>

#include "launcher/report/kernel_log.h"

struct failure_worker;
struct oom_kills;

#define CAUSES_TEXT_MAX 256

struct causes {
    struct kernel_log log; /* since the job began; its xid: since the round began */
    int largest; /* rank of the worker with most memory when another one was killed for want of it, -1: not known */
    uint64_t largest_kb;
};

void causes_open(struct causes *c);
void causes_close(struct causes *c);

/* A worker was killed for want of memory: who of the others holds how much now? */
void causes_note_memory(struct causes *c, const struct failure_worker *all, int n);

/* What the kernel has said of these by now; before the next two, of a round that is over. */
void causes_read(struct causes *c, const struct failure_worker *all, int n);

/* What follows "killed by the kernel: out of memory": " (61.9 of 62 GiB; the largest: rank 12)". Returns out. */
char *causes_memory(const struct causes *c, const struct oom_kills *k, const struct failure_worker *w,
                    const struct failure_worker *all, int n, char out[CAUSES_TEXT_MAX]);

/* What follows the ending of another worker, by its error message and its last line; NULL: neither says anything.
 * Pure. */
const char *causes_words(const struct failure_worker *w, const char *message, const char *last_line,
                         char out[CAUSES_TEXT_MAX]);

/* A round begins: what was said of GPUs is of before. */
void causes_begin_round(struct causes *c);
/* What NVML reported of a GPU in this round, beside the kernel's log. */
void causes_note_xid(struct causes *c, unsigned xid, const char *pci);
/* "Xid 79 on PCI:0000:3b:00: GPU has fallen off the bus", in this round; NULL: none was seen. */
const char *causes_fault(const struct causes *c);
/* That none was seen before the job either; or which, or that it cannot be known. NULL: there is no driver. */
const char *causes_earlier_faults(char out[CAUSES_TEXT_MAX]);

#endif
