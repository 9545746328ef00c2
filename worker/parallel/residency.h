/* Parameters that a rank has only while they are read (ZeRO 3): which pieces (ownership.h) of an arena are gathered
 * before which read of a plan, and given back after which.
 *
 *   a plan says what it reads, in its order:   r0  r1  r2  r3 ...      (plan_needs.order)
 *   need(k)      what r_k is in and is not here is asked for, then what the next read is in that is not in the same
 *                pieces: it comes while r_k computes. Wait for r_k's.
 *   release(k)   pieces that no read up to that one is in, nor the one behind it, are given back.
 *
 * All of it is settled when the plan is made, so what is held at most is known without running. What this rank owns is
 * always there. Ranks with the same program ask for the same pieces in the same order, and between the same buckets of
 * gradients (ddp.h): one queue serves both. */
#ifndef CRUN_WORKER_RESIDENCY_H
#define CRUN_WORKER_RESIDENCY_H

#include <stddef.h>
#include <stdint.h>

#include "worker/device/device.h"

struct ddp;
struct err;
struct ownership;
struct residency;

/* Of one plan over the arena, whose memory is that of pages.h and of elements of `size` bytes. d: who gathers; NULL:
 * the plan is never run. All borrowed. */
int residency_create(struct residency **ret, const struct ownership *own, struct ddp *d, void *arena, size_t size,
                     struct err *e);
void residency_destroy(struct residency *r);

/* For plan_options.needs; until residency_destroy(). */
const struct plan_needs *residency_needs(const struct residency *r);

/* Of a plan that has said what it reads: elements of others that are here at once, at most; and pieces that a run
 * gathers, one after another, as often as it does (*ret_n of them). */
size_t residency_peak(const struct residency *r);
const int *residency_gathers(const struct residency *r, int *ret_n);

/* Of such a plan, read k < residency_reads(): the pieces [first, end) that it is in, and those of residency_gathers()
 * that are asked for before it, [asks, asks_end). */
struct residency_read {
    int first, end, asks, asks_end;
};
int residency_reads(const struct residency *r);
struct residency_read residency_read(const struct residency *r, int k);

#endif
