/* Asks NCCL's RAS a question over TCP (ras_client.h). */
#include "launcher/witness/ras_client.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "common/net/addr.h"
#include "common/net/dial.h"

#define LINE_MAX_BYTES 256
#define PIECE 65536
#define CANCEL_MS 50 /* ms between two looks at `cancel` */

/* The protocol: what is sent, how its answer begins (NULL: it lasts until the connection is closed), time allowed. */
static const struct step {
    const char *send, *begins;
    int ms;
} steps[] = {{"CLIENT PROTOCOL 2\n", "SERVER PROTOCOL ", RAS_LINE_MS},
             {"SET FORMAT json\n", "OK", RAS_LINE_MS},
             {"STATUS\n", NULL, RAS_ANSWER_MS}};

/* Wait until there is something to read, or the end. */
static int wait_for(int fd, int64_t end_ms, const atomic_bool *cancel, struct err *e)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int left; !atomic_load(cancel) && (left = clock_left(end_ms)) > 0;)
        if (poll(&p, 1, min_int(left, CANCEL_MS)) > 0)
            return 0;
    return err_set(e, -ETIMEDOUT, "no answer came in time");
}

/* Read a line, or all until the connection is closed. */
static int read_answer(int fd, bool is_line, int64_t end_ms, const atomic_bool *cancel, struct buf *out, struct err *e)
{
    buf_clear(out);
    while (!is_line || !out->len || !memchr(out->data, '\n', out->len)) {
        TRY(wait_for(fd, end_ms, cancel, e));
        if (buf_reserve(out, PIECE) < 0)
            return err_set(e, -E2BIG, "its answer is too large");
        const ssize_t n = recv(fd, out->data + out->len, PIECE, 0);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return err_set(e, -errno, "%s", strerror(errno));
        if (n == 0)
            return !is_line && out->len ? 0 : err_set(e, -ENODATA, "it closed the connection without an answer");
        out->len += n > 0 ? (size_t)n : 0;
        out->data[out->len] = '\0';
        if (is_line && out->len > LINE_MAX_BYTES)
            break;
    }
    return 0;
}

static int talk(int fd, int64_t end_ms, const atomic_bool *cancel, struct buf *out, struct err *e)
{
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct step *s = &steps[i];
        const int64_t until = min_i64(end_ms, clock_deadline(s->ms));
        if (send(fd, s->send, strlen(s->send), MSG_NOSIGNAL) != (ssize_t)strlen(s->send))
            return err_set(e, -errno, "%s", strerror(errno));
        TRY(read_answer(fd, s->begins, until, cancel, out, e));
        if (!s->begins || strncasecmp(out->data, s->begins, strlen(s->begins)) == 0)
            continue;
        if (i > 0 && strncasecmp(out->data, "ERROR", 5) == 0)
            return err_set(e, -EPROTONOSUPPORT, "it answers no JSON, so NCCL is older than 2.28.7");
        return err_set(e, -EPROTO, "that is not NCCL's RAS");
    }
    return 0;
}

int ras_ask(const char *address, int64_t end_ms, const atomic_bool *cancel, struct buf *out, struct err *e)
{
    struct host_port p;
    char host[64], port[8];
    int fd;
    if (!addr_split(address, strlen(address), &p) || !p.port || p.host_len >= sizeof host ||
        addr_port(p.port, p.port_len) < 0)
        return err_set(e, -EINVAL, "an address of IPv4 or IPv6 with a port is expected");
    snprintf(host, sizeof host, "%.*s", (int)p.host_len, p.host);
    snprintf(port, sizeof port, "%.*s", (int)p.port_len, p.port);
    const int rc = dial(host, port, min_i64(end_ms, clock_deadline(RAS_LINE_MS)), -1, &fd, e);
    if (rc < 0)
        return rc == -ECONNREFUSED ? err_set(e, rc, "nobody listens there") : rc;
    const int talked = talk(fd, end_ms, cancel, out, e);
    close(fd);
    return talked;
}
