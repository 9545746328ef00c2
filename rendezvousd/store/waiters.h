/* Waiters: each waits until all of its keys exist, and is done as soon as they do. Pure: no I/O, no clock. Only
 * waiters_begin() takes time proportional to the number of names, which it adds up: keys are named one at a time,
 * and the memory of a waiter with many names is freed piece by piece. */
#ifndef CRUN_RENDEZVOUSD_WAITERS_H
#define CRUN_RENDEZVOUSD_WAITERS_H

#include <stdbool.h>
#include <stddef.h>

struct keyspace;
struct request_arg;
struct waiter;
struct waiters;

/* Memory is charged to k, borrowed. remains: list of waiters that are not freed yet (waiters_sweep()), for any
 * number of tables, which it outlives; NULL: free at once. -ENOMEM. */
int waiters_create(struct waiters **ret, struct keyspace *k, struct waiter **remains);
/* call before its key-space is destroyed; waiters that are left are dropped without a call */
void waiters_destroy(struct waiters *w);

/* Begin to wait for n keys. Each of them is named next, over any number of turns; keys that are created or deleted
 * meanwhile count. After waiters_settle(), done(arg) is called once, from waiters_created(), when the waiter has
 * been removed; it must not create keys. Memory for all is reserved at once: -ENOSPC, -ENOMEM. */
int waiters_begin(struct waiters *w, const struct request_arg *keys, size_t n, void (*done)(void *arg), void *arg,
                  struct waiter **ret);
int waiters_name(struct waiter *one, const struct request_arg *key); /* name the next key; -ENOMEM: remove the waiter */
bool waiters_settle(struct waiter *one);                             /* true: no key is missing: remove it */
void waiters_remove(struct waiters *w, struct waiter *one);
size_t waiters_count(const struct waiters *w);

/* Free at most at_most names of removed waiters. True: nothing is left. */
bool waiters_sweep(struct waiter **remains, size_t at_most);

/* Call after each key that was created or deleted; calling twice is harmless. */
void waiters_created(struct waiters *w, const char *key, size_t key_len);
/* Only the first waiter that misses nothing else is done. */
void waiters_created_one(struct waiters *w, const char *key, size_t key_len);
void waiters_deleted(struct waiters *w, const char *key, size_t key_len);
void waiters_cleared(struct waiters *w); /* all keys were cleared */

#endif
