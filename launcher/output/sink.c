/* Queues console output in front of a descriptor that may be slow (sink.h). */
#include "launcher/output/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/base/watch.h"

/* bytes: a terminal may block after fewer than a pipe, although poll(2) calls it writable */
#define TERMINAL_BYTES 256
#define SOCKET_BYTES (32u << 10) /* bytes: a socket refuses more than a datagram can hold */

static void on_writable(void *arg);

/* Watch an inherited descriptor through an epoll of our own: libuv would set O_NONBLOCK on the descriptor itself. */
static int watch_inherited(struct sink *s, uv_loop_t *loop)
{
    struct epoll_event ev = {.events = EPOLLOUT};
    s->ready_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->ready_fd < 0 || epoll_ctl(s->ready_fd, EPOLL_CTL_ADD, s->fd, &ev) < 0)
        return -errno;
    return watch_open(&s->watch, loop, s->ready_fd, UV_READABLE, on_writable, s, NULL);
}

static int reopen(struct sink *s, uv_loop_t *loop)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
    int again = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (again < 0)
        return -errno;
    int rc = watch_open(&s->watch, loop, again, UV_WRITABLE, on_writable, s, NULL);
    if (rc < 0) {
        close(again);
        return rc;
    }
    s->fd = again;
    s->kind = SINK_REOPENED;
    return 0;
}

void sink_open(struct sink *s, uv_loop_t *loop, int fd, void (*drained)(void *arg), void *arg)
{
    struct stat st;

    memset(s, 0, sizeof *s);
    s->fd = fd;
    s->ready_fd = -1;
    s->drained = drained;
    s->arg = arg;
    buf_init(&s->queue, 0);
    if (fstat(fd, &st) < 0) {
        s->error = errno;
        return;
    }
    const bool terminal = isatty(fd);
    s->chunk = S_ISSOCK(st.st_mode) ? SOCKET_BYTES : terminal ? TERMINAL_BYTES : PIPE_BUF;
    if (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode) && !terminal)
        return;
    if (!S_ISSOCK(st.st_mode) && reopen(s, loop) == 0)
        return;
    s->kind = S_ISSOCK(st.st_mode) ? SINK_SOCKET : SINK_POLLED;
    int rc = watch_inherited(s, loop);
    if (rc < 0)
        s->error = -rc;
}

static size_t pending(const struct sink *s)
{
    return s->queue.len - s->written;
}

bool sink_full(const struct sink *s)
{
    return pending(s) > SINK_HIGH;
}

static void end(struct sink *s, int error)
{
    s->error = error;
    s->dropped += pending(s);
    s->written = 0;
    buf_free(&s->queue);
}

void sink_add(struct sink *s, const void *data, size_t n)
{
    if (s->error)
        s->dropped += n;
    else if (buf_add(&s->queue, data, n) < 0)
        s->dropped += n;
}

/* Like write(2) on a non-blocking descriptor. */
static ssize_t write_now(struct sink *s, const char *data, size_t n)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    const size_t part = n < s->chunk ? n : s->chunk;
    switch (s->kind) {
    case SINK_SOCKET:
        return send(s->fd, data, part, MSG_DONTWAIT | MSG_NOSIGNAL);
    case SINK_POLLED:
        if (poll(&p, 1, 0) == 1)
            return write(s->fd, data, part);
        errno = EAGAIN;
        return -1;
    case SINK_PLAIN:
    case SINK_REOPENED:
        break;
    }
    return write(s->fd, data, n);
}

/* Returns 0 (all written), -EAGAIN, or the error that ended the sink. */
static int write_some(struct sink *s)
{
    while (!s->error && pending(s) > 0) {
        ssize_t n = write_now(s, s->queue.data + s->written, pending(s));
        if (n > 0)
            s->written += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            return -EAGAIN;
        else if (n < 0 && errno != EINTR)
            end(s, errno);
    }
    s->written = 0;
    if (s->queue.cap > SINK_HIGH)
        buf_free(&s->queue);
    else
        buf_clear(&s->queue);
    return -s->error;
}

void sink_kick(struct sink *s)
{
    int rc = write_some(s);
    /* Move the rest to the front once it is the smaller part: each byte is moved at most once on average. */
    if (s->written > s->queue.len / 2) {
        buf_consume(&s->queue, s->written);
        s->written = 0;
    }
    if (s->watch)
        watch_set(s->watch, rc == -EAGAIN);
    if (pending(s) < SINK_LOW)
        s->drained(s->arg);
}

static void on_writable(void *arg)
{
    sink_kick(arg);
}

int sink_flush(struct sink *s, int64_t deadline, const int stop_fds[2])
{
    int rc;
    while ((rc = write_some(s)) == -EAGAIN) {
        struct pollfd p[3] = {{.fd = s->fd, .events = POLLOUT},
                              {.fd = stop_fds[0], .events = POLLIN},
                              {.fd = stop_fds[1], .events = POLLIN}};
        int left = clock_left(deadline);
        int n = poll(p, 3, left);
        bool stop = n > 0 && (p[1].revents || p[2].revents);
        if (stop || left == 0) {
            end(s, stop ? EINTR : ETIMEDOUT);
            return -s->error;
        }
    }
    return rc;
}

void sink_close(struct sink *s)
{
    watch_close(s->watch);
    if (s->kind == SINK_REOPENED)
        close(s->fd);
    if (s->ready_fd >= 0)
        close(s->ready_fd);
    buf_free(&s->queue);
}
