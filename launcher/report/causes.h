/* Why a worker ended, if somebody saw it: the kernel (memory, GPUs), the worker's last words (disks, GPU memory),
 * libcrun's handler (who sent a signal). Nothing is guessed. */
#ifndef CRUN_LAUNCHER_CAUSES_H
#define CRUN_LAUNCHER_CAUSES_H

#include <stddef.h>
#include <stdint.h>

#include "launcher/report/kernel_log.h"

struct failure_worker;
struct oom_kills;

#define CAUSES_TEXT_MAX 256

struct causes {
    struct kernel_log log; /* from the job's beginning; its xid: from the round's beginning */
    /* rank of the worker that held most memory when another one was killed for lack of it, -1: not known */
    int largest;
    uint64_t largest_kb;
};

void causes_open(struct causes *c);
void causes_close(struct causes *c);

/* A worker was killed because memory ran out: note how much the other workers hold now. */
void causes_note_memory(struct causes *c, const struct failure_worker *all, int n);

/* Read what the kernel has logged about these workers; call it after a round, before the next two functions. */
void causes_read(struct causes *c, const struct failure_worker *all, int n);

/* Text to follow "killed by the kernel: out of memory": " (61.9 of 62 GiB; the largest: rank 12)". Returns out. */
char *causes_memory(const struct causes *c, const struct oom_kills *k, const struct failure_worker *w,
                    const struct failure_worker *all, int n, char out[CAUSES_TEXT_MAX]);

/* Text to follow another worker's ending, from its error message and its last line; NULL: neither gives a reason.
 * Pure. */
const char *causes_words(const struct failure_worker *w, const char *message, const char *last_line,
                         char out[CAUSES_TEXT_MAX]);

/* A round begins: forget what was logged about GPUs before. */
void causes_begin_round(struct causes *c);
/* NVML reported this fault of a GPU in this round, besides the kernel's log. */
void causes_note_xid(struct causes *c, unsigned xid, const char *pci);
/* "Xid 79 on PCI:0000:3b:00: GPU has fallen off the bus", in this round; NULL: none was seen. */
const char *causes_fault(const struct causes *c);
/* Whether a fault was seen before the job: none, which one, or that it cannot be known. NULL: there is no driver. */
const char *causes_earlier_faults(char out[CAUSES_TEXT_MAX]);

#endif
