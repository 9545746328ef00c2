/* Two copies of what a rank holds of the state, in memory of the node that outlives the process (crun_node_memory() of
 * libcrun): a checkpoint that no disk is needed for, as long as the node lives.
 *
 *   step 40 -> half 0      step 47 -> half 1      step 54 -> half 0 ...
 *
 * The older one is overwritten, so that there is a whole one at any time, whenever the process dies: ranks keep the
 * same steps, and none begins to keep the next one before all have the last. Each local rank has a place of its own in
 * the file. What is there may be of another process, another round, another layout: a copy is only found by a rank
 * whose state has the same parts. Training thread only. */
#ifndef CRUN_WORKER_MEMORY_SLOT_H
#define CRUN_WORKER_MEMORY_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct memory_slot;
struct state;

enum { MEMORY_SLOT_HALVES = 2, MEMORY_SLOT_NOTE = 1024 /* bytes, at most */ };

struct memory_copy {
    int64_t updates; /* -1: there is none */
    int64_t round;   /* that it was made in: a step may be done again, by others, and not come to the same bits */
};

/* fd: borrowed; place: env_contract_place(); s: borrowed until close; kin: copies of another kin are not found (what
 * else must be the same). Takes the memory: -errno where the node does not give it. */
int memory_slot_open(struct memory_slot **ret, int fd, int place, struct state *s, uint32_t kin, struct err *e);
void memory_slot_close(struct memory_slot *m); /* NULL allowed; the copies stay */

size_t memory_slot_bytes(const struct memory_slot *m);              /* of both copies */
int memory_slot_need(struct state *s, int64_t *ret, struct err *e); /* the same, of a state or of a forecast of one */

/* Whole copies that are this rank's state. */
void memory_slot_find(const struct memory_slot *m, struct memory_copy ret[MEMORY_SLOT_HALVES]);

/* Copy the state, and beside it a note of n bytes, over the older copy. What is not finite is not kept: 0, and no
 * copy. */
int memory_slot_keep(struct memory_slot *m, struct memory_copy as, const void *note, size_t n, struct err *e);

/* A copy that was found becomes the state, whose version grows, and *note. */
int memory_slot_restore(struct memory_slot *m, struct memory_copy which, void *note, size_t n, struct err *e);

/* Training goes on from this step: later copies are of steps that are yet to be done. */
void memory_slot_forget_beyond(struct memory_slot *m, int64_t updates);

#endif
