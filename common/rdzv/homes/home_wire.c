/* Packs, sends, receives and unpacks the messages between a home and its process. See home_wire.h. */
#include "common/rdzv/homes/home_wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/resolve.h"

/* --- bodies */

int home_put(struct buf *body, const void *data, size_t n)
{
    const uint32_t len = (uint32_t)n;
    TRY(buf_add(body, &len, sizeof len));
    return n ? buf_add(body, data, n) : 0;
}

int home_put_text(struct buf *body, const char *text)
{
    return home_put(body, text, strlen(text) + 1);
}

int home_take(struct home_pieces *in, const char **ret, size_t *ret_n)
{
    uint32_t n;
    if ((size_t)(in->end - in->p) < sizeof n)
        return -EPROTO;
    memcpy(&n, in->p, sizeof n);
    if ((size_t)(in->end - in->p) - sizeof n < n)
        return -EPROTO;
    *ret = in->p + sizeof n;
    *ret_n = n;
    in->p = *ret + n;
    return 0;
}

int home_take_text(struct home_pieces *in, const char **ret)
{
    size_t n;
    TRY(home_take(in, ret, &n));
    return n > 0 && (*ret)[n - 1] == 0 ? 0 : -EPROTO;
}

int home_take_claim(struct home_pieces *in, struct rdzv_claim *ret)
{
    const char *p;
    size_t n;
    TRY(home_take(in, &p, &n));
    if (n != sizeof *ret)
        return -EPROTO;
    memcpy(ret, p, sizeof *ret);
    return 0;
}

/* --- messages */

static int send_all(int fd, const char *p, size_t n, int64_t deadline, int abort_fd)
{
    while (n > 0) {
        TRY(wait_fd(fd, POLLOUT, deadline, abort_fd, NULL));
        const ssize_t sent = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        p += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

int home_send(int fd, const struct home_head *head, const struct buf *body, int64_t deadline, int abort_fd)
{
    struct home_head h = *head;
    h.bytes = (uint32_t)body->len;
    TRY(send_all(fd, (const char *)&h, sizeof h, deadline, abort_fd));
    return send_all(fd, body->data, body->len, deadline, abort_fd);
}

/* Up to n bytes: how many. */
static int receive_some(int fd, char *p, size_t n, int64_t deadline, int abort_fd)
{
    for (;;) {
        TRY(wait_fd(fd, POLLIN, deadline, abort_fd, NULL));
        const ssize_t got = recv(fd, p, n < 1u << 20 ? n : 1u << 20, MSG_DONTWAIT);
        if (got > 0)
            return (int)got;
        if (got == 0)
            return -EPIPE;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
    }
}

int home_receive(int fd, struct home_inbox *in, int64_t deadline, int abort_fd)
{
    int n;
    if (in->head_n == sizeof in->head && in->body.len == in->head.bytes) { /* of the one before */
        in->head_n = 0;
        buf_clear(&in->body);
    }
    while (in->head_n < sizeof in->head) {
        TRY(n = receive_some(fd, (char *)&in->head + in->head_n, sizeof in->head - in->head_n, deadline, abort_fd));
        in->head_n += (size_t)n;
    }
    TRY(buf_reserve(&in->body, in->head.bytes - in->body.len));
    while (in->body.len < in->head.bytes) {
        TRY(n = receive_some(fd, in->body.data + in->body.len, in->head.bytes - in->body.len, deadline, abort_fd));
        in->body.len += (size_t)n;
    }
    return 0;
}

struct home_pieces home_pieces(const struct home_inbox *in)
{
    const char *p = in->body.data ? in->body.data : "";
    return (struct home_pieces){p, p + in->body.len};
}
