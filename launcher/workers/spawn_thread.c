/* Threads that start the processes of a batch (spawn_thread.h). */
#include "launcher/workers/spawn_thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "common/base/numbers.h"
#include "common/net/apart.h"
#include "launcher/base/fd_room.h"

#define STACK_BYTES (128u << 10)

struct spawn_thread {
    pthread_mutex_t lock; /* protects all but the fixed fields of a batch */
    pthread_cond_t more;
    struct spawn_batch *batch; /* being done, NULL: none */
    struct spawn_batch *ended; /* to be reported */
    uv_async_t wake;
};

static bool is_over(const struct spawn_batch *b)
{
    const bool wants_more = b->rc == 0 && !atomic_load(&b->cancelled);
    return b->is_complete && b->n_begun == b->n_ended && (b->n_begun == b->n || !wants_more);
}

/* With the lock held: begin the next request and return its index; -1: there is none. */
static int begin_next(struct spawn_batch *b)
{
    if (!b || b->n_begun == b->n || b->rc < 0 || atomic_load(&b->cancelled))
        return -1;
    return b->n_begun++;
}

/* With the lock. The first failure counts. */
static void note_failure(struct spawn_batch *b, int rc, const struct err *e)
{
    if (b->rc == 0 && rc < 0) {
        b->rc = rc;
        b->e = *e;
    }
}

/* With the lock held, which is released meanwhile: report the batch as done. The thread that is woken takes the lock
 * at once. */
static bool tell_if_over(struct spawn_thread *t)
{
    if (!t->batch || !is_over(t->batch))
        return false;
    t->ended = t->batch;
    t->batch = NULL;
    pthread_mutex_unlock(&t->lock);
    uv_async_send(&t->wake);
    pthread_mutex_lock(&t->lock);
    return true;
}

static void *run_thread(void *arg)
{
    struct spawn_thread *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct spawn_batch *b = t->batch;
        struct err e = {0};
        const int i = begin_next(b);
        if (i < 0) {
            if (!tell_if_over(t)) /* it may have been cancelled */
                pthread_cond_wait(&t->more, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        const int rc = spawn(&b->requests[i], &b->spawned[i].pid, &b->spawned[i].pidfd, &e);
        pthread_mutex_lock(&t->lock);
        b->n_ended++;
        note_failure(b, rc, &e);
        tell_if_over(t);
    }
    return NULL;
}

static void on_wake(uv_async_t *wake)
{
    struct spawn_thread *t = wake->data;
    pthread_mutex_lock(&t->lock);
    struct spawn_batch *b = t->ended;
    t->ended = NULL;
    pthread_mutex_unlock(&t->lock);
    if (b)
        b->done(b);
}

static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Start up to n threads; 0 if at least one could be started, else an errno. */
static int start_threads(struct spawn_thread *t, int n)
{
    int rc = 0, started = 0;
    while (started < n && (rc = apart_start(run_thread, t, STACK_BYTES)) == 0)
        started++;
    return started > 0 ? 0 : rc;
}

static void on_unused_closed(uv_handle_t *wake)
{
    free(wake->data);
}

int spawn_thread_create(struct spawn_thread **ret, uv_loop_t *loop, int workers, struct err *e)
{
    struct spawn_thread *t = calloc(1, sizeof *t);
    if (!t)
        return err_errno(e, ENOMEM, "threads that start workers");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    uv_async_init(loop, &t->wake, on_wake);
    t->wake.data = t;
    fd_room_make();
    const int rc = start_threads(t, min_int(SPAWN_THREADS_MAX, min_int(processors() + 1, workers)));
    if (rc != 0) {
        uv_close((uv_handle_t *)&t->wake, on_unused_closed);
        return err_start(e, rc, "threads that start workers");
    }
    *ret = t;
    return 0;
}

void spawn_thread_start(struct spawn_thread *t, struct spawn_batch *b)
{
    pthread_mutex_lock(&t->lock);
    t->batch = b;
    pthread_mutex_unlock(&t->lock);
}

void spawn_thread_add(struct spawn_thread *t, struct spawn_batch *b)
{
    pthread_mutex_lock(&t->lock);
    b->n++;
    pthread_mutex_unlock(&t->lock);
    pthread_cond_signal(&t->more);
}

void spawn_thread_complete(struct spawn_thread *t, struct spawn_batch *b, int rc, const struct err *e)
{
    pthread_mutex_lock(&t->lock);
    note_failure(b, rc, e);
    b->is_complete = true;
    tell_if_over(t);
    pthread_mutex_unlock(&t->lock);
}

bool spawn_thread_is_idle(struct spawn_thread *t)
{
    if (!t)
        return true;
    pthread_mutex_lock(&t->lock);
    const bool idle = !t->batch || is_over(t->batch);
    pthread_mutex_unlock(&t->lock);
    return idle;
}

/* Close without freeing, because the threads still read this memory. */
void spawn_thread_close(struct spawn_thread *t)
{
    if (t)
        uv_close((uv_handle_t *)&t->wake, NULL);
}
