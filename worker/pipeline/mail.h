/* Messages of one way between two stages of a pipeline, and their memory, which is the device's.
 *
 *   receiver   mail_ask: begins as soon as the memory is free     mail_await ... run ... mail_used
 *   sender     mail_room ... run ... mail_send                    the memory is free again when it has gone
 *
 * On a device with streams a lane has a stream of its own, so messages go while the device computes, and a message
 * waits for those before it on its lane and for nothing else. Where messages are enqueued (nccl) the host waits for
 * none of it:
 *
 *   lane in    free? | receive 0 | free? | receive 1 ...         (free: the last pass that read the memory has ended)
 *   compute          '-> pass 0 .......'-> pass 1 ......
 *   lane out                       '-> send 0      '-> send 1
 *
 * Where they block (gloo) the host waits for what it receives, and for what it sends to have been computed. Training
 * thread. */
#ifndef CRUN_WORKER_MAIL_H
#define CRUN_WORKER_MAIL_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/comm/comm.h"

struct device;
struct device_async;
struct err;

struct lane {
    struct comm *comm; /* borrowed; NULL: there is no neighbour on this side, or nothing is sent (a forecast) */
    enum comm_channel channel;
    int peer;
    struct device *device; /* borrowed */
    void *stream;          /* NULL on host devices */
};

int lane_open(struct lane *ret, struct comm *c, enum comm_channel ch, int peer, struct device *d, struct err *e);
void lane_close(struct lane *l);
bool lane_enqueues(const struct lane *l); /* are messages only enqueued, or carried by the host? */

struct mail {
    void *memory;
    struct comm_request *request; /* on its way; NULL: it is not, or only enqueued */
    void *full, *empty;           /* events: something is in it; it may be written. NULL on host devices */
};

/* bytes 0: of a message that there is not. */
int mail_open(struct mail *m, struct device *d, size_t bytes, struct err *e);
/* Waits for it, however it goes. Then, on a device with streams, what is enqueued about the memory must have happened,
 * before it is closed. */
void mail_settle(struct mail *m);
void mail_close(struct mail *m, struct device *d);

int mail_ask(struct lane *l, struct mail *m, size_t bytes, struct err *e);
int mail_await(const struct lane *l, struct mail *m, struct err *e);      /* what is computed from now on may read it */
int mail_used(const struct lane *l, const struct mail *m, struct err *e); /* nothing from now on will */

int mail_room(const struct lane *l, struct mail *m, struct err *e); /* what is computed from now on may write it */
int mail_send(struct lane *l, struct mail *m, size_t bytes, struct err *e); /* what was computed so far */

#endif
