/* What of the state a rank brings into a round. */
#ifndef CRUN_WORKER_STATE_HOLDINGS_H
#define CRUN_WORKER_STATE_HOLDINGS_H

#include <stdbool.h>
#include <stdint.h>

struct optimizer;
struct state;

/* What a rank has: a state that is whole in a layout, or (a round broke while it went to other owners) two of the same
 * step. A round in which a state is made numbers it; it is sure once all ranks were seen to have it, and only then are
 * older ones let go. So where one rank has nothing older than a state, all ranks that have any have that one, too. */
struct holding {
    int64_t made;
    bool sure;
    struct state *state; /* of the place that state->own says */
    const struct optimizer *optimizer;
};
enum { HOLDINGS_MOST = 2 };
struct holdings {
    struct holding of[HOLDINGS_MOST];
    int n;
    /* settle() sets, alike on all ranks but for `from`: */
    int64_t made; /* of the state that counted */
    int from;     /* which of these that was; -1: none */
    bool moved;   /* t->state is another one, whole if settle() returns 1: sure once all ranks have been heard of */
};

#endif
