/* The gate: who may connect, and what it may do then.
 *
 * For a peer on this host the uid decides (the kernel knows it), for other peers the address; where that does not
 * suffice, a token:
 *
 *     peer                                      without tokens         with tokens
 *     this host, own uid                        everything             `local` below: must authenticate, or everything
 *     this host, another uid                    refused                must authenticate; refused with own_uid_only
 *     address of a member (server_set_members)  the keys of its space  the same; more once it has authenticated
 *     any other                                 refused                must authenticate
 *
 * With `insecure` everybody may do everything. A peer that must authenticate (a *stranger*) has auth_timeout_ms for it,
 * requests of GATE_REQUEST_MAX bytes, and the commands marked COMMAND_OPEN. If there are max_unauthenticated strangers,
 * or server_options.max_clients connections in all, the oldest stranger that has sent nothing is closed for the next
 * one; first those of a *greedy* source, which has more than half of the strangers: one address, one /64 of IPv6, one
 * user of this host. If all have sent something, the next one waits in the kernel's queue until the oldest has had a
 * second (of a greedy source: 250 ms). Each refused peer makes one log line ("audit: refused peer=... reason=..."); if
 * there are too many, they are counted.
 *
 * One gate may serve several servers; it must outlive them. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_GATE_H
#define CRUN_RENDEZVOUSD_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conn;
struct err;
struct gate;
struct request_arg;
struct server;

#define GATE_REQUEST_MAX 1024
#define GATE_ARGS_MAX 8

struct gate_options {
    const char *token_file; /* path or "fd:N" (common/auth/auth.h); NULL: no tokens, unless own_token */
    bool own_token;    /* without token_file: use the user's own token, ~/.config/crun/token (a server inside crun) */
    bool own_uid_only; /* refuse local peers of another uid, whatever they know */
    bool own_spaces;   /* each principal that has authenticated begins in a key-space of its own */
    bool trust_local;  /* local peers of our own uid need no token; without tokens, they never do */
    /* Principals that may manage everybody's jobs (crun admin), separated by commas; NULL: all that may do
     * everything. */
    const char *operators;
    /* Called when a peer of that address holds another secret than ours, or its connection broke. May be NULL. */
    void (*stranger)(void *arg, const char *host);
    void *arg;
    bool insecure;
    bool plain_auth;                /* allow AUTH and HELLO ... AUTH, which send the secret itself over the network */
    size_t max_unauthenticated;     /* 0: 1000 */
    size_t max_per_address;         /* connections per address, loopback excepted; 0: no limit */
    size_t max_per_principal;       /* 0: all connections; half of them if there are several principals */
    int64_t auth_timeout_ms;        /* 0: 2000 */
    const char *tls_cert, *tls_key; /* PEM; NULL: no TLS */
    const char *tls_client_ca;      /* clients must show a certificate of this authority; NULL: they need none */
    bool tls_only;                  /* plain connections are refused */
};

/* Strings are borrowed until gate_destroy(). ERR_USAGE and others with a sentence: unusable token or TLS files. */
int gate_create(struct gate **ret, const struct gate_options *o, struct err *e);
void gate_destroy(struct gate *g); /* NULL allowed */

/* Read token and TLS files again. On failure the old ones stay. gate_dismiss_removed(), on each server, closes
 * connections of principals that were removed. */
int gate_reload(struct gate *g, struct err *e);
size_t gate_dismiss_removed(struct gate *g, struct server *s); /* how many were closed */

bool gate_has_tokens(const struct gate *g);
const char *gate_own_principal(const struct gate *g); /* of the first token; "local" without */
bool gate_token_was_drawn(const struct gate *g);      /* own_token could not be stored, so no other node can have it */

struct gate_stats {
    uint64_t refused;       /* peers */
    uint64_t authenticated; /* proofs accepted */
    size_t unauthenticated; /* connections that have yet to */
};
void gate_stats(const struct gate *g, struct gate_stats *ret);

/* --- readers over HTTP, which have no struct conn; fd: our end of their connection */

struct auth_token;
/* The principal whose token the reader shows; NULL: none. Borrowed until the tokens are read again. */
const char *gate_reader(const struct gate *g, bool (*shows)(const void *arg, const struct auth_token *t),
                        const void *arg);
/* Does the reader need no token here? Either there are none, and it is on this host with our uid or root's; or
 * nobody needs one. */
bool gate_trusts_reader(const struct gate *g, int fd);
bool gate_is_local_reader(int fd); /* on loopback */
/* The reader showed another secret than ours: count and log it like refused peers. principal: the one that it named,
 * or "". */
void gate_refuse_reader(struct gate *g, int fd, const char *principal);

/* --- for the server itself */

/* May this client connect? NULL: yes, and c->trust and c->principal are set; else the error for its reply. The
 * server may have no gate. Without memory c->peer stays NULL, and the client must be closed at once. */
const char *gate_admit(struct conn *c);
void gate_leave(struct conn *c);                  /* as it closes */
const char *gate_peer_host(const struct conn *c); /* peer_addr.h; until it leaves */
const char *gate_peer_text(const struct conn *c); /* with its port */
/* A client waits for a place. True: there is one, perhaps because a stranger was closed. False: the oldest stranger
 * gets less time, and server_accept_waiting() is called when it is over. */
bool gate_make_room(struct server *s);
int64_t gate_auth_timeout_ms(const struct conn *c);
/* Its timer has fired. > 0: it has more time, because it has sent something, or there is room again. */
int64_t gate_time_left_ms(struct conn *c);
void gate_too_late(struct conn *c); /* its time to authenticate is over: reply */
void gate_refused(struct conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* one audit line */

bool gate_owns_space(const struct conn *c); /* its key-space is its principal's (own_spaces) */
/* c's buffers take so much now. */
void gate_count_buffers(struct conn *c, size_t bytes);
/* Bytes in the buffers of all connections of c's principal; of c alone, if it has authenticated as none. */
size_t gate_buffers(const struct conn *c);
bool gate_is_operator(const struct conn *c);
/* How much of `all` one principal may have, if no option says it. */
size_t gate_fair_share(const struct server *s, size_t all);

/* STORE.AUTH, STORE.PROVE, AUTH: write the answer into c->reply. user may be NULL. */
void gate_challenge(struct conn *c, const struct request_arg *principal, const struct request_arg *nonce);
void gate_prove(struct conn *c, const struct request_arg *proof);
/* True: user and password are right, and the connection is trusted from now on; else c->reply has an error. The
 * caller writes the reply for success. */
bool gate_password(struct conn *c, const struct request_arg *user, const struct request_arg *password);

struct tls_context;
struct tls_context *gate_tls(const struct server *s); /* NULL: no TLS */
bool gate_tls_only(const struct server *s);

#endif
