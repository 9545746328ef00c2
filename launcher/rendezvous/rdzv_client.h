/* The agent's side of a rendezvous, wherever it lives (design/architecture.md): in this process (rdzv_client_local.c,
 * also where this crun hosts the others), behind a connection to rendezvousd or to a hosting crun (rdzv_client_tcp.c),
 * behind one to whichever node leads over a Redis or a shared directory, and perhaps this one (rdzv_client_elected.c),
 * behind one to a host of a list, and perhaps this one (rdzv_client_listed.c).
 *
 * Calls return at once. Callbacks come on the loop's thread, possibly from inside join, fail, done or leave: they only
 * queue. A client asks for the next news by itself, redials by itself, and keeps the silence rule of
 * common/rdzv/machine/rdzv.h: on_fence comes no later than silence_ms after the sending of the newest acknowledged
 * request. */
#ifndef CRUN_LAUNCHER_RDZV_CLIENT_H
#define CRUN_LAUNCHER_RDZV_CLIENT_H

#include <stdbool.h>
#include <uv.h>

#include "common/rdzv/client/client.h"
#include "common/rdzv/machine/rdzv.h"

struct err;
struct home_host;
struct hosting;
struct hosting_page;
struct jobs;
struct rdzv_client;

struct rdzv_client_options {
    struct rdzv_config job;
    int64_t heartbeat_ms; /* keep_alive_interval: the longest this client lets pass between two requests; 1000 */
    int64_t connect_ms; /* how long the rendezvous may be unreachable before the first JOIN is answered: join_timeout */
    int64_t daemon_grace_ms;         /* workers may run on without a daemon proved gone (decision 0004); 60000 */
    const struct hosting_page *page; /* of this node, while it hosts or leads (hosting.h); NULL: nobody looks */
    bool never_leads;                /* over a shared home: others must */
    int lead_port;                   /* where this node listens while it leads; 0: a port that the kernel draws */
    bool allow_unsafe;               /* Redis: struct rdzv_home_options */
    int64_t max_lag_ms;              /* likewise */
    int home_fd;                  /* to those who touch a shared folder (common/rdzv/homes/home_process.h); 0: none */
    const struct home_host *list; /* of hosts; list_count 0: there is none */
    int list_count;
    bool list_is_daemons;   /* as is known without asking them */
    const char *list_unfit; /* why the list cannot be one of hosts; "" or NULL: it can */
    bool hosts_own_seat;    /* whatever the name of that host means here */
    const char *run_id;
    /* as the home understands it: "10.0.0.5:29400", "[::1]:29400", "redis://...", "file:///dir"; NULL: local */
    const char *endpoint;
    const char *token_file; /* secrets for the challenge (common/auth/auth.h), NULL: the user's own */
    bool insecure;          /* a server that proves nothing will do */
    /* What the users of two nodes with different secrets can do, as lines behind a sentence. host: the other node.
     * take: this node gets its secret, else it gets ours. Kept until the next call with that `take`. */
    const char *(*secret_help)(void *arg, const char *host, bool take);
    void (*tell)(void *arg, const char *text); /* what the user should know, a sentence or more */
    /* Where this node hosts or leads: one of that address holds another secret and was turned away. NULL: nobody
     * listens. */
    void (*stranger)(void *arg, const char *host);
    bool tls; /* tcp: TLS, whose certificates are those of tls_ca (NULL: the system's) */
    const char *tls_ca;
    const char *node;  /* id of this node: host name first, so that ids sort as hosts do */
    const char *addr;  /* address other nodes reach it by; NULL: the source address of its connection */
    const char *addrs; /* all its addresses, comma-separated */
    const char *role;
    struct rdzv_past past; /* local, in a dead host's place */
    struct jobs *jobs;     /* local: the jobs that this crun hosts for others too; NULL: its own, of this node alone */
    int slots, node_rank;  /* node_rank -1: not numbered */
    bool waits, numbered;  /* as in struct rdzv_event */
    /* The port where the bootstrap store for the next round listens; asked before each JOIN. < 0: failed. */
    int (*store_port)(void *arg);
    void (*on_news)(void *arg, const struct rdzv_news *news);
    /* On group rank 0, before its NEWS_ROUND: every address of every member. */
    void (*on_members)(void *arg, const char *addrs);
    void (*on_progress)(void *arg, const struct rdzv_progress *p);
    /* Kill the workers now; then join() again. why "": on_failed follows, and says it. */
    void (*on_fence)(void *arg, const char *why);
    /* Until when workers may run, as a clock_ms() time; 0: none run. Called whenever it moves, so that somebody else
     * can kill the workers where this process is stopped or hangs (guardian_lease()). NULL allowed. */
    void (*on_lease)(void *arg, int64_t until_ms);
    /* The longest time since then (clock_ms()) in which this process stood still; NULL: not known. */
    int64_t (*still_ms)(void *arg, int64_t since_ms);
    /* This node cannot take part (refused, unreachable): end. */
    void (*on_failed)(void *arg, int exit_code, const char *why);
    /* The connection that stands for this node, of which the guardian keeps a duplicate; -1: none. */
    void (*on_socket)(void *arg, int fd);
    /* A question to this node (reference/rendezvous-protocol.md), a record; NULL: it answers none. */
    void (*on_asked)(void *arg, const char *record);
    /* On group rank 0: other members whose RDZV.ALIVE reached our bootstrap store within silence_ms. */
    int (*majority)(void *arg);
    void *arg;
};

struct rdzv_client_ops {
    const char *name;
    /* Strings are borrowed until close(). Returns before anything is connected: failures come through on_failed. */
    int (*open)(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e);
    int (*join)(struct rdzv_client *c, struct err *e); /* ready for the next round: none of our workers is left */
    int (*fail)(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e);
    int (*done)(struct rdzv_client *c, struct err *e);
    /* why: it cannot start its workers, and the job fails with that if too few nodes are left; NULL: in good order. */
    int (*leave)(struct rdzv_client *c, const struct rdzv_cause *why, struct err *e);
    /* "step=12 images_per_s=310 loss=2.3", for status pages; may be lost. */
    int (*report)(struct rdzv_client *c, const char *fields, struct err *e);
    int (*answer)(struct rdzv_client *c, uint64_t id, const char *text, struct err *e); /* to a question; may be lost */
    /* The failure report of the job that is over, for the same. NULL: nobody keeps it. */
    int (*publish)(struct rdzv_client *c, const char *text, struct err *e);
    bool (*is_answered)(const struct rdzv_client *c); /* that was; or it never will be. NULL with publish */
    /* Over a shared home: the server while this node leads, else NULL. NULL: never */
    struct hosting *(*hosting)(const struct rdzv_client *c);
    void (*close)(struct rdzv_client *c); /* NULL allowed; no callback after it */
};

struct rdzv_client {
    const struct rdzv_client_ops *ops; /* first member of every home's struct */
    struct rdzv_past past;             /* clients behind a connection, and local ones */
};

extern const struct rdzv_client_ops rdzv_client_local_ops, rdzv_client_tcp_ops, rdzv_client_elected_ops,
    rdzv_client_listed_ops;

#endif
