#include "common/rdzv/homes/home_process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/sanitizer.h"
#include "common/rdzv/homes/home_serve.h"
#include "common/rdzv/homes/rdzv_home.h"

enum { STACK_BYTES = 256 << 10, TEXTS_MAX = 32 << 10 };

/* A request to open one; the texts follow each other, each with its NUL. */
struct asked {
    struct home_door door;
    char texts[TEXTS_MAX];
};

/* --- asking */

int home_process_ask(int process_fd, const struct home_door *d, const char *url, const char *run_id, int door,
                     int wake_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    const int fds[2] = {door, wake_fd};
    struct iovec v[] = {{(void *)d, sizeof *d}, {(void *)url, strlen(url) + 1}, {(void *)run_id, strlen(run_id) + 1}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (v[1].iov_len + v[2].iov_len > TEXTS_MAX)
        return -E2BIG;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    return sendmsg(process_fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* 1: *ret and fds; 0: none is there; -EPIPE: nobody will ask any more. */
static int receive(int fd, struct asked *ret, int fds[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec v = {ret, sizeof *ret};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        return -EPIPE;
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (!c || c->cmsg_len != CMSG_LEN(2 * sizeof(int)))
        return 0;
    memcpy(fds, CMSG_DATA(c), 2 * sizeof(int));
    return 1;
}

/* --- serving */

struct serving {
    const struct asked *asked;
    int door, wake_fd;
    int caller_fd, end_fd;
    sem_t taken; /* the thread needs the above no more */
};

/* Where the kernel refuses a table of our own, all stays shared. */
static bool leave_descriptors(const struct serving *s)
{
    if (HAS_THREAD_SANITIZER || unshare(CLONE_FILES) < 0)
        return false;
    close(s->caller_fd);
    close(s->end_fd);
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
    struct rdzv_home *home = NULL;
    struct err e = {0};
    const int door = s->door;
    const char *url = s->asked->texts, *run_id = url + strlen(url) + 1;
    const struct rdzv_home_options o = {.run_id = run_id,
                                        .io_timeout_ms = s->asked->door.io_timeout_ms,
                                        .keep_ms = s->asked->door.keep_ms,
                                        .allow_unsafe = s->asked->door.unsafe,
                                        .max_lag_ms = s->asked->door.max_lag_ms,
                                        .wake_fd = s->wake_fd};
    const bool own = leave_descriptors(s);
    const int rc = rdzv_home_open(&home, url, &o, &e); /* touches no disk */
    s->door = s->wake_fd = own ? s->door : -1;
    sem_post(&s->taken);
    if (rc == 0)
        home_serve(home, door);
    close(door);
    return NULL;
}

/* The thread has descriptors of its own, or these. */
static void serve(struct serving *s)
{
    pthread_t thread;
    pthread_attr_t a;
    const int fds[2] = {s->door, s->wake_fd};
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, STACK_BYTES);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    sem_init(&s->taken, 0, 0);
    const bool started = pthread_create(&thread, &a, run_thread, s) == 0;
    while (started && sem_wait(&s->taken) < 0)
        ;
    for (int i = 0; i < 2 && (!started || s->door >= 0); i++)
        close(fds[i]);
    sem_destroy(&s->taken);
    pthread_attr_destroy(&a);
}

/* Everything that is asked for now; false: nobody will ask any more. */
static bool take(int caller_fd, int end_fd, struct asked *asked)
{
    int fds[2], rc;
    while ((rc = receive(caller_fd, asked, fds)) > 0)
        serve(&(struct serving){
            .asked = asked, .door = fds[0], .wake_fd = fds[1], .caller_fd = caller_fd, .end_fd = end_fd});
    return rc == 0;
}

int home_process(int caller_fd, int end_fd)
{
    static struct asked asked;
    struct pollfd p[2] = {{.fd = end_fd, .events = POLLIN}, {.fd = caller_fd, .events = POLLIN}};
    for (;;) {
        poll(p, 2, -1);
        if (p[0].revents)
            return 0;
        if (p[1].revents && !take(caller_fd, end_fd, &asked)) {
            send(end_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* no other is to take our place */
            return 0;
        }
    }
}
