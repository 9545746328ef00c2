/* The inside of the server, shared by server.c (listeners, life), conn.c (one client) and command*.c (what it may
 * ask). */
#ifndef CRUN_RENDEZVOUSD_SERVER_IMPL_H
#define CRUN_RENDEZVOUSD_SERVER_IMPL_H

#include "rendezvousd/keyspace.h"
#include "rendezvousd/reply.h"
#include "rendezvousd/request.h"
#include "rendezvousd/server.h"
#include "rendezvousd/waiters.h"

#define CLIENT_NAME_MAX 63
#define READ_BYTES (64 * 1024)

struct listener {
    struct server *s;
    uv_tcp_t tcp;
    struct listener *prev, *next;
};

/* What a connection's one timer stands for. */
enum conn_timer {
    TIMER_NONE,
    TIMER_REQUEST, /* an unfinished request must be complete by then */
    TIMER_WAIT,    /* STORE.WAIT answers 0 then */
    TIMER_LINGER,  /* the last words to a client must be taken by then */
};

struct conn {
    struct server *s;
    uv_tcp_t tcp;
    uv_timer_t timer;
    enum conn_timer timer_kind;
    uv_write_t write;
    struct request_parser in;
    struct reply reply; /* being filled */
    struct buf flying;  /* being written */
    size_t flown;       /* bytes of `flying` gone already */
    bool writing, reading;
    bool last_words; /* close once all replies are written; no further request */
    bool closing;
    bool ready; /* in s->ready */
    int open_handles;
    struct waiter *waiter; /* blocked in STORE.WAIT */
    size_t charged;        /* bytes of its buffers in s->buffer_bytes */
    uint64_t id;
    char name[CLIENT_NAME_MAX + 1];
    struct conn *prev, *next;             /* in s->conns */
    struct conn *ready_prev, *ready_next; /* in s->ready */
};

struct server {
    uv_loop_t *loop;
    struct server_options o; /* no zeroes: defaults are filled in */
    struct keyspace *keys;
    struct waiters *waiters;
    struct listener *listeners;
    struct conn *conns;
    struct conn *ready; /* woken: they go on when the request that woke them is answered */
    size_t clients, open_handles;
    size_t buffer_bytes; /* of all connections */
    uint64_t commands, connections, refused;
    int64_t started_ms;
    bool closing;
    void (*done)(void *arg);
    void *done_arg;
    char read_bytes[READ_BYTES]; /* shared: a read is used up in its callback */
};

/* server.c */
void server_handle_closed(struct server *s);
void server_key_created(struct server *s, const struct request_arg *key);
void server_key_deleted(struct server *s, const struct request_arg *key);

/* conn.c */
void conn_accept(struct server *s, uv_stream_t *listener);
void conn_close(struct conn *c);
void conn_drain_ready(struct server *s);
/* Block until all keys exist (:1) or timeout_ms has passed (:0). -ENOSPC, -ENOMEM. */
int conn_wait(struct conn *c, const struct request_arg *keys, size_t n, int64_t timeout_ms);

/* command.c: answer one request into c->reply (or block c). */
void command_execute(struct conn *c, const struct request *rq);

#endif
