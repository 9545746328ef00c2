/* Who waits for which keys: for all of them to exist, and done in that moment. Pure: no I/O, no clock. */
#ifndef CRUN_RENDEZVOUSD_WAITERS_H
#define CRUN_RENDEZVOUSD_WAITERS_H

#include <stdbool.h>
#include <stddef.h>

struct keyspace;
struct request_arg;
struct waiter;
struct waiters;

int waiters_create(struct waiters **ret, struct keyspace *k); /* memory is charged to k, borrowed; -ENOMEM */
void waiters_destroy(struct waiters *w);                      /* those left are dropped without a call */

/* Wait for keys, at least one of which is missing. done(arg) is called once, from waiters_created(), with the waiter
 * removed already; it must not create keys. -ENOSPC, -ENOMEM. */
int waiters_add(struct waiters *w, const struct request_arg *keys, size_t n, void (*done)(void *arg), void *arg,
                struct waiter **ret);
void waiters_remove(struct waiters *w, struct waiter *one);
size_t waiters_count(const struct waiters *w);

/* To be told after each key that was created or deleted; twice does no harm. */
void waiters_created(struct waiters *w, const char *key, size_t key_len);
void waiters_created_one(struct waiters *w, const char *key, size_t key_len); /* only the first that misses it hears */
void waiters_deleted(struct waiters *w, const char *key, size_t key_len);
void waiters_cleared(struct waiters *w); /* all keys were */

#endif
