/* The room rendezvousd/net: from listening sockets to commands and back.
 *
 *     accept -> gate.h (may it come in?) -> conn.c: bytes -> front.h: RESP, or TCPStore by the first byte
 *            -> a request -> rendezvousd/commands or rendezvousd/tcpstore -> reply -> conn_write.c -> the peer
 *
 * A connection works on one key-space, by name or by principal (spaces.h). What a command waits for ends in conn.c too,
 * as a reply that comes later.
 *
 * The RESP2 server on libuv: a library, so that crun can carry it inside itself (--standalone, bootstrap store).
 *
 * The server never blocks the loop and owns nothing outside itself: one struct server has one key-space, one or more
 * listeners, its connections. Requests are parsed by our own bounded parser (request.h): multi-bulk and inline, every
 * cap enforced before memory is taken. Replies are queued per connection up to a limit; a client that does not read is
 * closed. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_SERVER_H
#define CRUN_RENDEZVOUSD_SERVER_H

#include "rendezvousd/net/times.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define SERVER_BACKLOG 4096 /* connections the kernel may hold for us; it cuts that to somaxconn */

struct err;
struct front;
struct gate;
struct jobs;
struct buf;
struct server;

/* What a node tells group rank 0 of the round that it is in. */
struct server_tell {
    enum { SERVER_TELL_FAILURE, SERVER_TELL_STEPS, SERVER_TELL_QUIET } what;
    const char *run, *node;
    uint64_t round;
    const char *text; /* n bytes, any */
    size_t n;
};
#define SERVER_ANSWER_MAX 64

struct server_options {
    size_t max_clients;       /* 0: 10000; beyond it a connection gets -ERR max number of clients reached */
    size_t max_request_bytes; /* 0: 9 MiB, one request with all its arguments; a value takes a millisecond or two of the
                                 loop for each MiB, and PyTorch's own limit for one is 8 */
    size_t max_args;          /* 0: 65536 */
    size_t max_output_bytes;  /* 0: 64 MiB queued replies of one client, then it is closed */
    size_t max_memory_bytes;  /* 0: 1 GiB of keys, values and waiters: beyond it writes get -OOM ...; and as
                                    much again for all clients' buffers: beyond it those that hold most are closed */
    size_t max_principal_bytes; /* of keys of one principal, of its jobs too; 0: max_memory_bytes, half of that where
                                   there are several */
    size_t max_job_bytes;       /* 0: 256 MiB of keys in one job's key-space (STORE.USE) */
    /* 0: 10000; a started but unfinished request older than this closes the connection, and so do replies of which
     * nothing was read for so long */
    int64_t request_timeout_ms;
    const struct front *binary; /* NULL, or who serves connections that do not begin as RESP does (front.h) */
    /* RDZV.ALIVE: 1: +MAJORITY; 0: +ALIVE; ERR_FENCED, ERR_REFUSED. NULL: there is no round here to ask for. */
    int (*alive)(void *arg, const char *run, const char *node, uint64_t round);
    void *alive_arg;
    /* RDZV.FAILURE, RDZV.STEPS, RDZV.QUIET: 0: +OK, or +ANSWER where one was put there; ERR_FENCED, ERR_REFUSED. NULL:
     * nobody asks for it. */
    int (*tell)(void *arg, const struct server_tell *t, char answer[SERVER_ANSWER_MAX]);
    void *tell_arg;
    /* RDZV.STATUS: append a JSON array of the newest finished jobs that this principal may see. run NULL: of all run
     * ids. Returns how many; -ENOMEM. NULL: nothing is remembered. */
    int (*ended)(void *arg, const char *principal, const char *run, struct buf *out);
    void *ended_arg;
    /* A client of the TCPStore protocol was given a key of the default key-space for the first time; so many were.
     * NULL: nobody asks for it. */
    void (*met)(void *arg, size_t readers);
    void *met_arg;
    struct gate *gate;  /* who may come in (gate.h), borrowed; NULL: as same_uid_only and members say */
    bool same_uid_only; /* loopback peers of another uid are refused (NETLINK_SOCK_DIAG) */
};

int server_create(struct server **ret, uv_loop_t *loop, const struct server_options *o, struct err *e);

/* Listen on host:port (port 0: the kernel picks). *ret_port (may be NULL): the port. May be called several times. */
int server_listen(struct server *s, const char *host, int port, int *ret_port, struct err *e);

/* Accept on a socket that listens already; it is the server's from now on, also on failure. */
int server_listen_fd(struct server *s, int fd, struct err *e);

/* Begin with an empty default key-space; connections that used the old one are closed, but for those that stand for
 * members of a job. */
int server_renew_space(struct server *s, struct err *e);

void server_set_alive(struct server *s, int (*alive)(void *arg, const char *run, const char *node, uint64_t round),
                      void *arg);
void server_set_tell(struct server *s,
                     int (*tell)(void *arg, const struct server_tell *t, char answer[SERVER_ANSWER_MAX]), void *arg);

void server_set_ended(struct server *s,
                      int (*ended)(void *arg, const char *principal, const char *run, struct buf *out), void *arg);
void server_set_met(struct server *s, void (*met)(void *arg, size_t readers), void *arg);
uint64_t
server_changes(const struct server *s); /* requests that changed keys of the default key-space, since it began */

/* From now on connections from other hosts are taken from these addresses only, for the keys alone: text separated by
 * commas, copied. NULL: members have no rights of their own. Connections that are there stay. -ENOMEM. */
int server_set_members(struct server *s, const char *addresses);

/* This principal's job of this run id is forgotten: its keys go. */
void server_forget_run(struct server *s, const char *principal, const char *run);

/* Close listeners and connections, fail waiters, then call done(arg) once, after which s is freed. Replies that are
 * being written have a second to get through. Idempotent. */
void server_close(struct server *s, void (*done)(void *arg), void *arg);

/* Answer RDZV.* for these jobs; borrowed until done() of server_close(). */
int server_set_jobs(struct server *s, struct jobs *j, struct err *e);

struct server_stats {
    size_t clients, keys, expires, memory_bytes, waiters;
    uint64_t commands, connections, refused;
    struct times turns;    /* the loop's, from one look at the network to the next */
    struct times requests; /* one in some hundred is timed */
};
void server_stats(const struct server *s, struct server_stats *ret);

#endif
