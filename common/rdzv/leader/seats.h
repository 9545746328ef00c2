/* The seats of a job at one host of a list (--rdzv-endpoint node1,node2,node3): which seats this host hears, whether it
 * may acknowledge nodes, and when it may begin a job's first round. Pure: no I/O, no clock. Decision 0039 has the rules
 * and why they are safe.
 *
 * A seat is a number from 0 to MAX - 1 that one node has; no other node takes part. Since 2 MIN > MAX, two sets of MIN
 * seats have one in common, and a seat is at one host at a time.
 *   - A seat is *heard* while it has confirmed an answer that this host sent less than silence_ms ago. A request says
 *     which answers its node has got on its connection; that it came at all proves nothing, for it may have waited in a
 *     socket.
 *   - The host acknowledges nobody unless MIN seats are heard.
 *   - The job's first round here waits for twice silence_ms, and kill_ms, after the MIN-th JOIN of seats that have
 *     stayed since; or until all MAX seats have confirmed an answer sent after the newest JOIN. */
#ifndef CRUN_COMMON_RDZV_SEATS_H
#define CRUN_COMMON_RDZV_SEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

struct err;

/* When an answer was sent. `order` distinguishes two answers of the same millisecond. */
struct seats_sent {
    int64_t ms;
    uint64_t order; /* 0: there was none */
};

struct seat {
    char node[RDZV_ID_MAX + 1];  /* node that has it; "": none */
    struct seats_sent joined;    /* newest JOIN on its present connection; order 0: none */
    struct seats_sent confirmed; /* newest answer that it certainly got */
};

struct seats {
    int min, max;
    int64_t silence_ms, kill_ms;
    uint64_t order; /* number of the newest event */
    struct seat *v;
};

/* Uses min_nodes, max_nodes, silence_ms and kill_ms of c. -ENOMEM. */
int seats_init(struct seats *s, const struct rdzv_config *c, struct err *e);
void seats_finish(struct seats *s);

/* `node` has a new connection, and has not joined on it. -EAGAIN: another node has that seat, and is heard;
 * ERR_REFUSED: there is no such seat. */
int seats_connect(struct seats *s, int seat, const char *node, int64_t now, struct err *e);
/* The node of this seat sent JOIN: it has no workers. Repeats on one connection change nothing. */
void seats_join(struct seats *s, int seat, int64_t now);
/* An answer goes out now. */
struct seats_sent seats_answer(struct seats *s, int64_t now);
void seats_confirm(struct seats *s, int seat, struct seats_sent sent);
/* All processes of the seat's node are dead, or it said goodbye: any node may have the seat. */
void seats_leave(struct seats *s, int seat);
/* What this host knew is void: all seats must join anew. */
void seats_forget(struct seats *s);

int seats_of(const struct seats *s, const char *node); /* -1: none */
/* Number of seats that are heard, not counting that of `but` (NULL: count all). */
int seats_heard(const struct seats *s, const char *but, int64_t now);
bool seats_may_answer(const struct seats *s, int64_t now);
/* All seats have joined, and this one has not yet confirmed an answer that was sent since. */
bool seats_awaits(const struct seats *s, int seat);
/* When the first round may begin, as far as is known now; INT64_MAX: not yet. */
int64_t seats_begin_at(const struct seats *s, int64_t now);

#endif
