/* One connection that speaks RESP2 from the event loop: hiredis as codec; TLS (common/net/tls_stream.h) and the proof
 * of identity (common/auth/auth.h) first, where they are asked for. Replies come in the order of requests. */
#ifndef CRUN_LAUNCHER_RDZV_CONN_H
#define CRUN_LAUNCHER_RDZV_CONN_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "common/rdzv/client/client.h"

struct auth_token;
struct err;
struct rdzv_conn;
struct tls_context;

struct rdzv_conn_options {
    struct tls_context *tls;        /* NULL: plain */
    const char *server_name;        /* with tls: whom the certificate must be for */
    const struct auth_token *token; /* NULL: no proof is offered, none is asked for. Borrowed until ready or lost */
    bool unproved; /* also a server that asks for no proof and gives none will do (this host, --insecure) */
    void (*ready)(void *arg);
    void (*reply)(void *arg, const redisReply *r);                /* borrowed; the callback may close the connection */
    void (*lost)(void *arg, enum rdzv_lost how, const char *why); /* once; then it must be closed */
    void *arg;
};

/* Takes fd, connected and non-blocking, also on failure. No callback comes from inside. */
int rdzv_conn_open(struct rdzv_conn **ret, uv_loop_t *loop, int fd, const struct rdzv_conn_options *o, struct err *e);

/* Only after ready(). -ENOMEM, or the error of a connection that is about to be lost. */
int rdzv_conn_send(struct rdzv_conn *c, int argc, const char *const *argv, const size_t *lens);

/* As rdzv_conn_send(), but it leaves together with the next request, so that the other side wakes once for both. */
int rdzv_conn_queue(struct rdzv_conn *c, int argc, const char *const *argv, const size_t *lens);

int rdzv_conn_fd(const struct rdzv_conn *c);
void rdzv_conn_close(struct rdzv_conn *c); /* NULL allowed; no callback after it */

#endif
