/* Stores behind one connection: callers take turns, each within its own deadline; a lost connection is dialled anew
 * until the deadline; an abort from any thread ends whatever is going on. A backend says how to connect and what one
 * attempt at each call does; all else of the interface is here. */
#ifndef CRUN_COMMON_STORE_TURN_H
#define CRUN_COMMON_STORE_TURN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/store/store.h"

/* One call of the interface, so that it can be repeated. */
struct store_call {
    const char *const *keys;
    size_t n;
    const void *data; /* of set */
    size_t len;
    int64_t delta, *ret;
    struct buf *value;
};

struct turn_store;
typedef int store_attempt_fn(struct turn_store *s, const struct store_call *c, int64_t deadline, struct err *e);

/* Deadlines are clock_ms() values. An attempt in which the connection was lost is repeated; add is not: -ECONNRESET
 * then, as it may or may not have happened. */
struct store_attempts {
    int (*connect)(struct turn_store *s, int64_t deadline, struct err *e); /* 0 at once if there is a connection */
    store_attempt_fn *get, *set, *add, *wait;
};

struct turn_store {
    struct store store;
    const struct store_attempts *attempts;
    pthread_mutex_t mutex; /* of busy only: a request may outlast another thread's patience */
    pthread_cond_t idle;
    bool busy;
    int abort_fd; /* readable after an abort: part of every poll(2) */
    atomic_bool aborted;
};

int turn_store_init(struct turn_store *s, const struct store_ops *ops, const struct store_attempts *attempts,
                    struct err *e);
void turn_store_finish(struct turn_store *s);
int turn_store_connect(struct turn_store *s, const struct store_options *o, struct err *e); /* the first time */

void turn_abort(struct store *s);
int turn_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e);
int turn_set(struct store *s, const char *key, const void *v, size_t n, int64_t timeout_ms, struct err *e);
int turn_add(struct store *s, const char *key, int64_t d, int64_t *ret, int64_t timeout_ms, struct err *e);
int turn_wait(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e);

/* For a struct store_ops. */
#define TURN_STORE_OPS .abort = turn_abort, .get = turn_get, .set = turn_set, .add = turn_add, .wait = turn_wait

#endif
