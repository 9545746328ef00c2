/* The inside of the server and of its connections, for the modules of which it consists: fronts (RESP, TCPStore),
 * gate, spaces, commands. */
#ifndef CRUN_RENDEZVOUSD_SERVER_IMPL_H
#define CRUN_RENDEZVOUSD_SERVER_IMPL_H

#include "rendezvousd/net/front.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/net/many.h"
#include "rendezvousd/net/server.h"
#include "rendezvousd/net/turn.h"
#include "rendezvousd/resp/reply.h"
#include "rendezvousd/resp/request.h"
#include "rendezvousd/store/keyspace.h"
#include "rendezvousd/store/waiters.h"

#define CLIENT_NAME_MAX 63
#define READ_BYTES (64 * 1024)

struct listener; /* listen.c */

/* A key-space and its waiters. Connections hold references; the server holds one to its default space. */
struct space {
    struct keyspace *keys;
    struct waiters *waiters;
    struct conn *holder;     /* the client whose request holds the keys (many.h); NULL: none */
    struct conn *line;       /* clients that wait for it, in order */
    bool wake_one;           /* a new key wakes no waiter by itself: the creator calls waiters_created_one() */
    int64_t expiry_ms;       /* when the server's timer looks for expired keys; INT64_MAX: never */
    struct server *expiring; /* the server in whose list `expiring` it is */
    struct space *prev, *next;
    struct barrier *barriers; /* who waits in TCPStore's BARRIER (tcpstore_barrier.c) */
    uint64_t changes;         /* requests that changed keys */
    size_t readers;           /* connections of TCPStore that were given one */
    size_t refs;
};

/* What a connection may do: decided by the gate (gate.h) when it connects, raised by authentication. */
enum trust {
    TRUST_NONE,  /* only commands marked COMMAND_OPEN, until it authenticates */
    TRUST_STORE, /* the keys of its space */
    TRUST_FULL,  /* everything */
};

/* How a connection ended, as far as this side can tell. */
enum conn_end {
    END_NONE,
    END_OF_FILE, /* the peer closed in good order: every process that held its socket is gone, or has closed it */
    END_RESET,   /* broken; proves nothing */
    END_OURS,    /* this side closed it */
};

/* What a connection is blocked in. These functions are called when the wait ends; the connection is unblocked
 * already. */
struct blocked_ops {
    void (*timeout)(struct conn *c, void *arg); /* its time is over: reply */
    void (*forget)(struct conn *c, void *arg);  /* the connection goes: no reply */
    void (*interrupt)(struct conn *c,
                      /* the client's next request is here: reply, and that request goes on. NULL: it must wait */
                      void *arg);
};

/* What a connection's one timer stands for. */
enum conn_timer {
    TIMER_NONE,
    TIMER_REQUEST, /* an unfinished request must be complete by then */
    TIMER_BLOCKED, /* the wait that the client is blocked in ends */
    TIMER_AUTH,    /* it must have authenticated by then */
    TIMER_LINGER,  /* the client must have read its last replies by then */
};

/* Fields that each request needs come first, after the handle; rarely used ones come last: with a thousand
 * connections each cache line that a request touches must come from main memory. */
struct conn {
    struct server *s;
    uv_tcp_t tcp;
    const struct front *front; /* NULL until the first byte */
    void *front_state;
    struct space *space;
    struct reply reply; /* being filled */
    enum trust trust;
    enum conn_timer timer_kind;
    bool writing, reading;
    bool last_words; /* close once all replies are written; execute no further request */
    bool closing;
    bool ready;                             /* in s->ready */
    bool busy;                              /* in s->turns.busy */
    bool unsent;                            /* in s->unsent */
    bool yields;                            /* other requests go first (many.h) */
    struct tls_stream *tls;                 /* NULL: plain */
    bool (*work)(struct conn *c);           /* the rest of its last request; called until it returns true; NULL: none */
    const struct blocked_ops *blocked;      /* NULL: not blocked */
    struct rdzv_conn *rdzv;                 /* its state as a party of a job (command_rdzv_party.c); NULL: it is none */
    struct conn *unsent_prev, *unsent_next; /* in s->unsent */
    size_t charged;                         /* bytes of its buffers in s->buffer_bytes */
    int64_t active_ms;                      /* the loop's time of its last command */
    const char *last_command;               /* NULL: none yet */
    struct buf flying;                      /* being written */
    struct buf sealed;                      /* TLS records to be written */

