/* The shell around the client of a rendezvous behind a connection (common/rdzv/client/client.h): rdzv_client_tcp.c has
 * its clock, its dialling and its connection, rdzv_tcp_list.c chooses among several addresses, rdzv_tcp_alive.c asks
 * whether the round goes on without its daemon. */
#ifndef CRUN_LAUNCHER_RDZV_TCP_H
#define CRUN_LAUNCHER_RDZV_TCP_H

#include <stdbool.h>

#include "common/auth/auth.h"
#include "common/rdzv/client/client.h"
#include "launcher/rendezvous/deadline_timer.h"
#include "launcher/rendezvous/rdzv_client.h"
#include "launcher/rendezvous/rdzv_conn.h"
#include "launcher/rendezvous/rdzv_dial.h"

struct host_question;

struct tcp_alive {
    uv_timer_t tick;
    bool on;
    struct dial *dial;
    struct rdzv_conn *conn;
    bool ready, waiting;
    int64_t asked;
    int group_rank, group_world; /* of the newest round */
    struct endpoint leader;
};

/* Of several addresses. */
struct tcp_list {
    char state[33];                            /* which state the first that took this node keeps; "": not known */
    int64_t unheard[DIAL_LIST_MAX];            /* when it accepted and did not answer; 0: never */
    char met[33];                              /* the state that another one names */
    int64_t met_at;                            /* since when it does; 0: none does */
    int met_by;                                /* index of that one */
    struct host_question *asks[DIAL_LIST_MAX]; /* what the others say now */
    int outside;                               /* so often in a row a leader was named that is not in the list */
    char outsider[900];                        /* what is said of it */
};

/* Where the leader is elected: what its client asks. NULL: it has one address for good. */
struct tcp_seeker {
    void (*seek)(void *arg, bool refused); /* only queues, as acked does */
    void (*acked)(void *arg);
    void (*told)(void *arg, const struct rdzv_news *news); /* NULL: nobody wants to know */
    bool listed; /* its client has a list of hosts, among which others choose */
    void *arg;
};

struct tcp {
    struct rdzv_client base;
    struct rdzv_client_options o;
    uv_loop_t *loop;
    struct client c;
    bool applying;                     /* its effects */
    struct endpoint to[DIAL_LIST_MAX]; /* daemons that share their state, one of which leads; or one */
    int to_count, at;                  /* at: the one that is dialled first, or that answered */
    struct tcp_list list;
    struct auth_tokens tokens;
    struct tls_context *tls;
    struct tcp_seeker seeker;
    int open_handles;
    bool closing;
    struct dial_list *dial;
    struct rdzv_conn *conn;
    bool has_socket; /* the connection stands for this node, as was said */
    struct deadline_timer clock;
    struct tcp_alive alive;
};

void tcp_step(struct tcp *t, struct client_event ev); /* and all that follows */

/* With a seeker, whose ops stand in front of this client's; then tcp_address() says whom to dial, tcp_trouble() why
 * there is nobody. */
int tcp_open(struct tcp **ret, uv_loop_t *loop, const struct rdzv_client_options *o, const struct rdzv_client_ops *ops,
             const struct tcp_seeker *s, struct err *e);
void tcp_address(struct tcp *t, const struct endpoint *to, const char *where, const char *epoch, const char *seen);
void tcp_trouble(struct tcp *t, const char *why);
/* What is behind the seeker are daemons: dial them, from now on without it. state: the one they keep, "": not known. */
void tcp_go_direct(struct tcp *t, const struct endpoint *to, int n, const char *state);

bool tcp_is_on_this_host(int fd); /* both ends have the same address: nobody stands between them */

/* The agent's calls, for tables of ops: all but open, join and close are the same with and without a seeker. */
int tcp_join(struct rdzv_client *c, struct err *e);
int tcp_fail(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e);
int tcp_done(struct rdzv_client *c, struct err *e);
int tcp_leave(struct rdzv_client *c, const struct rdzv_cause *why, struct err *e);
int tcp_report(struct rdzv_client *c, const char *fields, struct err *e);
int tcp_answer(struct rdzv_client *c, uint64_t id, const char *text, struct err *e);
int tcp_publish(struct rdzv_client *c, const char *text, struct err *e);
bool tcp_is_answered(const struct rdzv_client *c);
void tcp_close(struct rdzv_client *c);
#define TCP_CALLS                                                                                                      \
    .fail = tcp_fail, .done = tcp_done, .leave = tcp_leave, .report = tcp_report, .answer = tcp_answer,                \
    .publish = tcp_publish, .is_answered = tcp_is_answered

/* rdzv_tcp_list.c */
void tcp_list_unheard(struct tcp *t); /* the one that was dialled accepted, and does not answer */
/* The one that is dialled said STANDBY: text. Returns what to make of it. */
const char *tcp_list_turn(struct tcp *t, const char *text);
/* It keeps another state than the one before: then the others are asked, and this reply counts for nothing. */
bool tcp_list_is_other_state(struct tcp *t, const redisReply *r);
void tcp_list_close(struct tcp *t);

/* rdzv_tcp_alive.c */
void tcp_alive_start(struct tcp *t);
void tcp_alive_stop(struct tcp *t);
void tcp_alive_note(struct tcp *t, const struct rdzv_news *round);

#endif
