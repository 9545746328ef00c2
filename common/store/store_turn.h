/* For stores behind one connection: callers take turns, each within its own deadline; a lost connection is dialled anew
 * until the deadline; an abort from any thread ends whatever is going on. */
#ifndef CRUN_COMMON_STORE_TURN_H
#define CRUN_COMMON_STORE_TURN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

struct store_turn {
    pthread_mutex_t mutex; /* of busy only: a request may outlast another thread's patience */
    pthread_cond_t idle;
    bool busy;
    int abort_fd; /* readable after store_turn_abort(): part of every poll(2) */
    atomic_bool aborted;
};

/* One call of the store's interface. Deadlines are clock_ms() values. */
struct store_attempt {
    int (*connect)(void *store, int64_t deadline, struct err *e); /* 0 at once if there is a connection */
    int (*attempt)(void *store, const void *call, int64_t deadline, struct err *e); /* NULL: connect only */
    const void *call;
    /* else a connection lost after the attempt began is -ECONNRESET: it may or may not have happened */
    bool repeatable;
};

int store_turn_init(struct store_turn *t, struct err *e);
void store_turn_finish(struct store_turn *t);
void store_turn_abort(struct store_turn *t);

int store_turn_run(struct store_turn *t, void *store, const struct store_attempt *a, int64_t timeout_ms, struct err *e);

#endif