    size_t flown; /* bytes of `flying` gone already */
    uv_write_t write;
    uv_timer_t timer;
    const char *principal;  /* borrowed from the gate, NULL: not authenticated */
    struct gate_peer *peer; /* the gate's own */
    int held_by;            /* number of holders of the struct: conn.c */
    enum conn_end end;
    void *blocked_arg;
    void (*on_close)(struct conn *c); /* called once when the connection closes; c->end says how; NULL: nothing to do */
    int64_t since_ms;                 /* the loop's time: accepted */
    uint64_t id;
    char name[CLIENT_NAME_MAX + 1];
    struct many many;
    struct conn *prev, *next;                 /* in s->conns */
    struct conn *ready_prev, *ready_next;     /* in s->ready */
    struct conn *busy_prev, *busy_next;       /* in s->turns.busy */
    struct conn *written_prev, *written_next; /* in s->written, while writing */
    size_t write_left; /* bytes of its write at the last look; how many looks since found the same */
    int idle_looks;
};

struct server {
    uv_loop_t *loop;
    struct server_options o;      /* no zeroes: defaults are filled in */
    struct space *space;          /* the default one */
    struct peer_list *members;    /* see server_set_members() */
    struct named_space *spaces;   /* of principals and jobs (spaces.h) */
    struct share *shares;         /* what each principal's take of .memory */
    struct keyspace_total memory; /* of all key-spaces */
    struct waiter *remains;       /* of waiters in any of them (waiters_sweep()) */
    struct listener *listeners;
    uv_timer_t accept_timer; /* runs while listeners rest */
    uv_tcp_t away;           /* accepts and closes a client for which there is no memory */
    bool turns_away;         /* `away` is a handle of the loop */
    struct conn *conns;
    struct conn *ready;  /* woken connections: they go on when the request that woke them is answered */
    struct conn *unsent; /* connections whose replies are written before the loop sleeps */
    size_t unsent_count;
    struct turns turns;
    struct conn *written;   /* connections with writes that wait for the client to read */
    uv_timer_t write_timer; /* looks at these; runs while there are any */
    struct space *expiring; /* those with keys that expire */
    uv_timer_t expiry_timer;
    int64_t expiry_ms;                    /* when it fires; INT64_MAX: not at all */
    struct jobs *jobs;                    /* borrowed; NULL: this server hosts no rendezvous */
    const struct server_standby *standby; /* borrowed; NULL: it always leads */
    struct rdzv_door *door;               /* with jobs */
    int uid_asker;                        /* of peer_uid() */
    size_t clients, open_handles;
    size_t buffer_bytes; /* of all connections */
    uint64_t connections, refused;
    int64_t started_ms;
    bool closing;
    void (*done)(void *arg);
    void *done_arg;
    char read_bytes[READ_BYTES]; /* shared: each read is used up in its callback; last, because it is not cleared */
};

/* server.c */
void server_handle_closed(struct server *s);

/* listen.c */
void server_accept_waiting(struct server *s); /* accept clients that had to wait, as far as there is room now */
void listeners_close(struct server *s);

/* space.c */
int space_create(struct space **ret, struct server *s, size_t max_bytes); /* with one reference; -ENOMEM */
struct space *space_hold(struct space *sp);
void space_release(struct space *sp); /* the last one destroys it; NULL allowed */
/* Give the key-space the loop's time before its keys are used. The time does not advance while a request holds the
 * keys. */
void space_tick(struct space *sp, const struct server *s);
void space_expect_expiry(struct space *sp,
                         struct server *s); /* after each request: set the timer if a key expires sooner now */
void space_expire(struct server *s);        /* called by the timer: delete expired keys, for a turn, and set it again */

/* command_rdzv_party.c */
void rdzv_conn_gone(struct conn *c); /* the connection closes, and its party ends */
void server_close_door(struct server *s);

/* conn.c */
/* Accept a client. -ENOMEM: there is not even memory to accept it. */
int conn_accept(struct server *s, uv_stream_t *listener);
void conn_close(struct conn *c);
void conn_finish(struct conn *c);                      /* close when present writes are done, within 1 s */
void conn_trusted(struct conn *c);                     /* it has authenticated: its time limit ends */
void conn_use_space(struct conn *c, struct space *sp); /* from now on; not while blocked */

/* Execute no further request of this client until conn_wake(), or until an end that ops report. timeout_ms < 0: no
 * limit. */
void conn_block(struct conn *c, const struct blocked_ops *ops, void *arg, int64_t timeout_ms);
/* The reply is in c->reply: unblock. The connection goes on (its reply is written, its next requests are executed)
 * when the request that woke it is answered. */
void conn_wake(struct conn *c);
/* turn.c: continue all woken connections until the turn is over. Call it after what woke them, outside of any
 * request. */
void conn_drain_ready(struct server *s);

/* command.c */
/* Execute one request into c->reply (or block c). False: another client holds the keys now (many_waits()). */
bool command_execute(struct conn *c, const struct request *rq);

#endif
