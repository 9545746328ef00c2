#include "launcher/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/watch.h"

static void on_writable(void *arg);

void sink_open(struct sink *s, uv_loop_t *loop, int fd, void (*drained)(void *arg), void *arg)
{
    struct stat st;
    char path[32];

    memset(s, 0, sizeof *s);
    s->fd = fd;
    s->drained = drained;
    s->arg = arg;
    buf_init(&s->queue, 0);
    if (fstat(fd, &st) < 0) {
        s->error = errno;
        return;
    }
    if (!S_ISFIFO(st.st_mode) && !isatty(fd))
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (again < 0) /* no /proc, or a terminal of another user: the blocking one has to do */
        return;
    if (watch_open(&s->watch, loop, again, UV_WRITABLE, on_writable, s, NULL) < 0)
        close(again);
    else
        s->fd = again;
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

/* Returns 0 (all written), -EAGAIN, or the error that ended the sink. */
static int write_some(struct sink *s)
{
    while (!s->error && pending(s) > 0) {
        ssize_t n = write(s->fd, s->queue.data + s->written, pending(s));
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

int sink_flush(struct sink *s, int64_t timeout_ms, int stop_fd)
{
    int rc;
    while ((rc = write_some(s)) == -EAGAIN) {
        struct pollfd p[2] = {{.fd = s->fd, .events = POLLOUT}, {.fd = stop_fd, .events = POLLIN}};
        int n = poll(p, 2, (int)timeout_ms);
        if (n == 0 || (n > 0 && p[1].revents)) {
            end(s, n == 0 ? ETIMEDOUT : EINTR);
            return -s->error;
        }
    }
    return rc;
}

void sink_close(struct sink *s)
{
    if (s->watch) {
        watch_close(s->watch);
        close(s->fd);
    }
    buf_free(&s->queue);
}
