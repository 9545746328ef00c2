/* A store over one connection: callers take turns, each within its own deadline; a lost connection is dialled again
 * until the deadline; an abort from any thread ends the call in progress. A backend supplies connect() and one
 * attempt at each call; the rest of the interface is here. */
#ifndef CRUN_COMMON_STORE_TURN_H
#define CRUN_COMMON_STORE_TURN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/store/store.h"

/* The arguments of one call, so that it can be repeated. */
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

/* Deadlines are clock_ms() values. An attempt that lost its connection is repeated, except add, which may or may not
 * have happened: -ECONNRESET. */
struct store_attempts {
    int (*connect)(struct turn_store *s, int64_t deadline, struct err *e); /* 0 at once if there is a connection */
    store_attempt_fn *get, *set, *add, *wait;
};

struct turn_store {
    struct store store;
    const struct store_attempts *attempts;
    pthread_mutex_t mutex; /* protects only `busy`: a request may take longer than another thread is willing to wait */
    pthread_cond_t idle;
    bool busy;
    int abort_fd; /* readable after an abort; included in every poll(2) */
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
