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

int store_turn_init(struct store_turn *t, struct err *e)
{
    pthread_condattr_t monotonic;
    *t = (struct store_turn){.abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    pthread_mutex_init(&t->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return t->abort_fd < 0 ? err_errno(e, errno, "eventfd") : 0;
}

void store_turn_finish(struct store_turn *t)
{
    if (t->abort_fd >= 0)
        close(t->abort_fd);
    pthread_cond_destroy(&t->idle);
    pthread_mutex_destroy(&t->mutex);
}

void store_turn_abort(struct store_turn *t)
{
    const uint64_t one = 1;
    t->aborted = true;
    ssize_t ignored =
        write(t->abort_fd, &one, sizeof one); /* an eventfd that was written stays readable: nobody reads it */
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

/* Attempt, and dial and attempt again while the connection is what fails. The last error if the deadline passes
 * meanwhile. */
static int persist(struct store_turn *t, void *store, const struct store_attempt *a, int64_t deadline, struct err *e)
{
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        int rc = a->connect(store, deadline, e);
        if (rc == 0 && a->attempt) {
            rc = a->attempt(store, a->call, deadline, e);
            if (is_lost(rc) && !a->repeatable) {
                err_wrap(e, "it may or may not have happened");
                return -ECONNRESET;
            }
        }
        if (!is_lost(rc) || clock_left(deadline) == 0)
            return rc;
        const int left = clock_left(deadline);
        struct err woken;
        int slept = wait_fd(-1, 0, clock_deadline(left < pause ? left : pause), t->abort_fd, &woken);
        if (slept == -ECANCELED)
            return err_set(e, slept, "%s", woken.text);
    }
}

/* Have the connection to oneself. */
static int enter(struct store_turn *t, int64_t deadline, struct err *e)
{
    const struct timespec until = clock_timespec(deadline);
    int rc = 0;
    pthread_mutex_lock(&t->mutex);
    while (t->busy && rc == 0)
        rc = pthread_cond_timedwait(&t->idle, &t->mutex, &until);
    const bool mine = !t->busy;
    t->busy = true;
    pthread_mutex_unlock(&t->mutex);
    return mine ? 0 : err_set(e, -ETIMEDOUT, "another thread's request was in progress all the time");
}

static void leave(struct store_turn *t)
{
    pthread_mutex_lock(&t->mutex);
    t->busy = false;
    pthread_cond_signal(&t->idle);
    pthread_mutex_unlock(&t->mutex);
}

int store_turn_run(struct store_turn *t, void *store, const struct store_attempt *a, int64_t timeout_ms, struct err *e)
{
    const int64_t deadline = clock_deadline(timeout_ms);
    struct err local, *why = e ? e : &local;
    TRY(enter(t, deadline, e));
    int rc = t->aborted ? err_set(why, -ECANCELED, "the store was aborted") : persist(t, store, a, deadline, why);
    leave(t);
    if (a->attempt && is_lost(rc) && (a->repeatable || rc != -ECONNRESET)) {
        err_wrap(why, "the deadline passed");
        rc = -ETIMEDOUT;
    }
    if (rc < 0)
        why->code = rc;
    return rc;
}
