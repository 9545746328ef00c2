/* Requests with many names (DEL, MGET, MSET, waits) are done in pieces, so that none of them blocks the loop.
 *
 * - A piece is MANY_NAMES names, or MANY_BYTES moved for them. The first piece is done at once; the rest continues as
 *   conn.work, in this turn if there is time, then in later ones.
 * - Such a request holds the key-space until it is done: other requests on the same key-space wait (many_waits()). So a
 *   command is atomic, as in Redis, with any number of names. Requests that touch no keys go on, among them those of
 *   the rendezvous.
 * - No key of the key-space expires meanwhile: of keys that expire together the request sees all or none.
 * - Then the waiting requests are done in their order, before later ones, and before the client's next request.
 * - If the client goes meanwhile, a request that only reads is given up; one that changes keys is finished. */
#ifndef CRUN_RENDEZVOUSD_MANY_H
#define CRUN_RENDEZVOUSD_MANY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blocked_ops;
struct conn;
struct request_arg;
struct waiter;

#define MANY_NAMES 256
#define MANY_BYTES (512 * 1024)

struct many_ops {
    /* Do it for one name; a: its words. Returns bytes moved for it; < 0: the request ends here. */
    int64_t (*one)(struct conn *c, const struct request_arg *a);
    /* Reply. rc: 0, or what one() returned; -ECANCELED: the client is gone. It may begin another request. NULL:
     * one() has replied. */
    void (*end)(struct conn *c, int rc);
    bool changes; /* keys */
};

/* How a wait for keys ends. */
struct many_wait_ops {
    void (*there)(struct conn *c);          /* all exist: answer; c waits no more */
    void (*failed)(struct conn *c, int rc); /* -ENOSPC, -ENOMEM: answer */
    const struct blocked_ops *blocked;      /* in what c is blocked until then; arg: its waiter */
};

/* The request in progress on a connection. */
struct many {
    const struct many_ops *ops; /* NULL: there is none */
    /* the request's words; they stay valid, because nothing is read from the client meanwhile */
    const struct request_arg *words;
    size_t count, at, stride; /* number of words; index of the next one; words per name */
    bool cut;                 /* the request has more than one piece */
    int64_t found;            /* for commands that count */
    size_t reserved;          /* bytes charged to the key-space in advance for many_set_one() */
    const struct many_wait_ops *wait;
    struct waiter *waiter;
    int64_t timeout_ms;
    bool in_line; /* waits in the line of its space */
    struct conn *prev, *next;
};

/* Begin a request with the n words at a. It is answered now or later. */
void many_begin(struct conn *c, const struct many_ops *ops, const struct request_arg *a, size_t n, size_t stride);

/* Another client holds c's key-space, or those who waited for it are being served: c's request must be tried again,
 * by conn.work. */
bool many_waits(struct conn *c);

/* c closes. True: it has changes to finish, by conn.work. */
bool many_leave(struct conn *c);

/* --- of what they are made */

int64_t many_exists_one(struct conn *c, const struct request_arg *a); /* -ENOENT: it does not */
/* What one() returns if it has written its answer behind the first `before` bytes of c->reply. */
int64_t many_replied(const struct conn *c, size_t before);

/* Reserve room for all n words (name, value, ...) as if all were new, so that all of them or none is stored.
 * -ENOSPC. */
int many_reserve(struct conn *c, const struct request_arg *a, size_t n);
int64_t many_set_one(struct conn *c, const struct request_arg *a);
void many_release(struct conn *c); /* at the end: release the rest of it */

/* Wait until all n keys exist; timeout_ms as in conn_block(). ops must stay for ever. */
void many_wait(struct conn *c, const struct request_arg *keys, size_t n, int64_t timeout_ms,
               const struct many_wait_ops *ops);

#endif
