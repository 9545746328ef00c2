/* Lets a rank go of a round while its main thread waits in a collective. */
#include "worker/session/hold.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>

#include "common/base/err.h"
#include "common/include/crun.h"
#include "common/store/store.h"
#include "worker/comm/comm.h"

#define LOOK_S 3600.0

/* One per process, as crun's wish is. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t over;
    struct store *store;
    struct comm *comm;
    atomic_bool on, wanted;
    int fd; /* readable while wanted; 0: not on */
} hold = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};

/* The lock is held. */
static void abort_waits(void)
{
    if (hold.store)
        store_abort(hold.store);
    if (hold.comm)
        hold.comm->ops->abort(hold.comm);
}

static void *wait_for_holds(void *arg)
{
    for (;;) {
        const int rc = crun_wait_hold(LOOK_S);
        if (rc == -ETIMEDOUT)
            continue;
        if (rc < 0) /* the process is to end: stop.c's matter */
            return arg;
        pthread_mutex_lock(&hold.lock);
        if (crun_stop_reason() == CRUN_STOP_HOLD) { /* else the main thread was faster, and has let go already */
            atomic_store(&hold.wanted, true);
            (void)eventfd_write(hold.fd, 1);
            abort_waits();
        }
        while (atomic_load(&hold.wanted))
            pthread_cond_wait(&hold.over, &hold.lock);
        pthread_mutex_unlock(&hold.lock);
    }
}

int hold_begin(bool grows, struct err *e)
{
    pthread_t thread;
    if ((grows ? crun_stay_growing() : crun_stay()) < 0)
        return 0;
    if ((hold.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return err_errno(e, errno, "wait for holds");
    const int rc = pthread_create(&thread, NULL, wait_for_holds, NULL);
    if (rc != 0)
        return err_errno(e, rc, "start the thread that waits for holds");
    pthread_detach(thread);
    atomic_store(&hold.on, true);
    return 0;
}

bool hold_is_on(void)
{
    return atomic_load(&hold.on);
}

void hold_watch(struct store *s, struct comm *c)
{
    pthread_mutex_lock(&hold.lock);
    hold.store = s;
    hold.comm = c;
    if (atomic_load(&hold.wanted))
        abort_waits();
    pthread_mutex_unlock(&hold.lock);
}

bool hold_wanted(void)
{
    return atomic_load_explicit(&hold.wanted, memory_order_relaxed);
}

int hold_fd(void)
{
    return hold.fd;
}

bool hold_await(int64_t timeout_ms)
{
    return hold_is_on() && crun_wait_hold((double)timeout_ms / 1000) == 0;
}

int hold_next_round(struct crun_info *ret, double timeout_s)
{
    const int rc = crun_next_round(ret, timeout_s);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&hold.lock);
    eventfd_t ignored;
    atomic_store(&hold.wanted, false);
    (void)eventfd_read(hold.fd, &ignored);
    pthread_cond_signal(&hold.over);
    pthread_mutex_unlock(&hold.lock);
    return 0;
}
