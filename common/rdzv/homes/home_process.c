#include "common/rdzv/homes/home_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/sanitizer.h"
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
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec v[] = {
        {&keep_ms, sizeof keep_ms}, {(void *)url, strlen(url) + 1}, {(void *)run_id, strlen(run_id) + 1}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (v[1].iov_len + v[2].iov_len > TEXTS_MAX)
        return -E2BIG;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof door);
    memcpy(CMSG_DATA(c), &door, sizeof door);
    return sendmsg(process_fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* 1: *ret and its door; 0: none is there; -EPIPE: nobody will ask any more. */
static int receive(int fd, struct asked *ret, int *ret_door)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec v = {ret, sizeof *ret};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        return -EPIPE;
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (!c)
        return 0;
    memcpy(ret_door, CMSG_DATA(c), sizeof *ret_door);
    return 1;
}

/* --- serving */

struct process {
    int caller_fd, end_fd;
    home_service *service;
    int gone_fd; /* an eventfd: a thread has ended */
    atomic_int threads;
};

struct serving {
    struct process *process;
    const struct asked *asked;
    int door;
    sem_t taken; /* the thread needs the above no more, but the process */
};

/* Where the kernel refuses a table of our own, all stays shared. */
static bool leave_descriptors(const struct process *p)
{
    if (HAS_THREAD_SANITIZER || unshare(CLONE_FILES) < 0)
        return false;
    close(p->caller_fd);
    if (p->end_fd >= 0)
        close(p->end_fd);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd <= 2 && null >= 0; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
    return true;
}

static void *run_thread(void *arg)
{
    struct serving *s = arg;
    struct process *p = s->process;
    const int door = s->door;
    struct asked *a = malloc(sizeof *a);
    if (a)
        *a = *s->asked;
    if (!leave_descriptors(p))
        s->door = -1; /* it is this one */
    sem_post(&s->taken);
    if (a)
        p->service(a->keep_ms, a->texts, a->texts + strlen(a->texts) + 1, door);
    free(a);
    close(door);
    atomic_fetch_sub(&p->threads, 1);
    eventfd_write(p->gone_fd, 1);
    return NULL;
}

/* The thread has descriptors of its own, or these. */
static void serve(struct serving *s)
{
    pthread_t thread;
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, STACK_BYTES);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    sem_init(&s->taken, 0, 0);
    atomic_fetch_add(&s->process->threads, 1);
    const bool started = pthread_create(&thread, &a, run_thread, s) == 0;
    while (started && sem_wait(&s->taken) < 0)
        ;
    if (!started)
        atomic_fetch_sub(&s->process->threads, 1);
    if (s->door >= 0)
        close(s->door);
    sem_destroy(&s->taken);
    pthread_attr_destroy(&a);
}

/* Everything that is asked for now; false: nobody will ask any more. */
static bool take(struct process *p, struct asked *asked)
{
    struct serving s = {.process = p, .asked = asked};
    int rc;
    while ((rc = receive(p->caller_fd, asked, &s.door)) > 0)
        serve(&s);
    return rc == 0;
}

int home_process_run(int caller_fd, int end_fd, home_service *service)
{
    static struct asked asked;
    static struct process p; /* which threads see to their end */
    struct pollfd fds[2] = {{.fd = end_fd, .events = POLLIN}, {.fd = caller_fd, .events = POLLIN}};
    eventfd_t n;
    p.caller_fd = caller_fd;
    p.end_fd = end_fd;
    p.service = service;
    p.gone_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    do {
        poll(fds, 2, -1);
        if (fds[0].revents)
            return 0;
    } while (!fds[1].revents || take(&p, &asked));
    if (end_fd >= 0)
        send(end_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* no other is to take our place */
    for (fds[1].fd = p.gone_fd; atomic_load(&p.threads) > 0 && !fds[0].revents; eventfd_read(p.gone_fd, &n))
        poll(fds, 2, -1);
    return 0;
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

int home_process(int caller_fd, int end_fd)
{
    return home_process_run(caller_fd, end_fd, home_serve_folder);
}
