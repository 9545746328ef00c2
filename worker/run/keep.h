/* Checkpoints in the memory of the nodes (--memory-checkpoints): where those that had a part of the state died
 * together, all go back to the newest of these instead of one on a disk.
 *
 *   as often as copying takes a given share of the time, after a step that all ranks agree on:
 *     each rank copies what it holds (memory_slot.h); where all hold the same, one of each node does
 *   after a failure that left no whole state:
 *     the newest step of which the ranks' copies make a whole state; who has none is given it by who has (settle.h)
 *
 * They are gone with their node, and with crun. Copies are of a rank's parts: with another number of ranks only a state
 * that every rank has whole is found again. */
#ifndef CRUN_WORKER_KEEP_H
#define CRUN_WORKER_KEEP_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct err;
struct memory_slot;
struct position;
struct session;
struct settled;
struct step;

struct keep {                 /* all-zero at first */
    double share;             /* of the time; 0: nothing is kept, on all ranks */
    struct memory_slot *slot; /* NULL: another rank of the node keeps the same */
    int64_t round;
    int64_t due;      /* not before so many updates */
    int64_t last;     /* updates */
    int64_t last_ns;  /* when keep_step() was over */
    int64_t agree_ns; /* of that: asking the other ranks */
};

/* All ranks, once a round, before the state is taken up. If a rank cannot keep copies, it logs why, and none does.
 * ERR_USAGE: the device goes on by itself, and ranks hold parts. */
int keep_open(struct keep *k, struct session *s, int place, int64_t round, struct err *e);
void keep_close(struct keep *k);

/* All ranks, none of which has a state: t and *s become those of the newest step whose copies make a whole state, no
 * older than after `least` updates: 1, *has; 0: there is none. Errors as of settle(). */
int keep_take_up(struct keep *k, struct step *t, struct comm *c, int64_t least, bool *has, struct settled *s,
                 struct err *e);

/* Training goes on from there. */
void keep_begin(struct keep *k, const struct position *at);

/* Will keep_step() be wanted there? The same on all ranks. */
bool keep_due(const struct keep *k, const struct position *at);
/* All ranks, where it is due and the state is of s->at. */
int keep_step(struct keep *k, struct comm *c, const struct settled *s, struct err *e);

#endif
