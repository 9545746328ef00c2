/* One client connection that speaks RESP2: hiredis as codec, our own socket, so that every wait has a deadline and
 * can be aborted. Not thread-safe. After any failure the connection is closed (fd -1): later replies could be taken
 * for those of other requests. */
#ifndef CRUN_COMMON_RESP_CONN_H
#define CRUN_COMMON_RESP_CONN_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/net/resp_reader.h"

struct err;
struct tls_context;
struct tls_stream;

struct resp_conn {
    int fd;           /* -1: closed */
    int abort_fd;     /* borrowed; readable: give up with -ECANCELED */
    size_t max_reply; /* bytes; a longer reply is -E2BIG */
    redisReader *reader;
    struct buf out;         /* requests not sent yet */
    struct tls_stream *tls; /* NULL: plain text */
    struct buf plain, cipher;
    struct resp_bound bound;
};

void resp_init(struct resp_conn *c, int abort_fd);
void resp_finish(struct resp_conn *c);

/* Connect; deadlines are clock_ms() values. -ECONNREFUSED and the like, -ETIMEDOUT, -ECANCELED. */
int resp_dial(struct resp_conn *c, const char *host, const char *port, int64_t deadline, struct err *e);
void resp_hang_up(struct resp_conn *c);

/* Encrypt from here on; call it right after resp_dial(). The server's certificate must be for server_name.
 * -ECONNABORTED with the reason if it is not, or is not trusted. ctx is borrowed until this returns. */
int resp_start_tls(struct resp_conn *c, struct tls_context *ctx, const char *server_name, int64_t deadline,
                   struct err *e);

/* The peer has closed it, or sent something unrequested, since the last reply. */
bool resp_is_stale(const struct resp_conn *c);

/* Queue one request. -E2BIG, -ENOMEM: nothing is queued, the connection stays. */
int resp_append(struct resp_conn *c, int argc, const char *const *argv, const size_t *lens, struct err *e);

/* Send what is queued and receive n replies, which the caller frees with freeReplyObject(). On failure there are no
 * replies. */
int resp_exchange(struct resp_conn *c, size_t n, redisReply **replies, int64_t deadline, struct err *e);

/* Send what is queued; its replies are received later, with resp_receive(). */
int resp_send(struct resp_conn *c, int64_t deadline, struct err *e);

/* Receive one more reply: a pub/sub message, or the answer to a request that resp_send() sent. */
int resp_receive(struct resp_conn *c, redisReply **reply, int64_t deadline, struct err *e);

#endif
