/* Turns: how long the loop is away from the network, and who goes on when.
 *
 * The rendezvous of every job lives on the same loop as the keys, so that no client may hold it:
 *
 *   - a turn is what is done between two looks at the network. It is over after TURN_MS: what is left then goes on in
 *     the next one, after the network was looked at. After TURN_READ_MS nobody is read from any more but those who
 *     stand for members of a job, and nobody new is accepted: the kernel keeps what they send. Whoever has sent
 *     something by then is put off: the network is not asked about it again in this turn;
 *   - a turn accepts TURN_ACCEPTS clients at most, so that those who are in are served before more come in: else a
 *     storm's connections fill the turn, and all who have sent something are looked at again and again, and left;
 *   - a connection executes requests as long as there are any, but TURN_REQUESTS or TURN_BYTES of replies at most. Then
 *     it is *busy*: it is not read from, and goes on in its place in a queue;
 *   - members of a job are read, executed and answered in the turn in which they are heard, one request at least;
 *   - what takes long by itself is cut: a walk over keys and a request of many names (many.h) are resumed (conn.work),
 *     what was cleared or waited for is swept up a few at a time. What is left is bounded by the bytes of one request;
 *   - an idle handle turns the loop as long as something is left. */
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
#define TURN_PIECE 16 /* as many requests count for a piece of one that is cut */
#define TURN_BYTES (256 * 1024)

#define TURN_SAMPLE 128 /* one request in so many is timed */

struct turns {
    uv_prepare_t before_sleep; /* ends a turn */
    uv_check_t after_poll;
    uv_idle_t more;                         /* runs while something is left to do */
    int64_t over_ms;                        /* when the turn is over, of a coarse clock; 0: it has not begun */
    uint64_t polled_ms;                     /* the loop's time of the last look at the network */
    struct conn *busy;                      /* those with more requests than a turn takes, in the order they go on */
    bool accept;                            /* a client was left in a listener's queue */
    int accepted;                           /* clients, since the loop slept or looked last */
    uint64_t requests;                      /* executed */
    struct times turn_times, request_times; /* between two looks at the network; of one request in TURN_SAMPLE */
};

void turn_open(struct server *s); /* its handles count in s->open_handles, until turn_close() */
void turn_close(struct server *s);
bool turn_over(struct server *s);      /* TURN_MS have passed */
bool turn_read_over(struct server *s); /* TURN_READ_MS */
void turn_run(struct server *s);       /* those who are left go on, for a turn */
void turn_put_off(struct conn *c);     /* nobody reads from it before the next turn */
void turn_leave(struct conn *c);       /* it is no longer busy */

#endif
