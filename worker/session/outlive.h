/* Processes that outlive a round (hold.h): which layouts allow it, and what of a process is of use in the next one. */
#ifndef CRUN_WORKER_OUTLIVE_H
#define CRUN_WORKER_OUTLIVE_H

#include <stdbool.h>

struct env_contract;
struct err;
struct layout;
struct session;

/* Can ranks of this run outlive a round? The same on all ranks. *why: why their layout does not let them, in words;
 * NULL: it does. Not where a rank has what no other has; on a device that goes on by itself not where one has a part
 * that no second owner was asked for; nor where ranks meet before the first step for more than the state. */
bool outlive_can(const struct session *s, const char **why);

/* On a device that goes on by itself: does the host wait for each step? Where ranks with parts of the state outlive one
 * another it does, as none may change anything before all have told that they have their sums. */
bool outlive_waits(const struct session *s);

/* May ranks have something of the state from a round before, whose layout may have been another one? The same on all
 * ranks. */
bool outlive_settles(const struct session *s);

/* And go on in a larger world with what they have, options included? */
bool outlive_can_grow(const struct session *s);

/* Does every rank have the whole state? Pure. */
bool outlive_is_whole(const struct layout *l);

/* *keeps: has this rank a copy of its state in memory of the node (memory_slot.h), as far as options and layout say?
 * ERR_USAGE: its device cannot. place: env_contract_place(). */
int outlive_keeps(const struct session *s, int place, bool *keeps, struct err *e);

/* Are program and state, as this session has them, those of env's rank in env's world? has_state: the state is one that
 * training goes on from, not just memory for it. */
bool outlive_fits(const struct session *s, const struct env_contract *env, bool has_state);

#endif
