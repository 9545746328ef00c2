/* The state as a rank of an earlier round has it, where parts of it are cut for so many ranks, until all ranks have
 * what the new layout says (state/reshard.h).
 *
 *   session_open_round()   another number of ranks, or another rank: what there was of the state is put aside, and
 *                          the session gets another
 *   settle()               the new one is filled from what ranks have put aside
 *   all have been heard    what was put aside is let go of
 *   a round breaks         before that: the next one puts aside what is full, and drops what is not */
#ifndef CRUN_WORKER_FORMER_H
#define CRUN_WORKER_FORMER_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/optim/update.h"
#include "worker/parallel/ownership.h"
#include "worker/state/state.h"

struct comm;
struct err;
struct holdings;
struct program;
struct session;

struct former_age { /* (holdings.h) */
    int64_t made;
    bool sure;
    /* others have it from a later round, and this rank did not hear of all of them; 0: it is as old as theirs */
    int64_t again;
};

struct former {
    struct program *program, *whole; /* NULL: the session's */
    struct ownership own;
    struct state state;
    struct optimizer optimizer;
    struct former_age age;
};
enum { FORMERS_MOST = 2 };

/* What this rank has a whole state of: whose layout and rank; the session's own if it has none (is_filled false). */
const struct ownership *former_held(const struct session *s);

/* Can this rank's state go to other owners, those of another layout or other ranks? Not where a device goes on by
 * itself, nor a layer split over features, whose parts lie in too many pieces. Pure. */
bool former_can_move(const struct session *s);

/* The session's layout or rank is another one than that of the state that it has: put that aside, and make another. */
int former_put_aside(struct session *s, struct err *e);
/* What was being filled when the round broke is dropped: the session's state is the newest that is full. */
void former_take_back(struct session *s);

/* For settle(). has: there is a state. */
void former_list(struct session *s, bool has, struct holdings *ret);
/* After settle(), whatever it has returned (rc): what did not count is dropped; and where the state went to other
 * owners and all ranks have been heard of, what was put aside. round: this one. All ranks. Returns rc, or the error. */
int former_settle(struct session *s, const struct holdings *h, int64_t round, int rc, struct err *e);
/* All ranks begin with the session's state. */
void former_begin(struct session *s, int64_t round);
/* What was put aside is let go of. */
void former_drop_all(struct session *s);

#endif
