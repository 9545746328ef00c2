#include "launcher/workers/spawn_thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "launcher/base/fd_room.h"

#define STACK_BYTES (128u << 10)

struct spawn_thread {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct spawn_batch *batch; /* to be done, NULL: none */
    struct spawn_batch *ended; /* to be told */
    bool is_busy;              /* between the two */
    uv_async_t wake;
};

static void run_batch(struct spawn_batch *b)
{
    while (b->n_spawned < b->n && b->rc == 0 && !atomic_load(&b->cancelled)) {
        struct spawned *s = &b->spawned[b->n_spawned];
        b->rc = spawn(&b->requests[b->n_spawned], &s->pid, &s->pidfd, &b->e);
        b->n_spawned += b->rc == 0;
    }
}

static void *run_thread(void *arg)
{
    struct spawn_thread *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->batch)
            pthread_cond_wait(&t->more, &t->lock);
        struct spawn_batch *b = t->batch;
        t->batch = NULL;
        t->is_busy = true;
        pthread_mutex_unlock(&t->lock);
        run_batch(b);
        pthread_mutex_lock(&t->lock);
        t->is_busy = false;
        t->ended = b;
        pthread_mutex_unlock(&t->lock); /* whoever is woken wants it at once */
        uv_async_send(&t->wake);
        pthread_mutex_lock(&t->lock);
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

int spawn_thread_create(struct spawn_thread **ret, uv_loop_t *loop, struct err *e)
{
    struct spawn_thread *t = calloc(1, sizeof *t);
    pthread_attr_t attr;
    pthread_t id;
    sigset_t all, before;
    if (!t)
        return err_errno(e, ENOMEM, "a thread that starts workers");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    uv_async_init(loop, &t->wake, on_wake);
    t->wake.data = t;
    *ret = t;
    fd_room_make();
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&id, &attr, run_thread, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0 ? 0 : err_errno(e, rc, "a thread that starts workers");
}

void spawn_thread_start(struct spawn_thread *t, struct spawn_batch *b)
{
    pthread_mutex_lock(&t->lock);
    t->batch = b;
    pthread_mutex_unlock(&t->lock);
    pthread_cond_signal(&t->more);
}

bool spawn_thread_is_idle(struct spawn_thread *t)
{
    if (!t)
        return true;
    pthread_mutex_lock(&t->lock);
    const bool idle = !t->batch && !t->is_busy;
    pthread_mutex_unlock(&t->lock);
    return idle;
}

/* Its memory stays: the thread still looks at it. */
void spawn_thread_close(struct spawn_thread *t)
{
    if (t)
        uv_close((uv_handle_t *)&t->wake, NULL);
}
