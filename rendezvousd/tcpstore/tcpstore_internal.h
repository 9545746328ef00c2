/* Shared by tcpstore_*.c only: the state of a TCPStore connection, and the execution of its requests. */
#ifndef CRUN_RENDEZVOUSD_TCPSTORE_INTERNAL_H
#define CRUN_RENDEZVOUSD_TCPSTORE_INTERNAL_H

#include "common/base/err.h"
#include "rendezvousd/resp/reply.h"
#include "rendezvousd/tcpstore/tcpstore.h"

struct barrier;
struct conn;
struct space;

struct barrier_link {
    struct conn *c;
    int64_t world; /* how many it waits for */
    struct barrier *of;
    struct barrier_link *prev, *next; /* in of->waiting */
};

/* LIST_KEYS, while it goes through the keys. */
struct tcpstore_walk {
    uint64_t cursor, count;
    struct reply names;
};

struct tcpstore_state {
    struct tcpstore_parser in;
    struct tcpstore_request next; /* complete, not executed yet */
    bool has_next;
    int broken; /* the parser's error, which the next step reports */
    struct err e;
    bool validated;              /* newer generation: the handshake is done */
    bool has_read;               /* it has read a key */
    struct barrier_link barrier; /* blocked in BARRIER */
    struct tcpstore_walk walk;
};

enum { TCPSTORE_READY = 0, TCPSTORE_NOT_READY = 1, TCPSTORE_STOP_WAITING = 0, TCPSTORE_WAIT_CANCELED = 1 };

/* tcpstore_execute.c: execute one request into c->reply, or block c: 1. 0: another client holds the keys now
 * (many_waits()). < 0: an error, which the protocol cannot express (e says it): close. */
int tcpstore_execute(struct conn *c, const struct tcpstore_request *rq, struct err *e);
void tcpstore_reply_byte(struct conn *c, unsigned char byte);
void tcpstore_refuse(struct conn *c, const struct err *e); /* log the error, then close */
void tcpstore_walk_end(struct tcpstore_walk *w);           /* its memory goes; idempotent */

/* tcpstore_barrier.c: block c until `world` callers have come to this key. -ENOMEM, -ENOSPC. */
int tcpstore_barrier_wait(struct conn *c, const struct request_arg *key, int64_t world);
/* `count` callers have come: wake those that wait for this number, or a smaller one. */
void tcpstore_barrier_reached(struct space *sp, const struct request_arg *key, int64_t count);

#endif
