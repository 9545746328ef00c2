/* The threads that have homes at hand (home_process.h). */
#include "common/rdzv/homes/home_process.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/net/apart.h"
#include "common/net/fds.h"
#include "common/rdzv/homes/home_serve.h"
#include "common/rdzv/homes/rdzv_home.h"

enum { STACK_BYTES = 256 << 10, TEXTS_MAX = 32 << 10 };

/* A request to open one; the texts follow each other, each with its NUL. */
struct asked {
    int64_t keep_ms;
    char texts[TEXTS_MAX];
};

/* --- asking */

int home_process_ask(int process_fd, int64_t keep_ms, const char *url, const char *run_id, int door)
{
    const struct iovec v[] = {
        {&keep_ms, sizeof keep_ms}, {(void *)url, strlen(url) + 1}, {(void *)run_id, strlen(run_id) + 1}};
    if (v[1].iov_len + v[2].iov_len > TEXTS_MAX)
        return -E2BIG;
    const ssize_t n = fds_send(process_fd, v, 3, &door, 1);
    return n < 0 ? (int)n : 0;
}

/* --- serving */

struct serving {
    struct home_threads *all;
    const struct asked *asked;
    int door;
    sem_t taken; /* the thread needs the above no more, but .all */
};

static void *run_thread(void *arg)
{
    struct serving *s = arg;
    struct home_threads *all = s->all;
    const int door = s->door, kept[] = {door, all->gone_fd};
    struct asked *a = malloc(sizeof *a);
    if (a)
        *a = *s->asked;
    if (!apart_keep(kept, 2))
        s->door = -1; /* it is this one */
    sem_post(&s->taken);
    if (a)
        all->service(a->keep_ms, a->texts, a->texts + strlen(a->texts) + 1, door);
    free(a);
    close(door);
    atomic_fetch_sub(&all->n, 1);
    eventfd_write(all->gone_fd, 1);
    return NULL;
}

/* The thread has descriptors of its own, or these. */
static void serve(struct serving *s)
{
    sem_init(&s->taken, 0, 0);
    atomic_fetch_add(&s->all->n, 1);
    const bool started = apart_start(run_thread, s, STACK_BYTES) == 0;
    while (started && sem_wait(&s->taken) < 0)
        ;
    if (!started)
        atomic_fetch_sub(&s->all->n, 1);
    if (s->door >= 0)
        close(s->door);
    sem_destroy(&s->taken);
}

int home_threads_open(struct home_threads *h, home_service *service)
{
    h->service = service;
    h->gone_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return h->gone_fd < 0 ? -errno : 0;
}

bool home_threads_take(struct home_threads *h, int caller_fd)
{
    static struct asked asked;
    struct serving s = {.all = h, .asked = &asked};
    const struct iovec part = {&asked, sizeof asked};
    ssize_t n;
    int doors;
    while ((n = fds_receive(caller_fd, &part, 1, 0, &s.door, 1, &doors)) > 0)
        if (doors == 1)
            serve(&s);
    return n == -EAGAIN;
}

/* --- shared folders */

void home_serve_folder(int64_t keep_ms, const char *url, const char *run_id, int door)
{
    struct rdzv_home *home;
    struct err e;
    const struct rdzv_home_options o = {.run_id = run_id, .keep_ms = keep_ms};
    if (rdzv_home_open(&home, url, &o, &e) == 0)
        home_serve(home, door);
}
