/* Requests of many names (DEL, MGET, MSET, waits): done a piece at a time, so that none of them holds the loop.
 *
 * - A piece is MANY_NAMES names, or MANY_BYTES that are moved for them. The first one is done at once; what it leaves
 *   goes on as conn.work, in this turn as long as there is time, then in later ones.
 * - Such a request has the key-space to itself until it is done: whoever asks anything of the same keys waits for it
 *   (many_waits()). So a command is atomic, as Redis' are, however many names it has. Requests that touch no key go on,
 *   those of the rendezvous among them.
 * - Time stands still for these keys meanwhile: of those that expire together it finds all or none.
 * - Then it is the turn of those who wait, in the order they came, before whoever comes later and before its client's
 *   next request.
 * - If its client goes meanwhile, what only reads is given up; what changes keys is finished all the same. */
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
    /* Do it for one name, the words at a. Bytes that were moved for it; < 0: it ends here. */
    int64_t (*one)(struct conn *c, const struct request_arg *a);
    /* Answer. rc: 0, or what one() has returned; -ECANCELED: the client is gone. It may begin another one. NULL: one()
     * has answered. */
    void (*end)(struct conn *c, int rc);
    bool changes; /* keys */
};

/* How a wait for keys ends. */
struct many_wait_ops {
    void (*there)(struct conn *c);          /* all exist: answer; c waits no more */
    void (*failed)(struct conn *c, int rc); /* -ENOSPC, -ENOMEM: answer */
    const struct blocked_ops *blocked;      /* what c is blocked in until then; arg: its waiter */
};

/* What one is at; of a connection. */
struct many {
    const struct many_ops *ops;      /* NULL: there is none */
    const struct request_arg *words; /* the request's own, which stay: nothing is read from the client meanwhile */
    size_t count, at, stride;        /* how many words, the next one, how many a name has */
    bool cut;                        /* there was more than a piece of it */
    int64_t found;                   /* for those who count */
    size_t reserved;                 /* bytes charged to the key-space for what many_set_one() is to store */
    const struct many_wait_ops *wait;
    struct waiter *waiter;
    int64_t timeout_ms;
    bool in_line; /* of its space, for its turn */
    struct conn *prev, *next;
};

/* Begin with the n words at a. The request is answered, now or later. */
void many_begin(struct conn *c, const struct many_ops *ops, const struct request_arg *a, size_t n, size_t stride);

/* Another client has c's key-space to itself, or it is the turn of one who waited for that: c's request has to be asked
 * again, by conn.work. */
bool many_waits(struct conn *c);

/* c goes. True: it has changes to finish, by conn.work. */
bool many_leave(struct conn *c);

/* --- of what they are made */

int64_t many_exists_one(struct conn *c, const struct request_arg *a); /* -ENOENT: it does not */
/* What one() returns that has put its answer behind the first `before` bytes of c->reply. */
int64_t many_replied(const struct conn *c, size_t before);

/* All or nothing: room for all n words (a name, a value, ...), as if all were new, is asked for first. -ENOSPC. */
int many_reserve(struct conn *c, const struct request_arg *a, size_t n);
int64_t many_set_one(struct conn *c, const struct request_arg *a);
void many_release(struct conn *c); /* what is left of it; at the end */

/* Wait until all n keys exist; timeout_ms as in conn_block(). ops: for ever there. */
void many_wait(struct conn *c, const struct request_arg *keys, size_t n, int64_t timeout_ms,
               const struct many_wait_ops *ops);

#endif
