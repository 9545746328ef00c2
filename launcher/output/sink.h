/* Writes console output: a queue in front of a descriptor that may be slow, closed or full. Never blocks the loop.
 *
 *   - terminals and pipes are opened a second time (/proc/self/fd/N) without blocking, because O_NONBLOCK on the
 *     descriptor that we inherited would change it for the shell and everybody else who shares it;
 *   - if that is impossible (another user's terminal or pipe), poll(2) is called before each small write;
 *   - sockets have a non-blocking flag per call;
 *   - regular files are written directly;
 *   - a reader that went away (EPIPE) or a full disk ends the sink: further output is counted and dropped, workers
 *     go on. */
#ifndef CRUN_LAUNCHER_SINK_H
#define CRUN_LAUNCHER_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "common/base/buf.h"

struct watch;

enum sink_kind {
    SINK_PLAIN,    /* a file or /dev/null, which does not block for long */
    SINK_REOPENED, /* fd is ours and does not block */
    SINK_SOCKET,
    SINK_POLLED, /* fd is the inherited one, and may block */
};

struct sink {
    int fd;
    enum sink_kind kind;
    struct watch *watch; /* until it is writable; NULL: SINK_PLAIN */
    int ready_fd;        /* epoll of an inherited fd, so that libuv does not make it non-blocking; -1: none */
    size_t chunk;        /* bytes per write of SINK_SOCKET and SINK_POLLED */
    int error;           /* errno that ended it; 0: alive */
    size_t written;      /* bytes of queue already written */
    struct buf queue;
    uint64_t dropped;           /* bytes */
    void (*drained)(void *arg); /* the queue fell below SINK_LOW again */
    void *arg;
};

#define SINK_HIGH (1u << 20) /* bytes queued above which workers are not read (sink_full) */
#define SINK_LOW (256u << 10)

void sink_open(struct sink *s, uv_loop_t *loop, int fd, void (*drained)(void *arg), void *arg);
void sink_add(struct sink *s, const void *data, size_t n);
void sink_kick(struct sink *s); /* write what can be written now */
bool sink_full(const struct sink *s);
/* Write everything; blocks until the deadline (clock_ms), or until one of the two stop_fds is readable (-1: none).
 * Returns 0, or -ETIMEDOUT or -EINTR with the rest lost, or -errno of the sink. */
int sink_flush(struct sink *s, int64_t deadline, const int stop_fds[2]);
void sink_close(struct sink *s);

#endif
