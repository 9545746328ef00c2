/* Turns: how long the loop works between two looks at the network, and which connection goes on when.
 *
 * The rendezvous of every job runs on the same loop as the keys, so no client may block it:
 *
 *   - a turn is the work between two looks at the network. It is over after TURN_MS: what is left continues in the next
 *     one, after another look. After TURN_READ_MS only parties of jobs are read, and no client is accepted: the kernel
 *     keeps the bytes. A connection that has sent something by then is put off: it is not polled again in this turn;
 *   - a turn accepts TURN_ACCEPTS clients at most, so that existing ones are served first: otherwise a storm of new
 *     connections would fill the turn, and all that have sent something would be polled again and again without being
 *     served;
 *   - a connection executes its requests, but TURN_REQUESTS, or TURN_BYTES of replies, at most. Then it is *busy*: it
 *     is not read, and waits in a queue for its next turn;
 *   - parties of jobs are read, executed and answered in the turn in which they are heard, one request at least;
 *   - long work is divided: a walk over keys and a request with many names (many.h) continue through conn.work; cleared
 *     keys and finished waiters are freed a few at a time. All other work is bounded by the bytes of one request;
 *   - an idle handle keeps the loop turning while something is left. */
#ifndef CRUN_RENDEZVOUSD_TURN_H
#define CRUN_RENDEZVOUSD_TURN_H

#include "rendezvousd/net/times.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct conn;
struct server;

#define TURN_MS 5
#define TURN_READ_MS 25
#define TURN_ACCEPTS 64
#define TURN_REQUESTS 512
#define TURN_PIECE 16 /* a piece of a divided request counts as so many requests */
#define TURN_BYTES (256 * 1024)

#define TURN_SAMPLE 128 /* one request in so many is timed */

struct turns {
    uv_prepare_t before_sleep; /* ends a turn */
    uv_check_t after_poll;
    uv_idle_t more;     /* runs while something is left to do */
    int64_t over_ms;    /* when the turn is over, by a coarse clock; 0: it has not begun */
    uint64_t polled_ms; /* the loop's time at the last look at the network */
    struct conn *busy;  /* connections with more requests than a turn executes, in order */
    bool accept;        /* a client was left in a listener's queue because the turn was over */
    int accepted;       /* clients accepted since the loop slept or looked last */
    uint64_t requests;  /* executed */
    /* turns: durations between two looks at the network; requests: of every TURN_SAMPLE-th one */
    struct times turn_times, request_times;
};

void turn_open(struct server *s); /* its handles count in s->open_handles until turn_close() */
void turn_close(struct server *s);
bool turn_over(struct server *s);      /* TURN_MS have passed */
bool turn_read_over(struct server *s); /* TURN_READ_MS */
void turn_run(struct server *s);       /* continue connections that are left, for a turn */
void turn_put_off(struct conn *c);     /* do not read from it before the next turn */
void turn_leave(struct conn *c);       /* it is no longer busy */

#endif
