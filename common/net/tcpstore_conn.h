/* One client connection that speaks PyTorch's TCPStore protocol (rendezvousd/tcpstore/tcpstore.h describes it).
 * Requests are queued, then sent and answered; every wait has a deadline and can be aborted. Not thread-safe. After
 * any failure the connection is closed (fd -1). */
#ifndef CRUN_COMMON_TCPSTORE_CONN_H
#define CRUN_COMMON_TCPSTORE_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

struct err;

/* request, its byte in the newer generation, its byte in the older one */
#define TCPSTORE_REQUESTS(X)                                                                                           \
    X(SET, 1, 0)                                                                                                       \
    X(GET, 3, 2)                                                                                                       \
    X(ADD, 4, 3)                                                                                                       \
    X(CHECK, 5, 4)                                                                                                     \
    X(WAIT, 6, 5)

enum tcpstore_verb {
#define X(name, newer, older) TCPSTORE_##name,
    TCPSTORE_REQUESTS(X)
#undef X
};

struct tcpstore_conn {
    int fd;         /* -1: closed */
    int abort_fd;   /* borrowed; readable: give up with -ECANCELED */
    bool older;     /* torch before 2.2: other bytes, no handshake */
    struct buf out; /* requests not sent yet */
    size_t sent;
};

void tcpstore_init(struct tcpstore_conn *c, bool older, int abort_fd);
void tcpstore_finish(struct tcpstore_conn *c);

/* Connect; with a server of the newer generation, also shake hands. Deadlines are clock_ms() values. */
int tcpstore_dial(struct tcpstore_conn *c, const char *host, const char *port, int64_t deadline, struct err *e);
void tcpstore_hang_up(struct tcpstore_conn *c);
bool tcpstore_is_stale(const struct tcpstore_conn *c); /* the peer has closed it, or sent something unrequested */

/* Queue a request, piece by piece. -E2BIG, -ENOMEM: the connection is closed. */
int tcpstore_put(struct tcpstore_conn *c, enum tcpstore_verb verb, struct err *e);
int tcpstore_put_number(struct tcpstore_conn *c, uint64_t v, struct err *e);
int tcpstore_put_bytes(struct tcpstore_conn *c, const void *p, size_t n, struct err *e);

/* Read the next bytes of the answer; send what is queued first. On failure the connection is closed. */
int tcpstore_take_byte(struct tcpstore_conn *c, int *ret, int64_t deadline, struct err *e);
int tcpstore_take_number(struct tcpstore_conn *c, int64_t *ret, int64_t deadline, struct err *e);
/* Append the next value to *value. -E2BIG: it is larger than the buffer allows, and nothing is appended. */
int tcpstore_take_bytes(struct tcpstore_conn *c, struct buf *value, int64_t deadline, struct err *e);

#endif
