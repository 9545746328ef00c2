/* Calls of a home (rdzv_home.h) as messages over a stream socket: between a home that is far away (rdzv_home_far.c) and
 * the process that has it at hand (home_process.h). One call at a time, each answered once; numbers distinguish an
 * answer that nobody waits for any more from the one that is waited for.
 *
 * Both ends are the same program, forked: structs go as they are. */
#ifndef CRUN_COMMON_HOME_WIRE_H
#define CRUN_COMMON_HOME_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/rdzv/homes/rdzv_home.h"

struct err;

/* name, what an answer says besides its code. Texts have their NUL. */
#define HOME_CALLS(X)                                                                                                  \
    X(HOME_IDENTITY) /* : identity */                                                                                  \
    X(HOME_LOOK)     /* : claim */                                                                                     \
    X(HOME_CLAIM)    /* seen, own, record */                                                                           \
    X(HOME_LOAD)     /* : decisions */                                                                                 \
    X(HOME_APPEND)   /* decision, epoch; flags WHOLE, OVER */                                                          \
    X(HOME_RENEW)    /* own: own */                                                                                    \
    X(HOME_FORGET)

enum home_call {
#define X(name) name,
    HOME_CALLS(X)
#undef X
};

enum { HOME_FLAG_WHOLE = 1, HOME_FLAG_OVER = 2 };

struct home_head {
    uint32_t what; /* enum home_call */
    uint32_t flags;
    int32_t rc; /* of an answer; if negative, its body is the sentence of the error */
    uint32_t bytes;
    uint64_t number;
};

/* --- bodies: pieces, each with its length in front */

int home_put(struct buf *body, const void *data, size_t n);
int home_put_text(struct buf *body, const char *text);

struct home_pieces {
    const char *p, *end;
};
/* Borrowed. -EPROTO: there is no such piece. */
int home_take(struct home_pieces *in, const char **ret, size_t *ret_n);
int home_take_text(struct home_pieces *in, const char **ret);
int home_take_claim(struct home_pieces *in, struct rdzv_claim *ret);

/* --- messages. Deadlines are clock_ms() times; -ETIMEDOUT, -ECANCELED when abort_fd becomes readable, -EPIPE after the
 * last one. */

/* Part of it may be sent when it fails: the socket is of no use then. */
int home_send(int fd, const struct home_head *head, const struct buf *body, int64_t deadline, int abort_fd);

/* What has come so far: a receive that ran out of time is gone on with. All-zero is empty. */
struct home_inbox {
    struct home_head head;
    size_t head_n; /* bytes of it */
    struct buf body;
};
int home_receive(int fd, struct home_inbox *in, int64_t deadline, int abort_fd);
struct home_pieces home_pieces(const struct home_inbox *in);

#endif
