/* Parameters that a rank has only while they are read (ZeRO 3): which pieces (ownership.h) of an arena are gathered
 * before which read of a plan, and given back after which.
 *
 *   a plan says what it reads, in its order:   r0  r1  r2  r3 ...      (plan_needs.order)
 *   need(k)      what r_k is in and is not here is asked for, then what the next read is in that is not in the same
 *                pieces: it comes while r_k computes. Wait for r_k's.
 *   release(k)   pieces that no read up to that one is in, nor the one behind it, are given back.
 *
 * All of it is settled when the plan is made, so what is held at most is known without running. What this rank owns is
 * always there.
 *
 * On host devices a piece comes to its place in the arena (pages.h). On a device with streams, where an arena has what
 * this rank owns and nothing else (ownership.h), it comes into a window, memory of its own for as long as it is here;
 * windows that are not there at the same time share memory, and pieces that one read is in lie side by side. Where that
 * is does not change from run to run, so a captured run finds it again:
 *
 *   compute         read 0 ....  | read 1 ....        | read 2         (|: waits for an event)
 *   communication   '-> piece 1 -'  '-> piece 2 ------'
 *
 * A piece is written once all that was enqueued before its gather has been computed, the last read of the window's
 * piece before it among that. Ranks with the same program ask for the same pieces in the same order, and between the
 * same buckets of gradients (ddp.h): one queue serves both. */
#ifndef CRUN_WORKER_RESIDENCY_H
#define CRUN_WORKER_RESIDENCY_H

#include <stddef.h>
#include <stdint.h>

#include "worker/device/device.h"

struct ddp;
struct err;
struct ownership;
struct residency;

/* Of one plan of this device over the arena. d: who gathers; NULL: the plan is never run. All borrowed. */
int residency_create(struct residency **ret, const struct ownership *own, struct ddp *d, struct device *device,
                     void *arena, struct err *e);
void residency_destroy(struct residency *r);

/* For plan_options.needs; until residency_destroy(). */
const struct plan_needs *residency_needs(const struct residency *r);

/* Of a plan that has declared its reads: elements of others that are here at once, at most (windows: of all that is in
 * them); and pieces that a run gathers, one after another, as often as it does (*ret_n of them). */
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
