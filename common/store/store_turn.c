/* Turns of callers on one connection, repetition after a lost one, abort (store_turn.h). */
#include "common/store/store_turn.h"

#include <errno.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/resolve.h"

enum {
    FIRST_PAUSE_MS = 10, /* before dialling again; doubles */
    LAST_PAUSE_MS = 500,
};

int turn_store_init(struct turn_store *s, const struct store_ops *ops, const struct store_attempts *attempts,
                    struct err *e)
{
    pthread_condattr_t monotonic;
    s->store.ops = ops;
    s->attempts = attempts;
    s->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return s->abort_fd < 0 ? err_errno(e, errno, "eventfd") : 0;
}

void turn_store_finish(struct turn_store *s)
{
    if (s->abort_fd >= 0)
        close(s->abort_fd);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->mutex);
}

void turn_abort(struct store *store)
{
    struct turn_store *s = (struct turn_store *)store;
    const uint64_t one = 1;
    s->aborted = true;
    ssize_t ignored = write(s->abort_fd, &one, sizeof one); /* nobody reads this eventfd, so it stays readable */
    (void)ignored;
}

static bool is_lost(int rc)
{
    static const int codes[] = {ECONNRESET,  EPIPE,    ECONNREFUSED, ECONNABORTED, EHOSTUNREACH,
                                ENETUNREACH, ENETDOWN, ENETRESET,    EAGAIN};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (rc == -codes[i])
            return true;
    return false;
}

struct turn {
    store_attempt_fn *attempt; /* NULL: connect only */
    const struct store_call *call;
    bool repeatable;
};

/* Attempt a call; while only the connection fails, dial and attempt again. At the deadline return the last error. */
static int persist(struct turn_store *s, const struct turn *t, int64_t deadline, struct err *e)
{
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        int rc = s->attempts->connect(s, deadline, e);
        if (rc == 0 && t->attempt) {
            rc = t->attempt(s, t->call, deadline, e);
            if (is_lost(rc) && !t->repeatable) {
                err_wrap(e, "it may or may not have happened");
                return -ECONNRESET;
            }
        }
        if (!is_lost(rc) || clock_left(deadline) == 0)
            return rc;
        const int left = clock_left(deadline);
        struct err woken;
        int slept = wait_fd(-1, 0, clock_deadline(left < pause ? left : pause), s->abort_fd, &woken);
        if (slept == -ECANCELED)
            return err_set(e, slept, "%s", woken.text);
    }
}

/* Have the connection to oneself. */
static int enter(struct turn_store *s, int64_t deadline, struct err *e)
{
    const struct timespec until = clock_timespec(deadline);
    int rc = 0;
    pthread_mutex_lock(&s->mutex);
    while (s->busy && rc == 0)
        rc = pthread_cond_timedwait(&s->idle, &s->mutex, &until);
    const bool mine = !s->busy;
    s->busy = true;
    pthread_mutex_unlock(&s->mutex);
    return mine ? 0 : err_set(e, -ETIMEDOUT, "another thread's request was in progress all the time");
}

static void leave(struct turn_store *s)
{
    pthread_mutex_lock(&s->mutex);
    s->busy = false;
    pthread_cond_signal(&s->idle);
    pthread_mutex_unlock(&s->mutex);
}

static int run(struct store *store, const struct turn *t, int64_t timeout_ms, struct err *e)
{
    struct turn_store *s = (struct turn_store *)store;
    const int64_t deadline = clock_deadline(timeout_ms);
    struct err local, *why = e ? e : &local;
    TRY(enter(s, deadline, e));
    int rc = s->aborted ? err_set(why, -ECANCELED, "the store was aborted") : persist(s, t, deadline, why);
    leave(s);
    if (t->attempt && is_lost(rc) && (t->repeatable || rc != -ECONNRESET)) {
        err_wrap(why, "the deadline passed");
        rc = -ETIMEDOUT;
    }
    if (rc < 0)
        why->code = rc;
    return rc;
}

/* --- the interface */

#define ATTEMPT(name) (((const struct turn_store *)s)->attempts->name)

int turn_store_connect(struct turn_store *s, const struct store_options *o, struct err *e)
{
    return run(&s->store, &(struct turn){.repeatable = true}, o->connect_timeout_ms ? o->connect_timeout_ms : 60000, e);
}

int turn_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e)
{
    const struct store_call c = {.keys = &key, .n = 1, .value = value};
    return run(s, &(struct turn){ATTEMPT(get), &c, true}, timeout_ms, e);
}

int turn_set(struct store *s, const char *key, const void *v, size_t n, int64_t timeout_ms, struct err *e)
{
    const struct store_call c = {.keys = &key, .n = 1, .data = v, .len = n};
    return run(s, &(struct turn){ATTEMPT(set), &c, true}, timeout_ms, e);
}

int turn_add(struct store *s, const char *key, int64_t d, int64_t *ret, int64_t timeout_ms, struct err *e)
{
    const struct store_call c = {.keys = &key, .n = 1, .delta = d, .ret = ret};
    return run(s, &(struct turn){ATTEMPT(add), &c, false}, timeout_ms, e);
}

int turn_wait(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e)
{
    return run(s, &(struct turn){ATTEMPT(wait), &(struct store_call){.keys = keys, .n = n}, true}, timeout_ms, e);
}
