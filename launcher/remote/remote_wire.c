/* Writes and reads the order of an agent on another host (remote_wire.h). */
#include "launcher/remote/remote_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/base/err.h"

int remote_encode(struct buf *b, enum remote_word kind, const char *text)
{
    const char first = (char)kind;
    TRY(buf_reserve(b, strlen(text) + 2));
    TRY(buf_add(b, &first, 1));
    return buf_add(b, text, strlen(text) + 1);
}

/* Read n bytes and no more: what follows is not for us. */
static int read_exactly(int fd, char *out, size_t n, int64_t deadline, struct err *e)
{
    while (n > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int ready = poll(&p, 1, clock_left(deadline));
        if (ready == 0)
            return err_set(e, -ETIMEDOUT, "the crun that started this one says nothing");
        const ssize_t got = ready < 0 ? -1 : read(fd, out, n);
        if (got == 0)
            return err_set(e, ERR_CORRUPT, "the crun that started this one has gone");
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return err_errno(e, errno, "what the starting crun sent cannot be read");
        out += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int remote_read(int fd, struct buf *ret, int64_t timeout_ms, struct err *e)
{
    const int64_t deadline = clock_deadline(timeout_ms);
    char head[40] = "";
    const size_t magic = sizeof REMOTE_MAGIC - 1;
    int64_t bytes;
    for (size_t n = 0; n + 1 < sizeof head; n++) {
        TRY(read_exactly(fd, head + n, 1, deadline, e));
        if (head[n] == '\n') {
            head[n] = 0;
            break;
        }
    }
    if (strncmp(head, REMOTE_MAGIC " ", magic + 1) != 0 ||
        parse_i64(head + magic + 1, "bytes", 1, REMOTE_ORDER_MAX, &bytes, NULL) < 0)
        return err_set(e, ERR_CORRUPT,
                       "crun " REMOTE_COMMAND " is what crun -H starts on other hosts, of the same version");
    if (buf_reserve(ret, (size_t)bytes + 1) < 0)
        return err_errno(e, ENOMEM, "what the starting crun sent");
    TRY(read_exactly(fd, ret->data, (size_t)bytes, deadline, e));
    ret->len = (size_t)bytes;
    ret->data[bytes] = 0;
    return ret->data[bytes - 1] == 0 ? 0 : err_set(e, ERR_CORRUPT, "what the starting crun sent is not well formed");
}
