/* Who waits for which keys: for all of them to exist, and done in that moment. Pure: no I/O, no clock. No call takes
 * time by the number of names, but for waiters_begin(), which adds them up: a waiter comes a name at a time, and what
 * one of many names leaves behind is freed piece by piece. */
#ifndef CRUN_RENDEZVOUSD_WAITERS_H
#define CRUN_RENDEZVOUSD_WAITERS_H

#include <stdbool.h>
#include <stddef.h>

struct keyspace;
struct request_arg;
struct waiter;
struct waiters;

/* Memory is charged to k, borrowed. remains: where those are chained that are yet to be freed (waiters_sweep()), for
 * any number of tables, and outlives them; NULL: they are freed at once. -ENOMEM. */
int waiters_create(struct waiters **ret, struct keyspace *k, struct waiter **remains);
void waiters_destroy(struct waiters *w); /* before its key-space; those left are dropped without a call */

/* Wait for n keys. Each of them is named next, in any number of turns; what comes or goes meanwhile counts. From
 * waiters_settle() on done(arg) is called once, from waiters_created(), with the waiter removed already; it must not
 * create keys. The room for all is taken at once: -ENOSPC, -ENOMEM. */
int waiters_begin(struct waiters *w, const struct request_arg *keys, size_t n, void (*done)(void *arg), void *arg,
                  struct waiter **ret);
int waiters_name(struct waiter *one, const struct request_arg *key); /* the next of them; -ENOMEM: remove it */
bool waiters_settle(struct waiter *one);                             /* true: none is missing: remove it */
void waiters_remove(struct waiters *w, struct waiter *one);
size_t waiters_count(const struct waiters *w);

/* Free what remains of removed ones, at_most names of them. True: nothing is left. */
bool waiters_sweep(struct waiter **remains, size_t at_most);

/* To be called after each key that was created or deleted; twice does no harm. */
void waiters_created(struct waiters *w, const char *key, size_t key_len);
/* Only the first that misses nothing else is done. */
void waiters_created_one(struct waiters *w, const char *key, size_t key_len);
void waiters_deleted(struct waiters *w, const char *key, size_t key_len);
void waiters_cleared(struct waiters *w); /* all keys were */

#endif
