/* The room rendezvousd/net: the way from listening sockets to commands and back.
 *
 *     accept -> gate.h (may it come in?) -> conn.c: bytes -> front.h: RESP, or TCPStore by the first byte
 *            -> a request -> rendezvousd/commands or rendezvousd/tcpstore -> reply -> conn_write.c -> the peer
 *
 * A connection works on one key-space, by name or by principal (spaces.h). A command that waits is answered later,
 * through conn.c, too.
 *
 * The RESP2 server on libuv. It is a library, so that crun can contain it (--standalone, bootstrap store).
 *
 * The server never blocks the loop and owns nothing outside itself: one struct server has one key-space, one or more
 * listeners, its connections. Requests are parsed by our own bounded parser (request.h): multi-bulk and inline,
 * every cap enforced before memory is taken. Replies are queued per connection up to a limit; a client that does not
 * read them is closed. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_SERVER_H
#define CRUN_RENDEZVOUSD_SERVER_H

#include "rendezvousd/net/times.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define SERVER_BACKLOG 4096 /* length of the kernel's queue of new connections; the kernel cuts it to somaxconn */

struct err;
struct front;
struct gate;
struct jobs;
struct buf;
struct server;

/* What a node reports to group rank 0 of its round. */
struct server_tell {
    enum { SERVER_TELL_FAILURE, SERVER_TELL_STEPS, SERVER_TELL_QUIET } what;
    const char *run, *node;
    uint64_t round;
    const char *text; /* n bytes, any */
    size_t n;
};
#define SERVER_ANSWER_MAX 64

/* Of a daemon that may stand by for another one (daemon/standby.h). */
struct server_standby {
    int64_t until;    /* clock_ms(): it leads until then; 0: it does not lead */
    char state[33];   /* names the state that it shares with others; "": not known yet */
    char leader[400]; /* HOST:PORT of the one that leads; "": nobody, as far as is known */
};

struct server_options {
    size_t max_clients; /* 0: 10000; further connections get -ERR max number of clients reached */
    /* one request with all its arguments; 0: 9 MiB. A value takes one or two milliseconds of the loop per MiB;
     * PyTorch's own limit for a value is 8 MiB */
    size_t max_request_bytes;
    size_t max_args;         /* 0: 65536 */
    size_t max_output_bytes; /* queued replies of one client, which is closed beyond that; 0: 64 MiB */
    /* keys, values and waiters; beyond it writes get -OOM ...; 0: 1 GiB. The same again for all clients' buffers:
     * beyond it the clients that hold most are closed */
    size_t max_memory_bytes;
    /* keys of one principal, including its jobs'; 0: max_memory_bytes, half of it if there are several principals */
    size_t max_principal_bytes;
    size_t max_job_bytes; /* keys in one job's key-space (STORE.USE); 0: 256 MiB */
    /* A connection is closed if a request that it began is not complete after so long, or if it has read nothing of
     * its replies for so long; 0: 10000 */
    int64_t request_timeout_ms;
    const struct front *binary; /* NULL, or the front end for connections that do not begin as RESP does (front.h) */
    /* RDZV.ALIVE: returns 1: +MAJORITY; 0: +ALIVE; ERR_FENCED, ERR_REFUSED. NULL: this server has no round. */
    int (*alive)(void *arg, const char *run, const char *node, uint64_t round);
    void *alive_arg;
    /* RDZV.FAILURE, RDZV.STEPS, RDZV.QUIET: returns 0: +OK, or +ANSWER if it was filled in; ERR_FENCED, ERR_REFUSED.
     * NULL: not supported. */
    int (*tell)(void *arg, const struct server_tell *t, char answer[SERVER_ANSWER_MAX]);
    void *tell_arg;
    /* RDZV.STATUS: append a JSON array of the newest finished jobs that this principal may see. run NULL: of all run
     * ids. Returns their number; -ENOMEM. NULL: there is no history. */
    int (*ended)(void *arg, const char *principal, const char *run, struct buf *out);
    void *ended_arg;
    /* Another client of the TCPStore protocol has read a key of the default key-space for the first time; readers:
     * how many have. May be NULL. */
    void (*met)(void *arg, size_t readers);
    void *met_arg;
    struct gate *gate;  /* who may connect (gate.h), borrowed; NULL: same_uid_only and members decide */
    bool same_uid_only; /* refuse loopback peers of another uid (NETLINK_SOCK_DIAG) */
};

int server_create(struct server **ret, uv_loop_t *loop, const struct server_options *o, struct err *e);

/* Listen on host:port (port 0: the kernel chooses). *ret_port (may be NULL): the port. May be called several times. */
int server_listen(struct server *s, const char *host, int port, int *ret_port, struct err *e);

/* Accept on a socket that listens already; it belongs to the server from now on, even after a failure. */
int server_listen_fd(struct server *s, int fd, struct err *e);

/* Begin with an empty default key-space; connections that used the old one are closed, except those that are parties
 * of a job. */
int server_renew_space(struct server *s, struct err *e);

void server_set_alive(struct server *s, int (*alive)(void *arg, const char *run, const char *node, uint64_t round),
                      void *arg);
void server_set_tell(struct server *s,
                     int (*tell)(void *arg, const struct server_tell *t, char answer[SERVER_ANSWER_MAX]), void *arg);

void server_set_ended(struct server *s,
                      int (*ended)(void *arg, const char *principal, const char *run, struct buf *out), void *arg);
void server_set_met(struct server *s, void (*met)(void *arg, size_t readers), void *arg);
uint64_t
server_changes(const struct server *s); /* requests that changed keys of the default key-space since it began */

/* From now on accept connections from other hosts only from these addresses, and only for keys: text separated by
 * commas, copied. NULL: members have no special rights. Existing connections stay. -ENOMEM. */
int server_set_members(struct server *s, const char *addresses);

/* This principal's job with this run id is forgotten: delete its keys. */
void server_forget_run(struct server *s, const char *principal, const char *run);

/* Close listeners and connections, end waits with an error, then call done(arg) once, after which s is freed.
 * Replies under way have a second to be written. Idempotent. */
void server_close(struct server *s, void (*done)(void *arg), void *arg);

/* While it does not lead, requests for keys and jobs get -STANDBY and where the leader is; TCPStore's connections know
 * no errors, and are closed. Borrowed; it may change at any time. NULL: this server always leads. */
void server_set_standby(struct server *s, const struct server_standby *standby);
bool server_leads(const struct server *s);

/* Answer RDZV.* for these jobs, which are borrowed until done() of server_close(). */
int server_set_jobs(struct server *s, struct jobs *j, struct err *e);

struct server_stats {
    size_t clients, keys, expires, memory_bytes, waiters;
    uint64_t commands, connections, refused;
    struct times turns;    /* durations of the loop's turns, from one look at the network to the next */
    struct times requests; /* one in some hundred is timed */
};
void server_stats(const struct server *s, struct server_stats *ret);

#endif
