/* The inside of the client of a rendezvous behind a connection: rdzv_client_tcp.c (the agent's calls, and the clock),
 * rdzv_tcp_link.c (the life of the connection), rdzv_tcp_ask.c (requests), rdzv_tcp_talk.c (answers), rdzv_tcp_alive.c
 * (whether the round goes on without its daemon).
 *
 * The life of it:
 *   - join(): dial, prove who we are, JOIN, then NEXT again and again, each held for a heartbeat: it answers when there
 *     is news;
 *   - NEWS_ROUND is taken only as the answer to a NEXT that was asked after JOIN, and while that asking is younger than
 *     silence_ms.
 * What goes wrong, and what is done:
 *   - the connection is lost, or an answer does not come: it is given up with a reset, and dialled again with growing
 *     pauses. The new one begins with what was claimed last (JOIN, FAIL, DONE, LEAVE), else with NEXT and the newest
 *     sequence number;
 *   - nothing heard until the lease (rdzv_lease.h) is over, or refused as unknown: on_fence, then nothing is sent until
 *     join();
 *   - the process was stopped: every callback looks at the clock before anything else;
 *   - it has lost its memory of the job, or another one is there: on_fence, and the JOIN that follows brings what this
 *     node knows of the job (struct rdzv_past);
 *   - refused for good, or out of reach for connect_ms with no workers running: on_failed. */
#ifndef CRUN_LAUNCHER_RDZV_TCP_H
#define CRUN_LAUNCHER_RDZV_TCP_H

#include <hiredis/hiredis.h>
#include <stdbool.h>

#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "common/base/choice.h"
#include "launcher/rendezvous/rdzv_client.h"
#include "launcher/rendezvous/rdzv_conn.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/rendezvous/rdzv_lease.h"

#define TCP_PROGRESS_MS 1000
#define TCP_ASKED_MAX 32 /* requests without an answer; more is a peer that does not answer */

/* What this node is to the rendezvous. */
#define TCP_MODES(X)                                                                                                   \
    X(TCP_NEW, "new")         /* before the first join() */                                                            \
    X(TCP_JOINING, "joining") /* no workers; wants a round, or waits as a spare */                                     \
    X(TCP_RUNNING, "running") /* has a round; workers may be there */                                                  \
    X(TCP_DONE, "done")       /* all workers exited 0 */                                                               \
    X(TCP_FENCED, "fenced")   /* workers are being killed; nothing is sent until join() */                             \
    X(TCP_OVER, "over")       /* END or on_failed was reported */

enum tcp_mode { TCP_MODES(CHOICE_ID) };

enum tcp_ask { ASK_JOIN, ASK_NEXT, ASK_FAIL, ASK_DONE, ASK_LEAVE, ASK_REPORT, ASK_STATUS };

struct tcp_asked {
    enum tcp_ask what;
    int64_t at;   /* when it was sent */
    int64_t due;  /* when its answer is overdue */
    bool joining; /* sent after join() */
};

struct tcp_alive {
    uv_timer_t tick;
    bool on;
    struct dial *dial;
    struct rdzv_conn *conn;
    bool ready, waiting;
    int64_t asked;
};

struct tcp {
    struct rdzv_client base;
    struct rdzv_client_options o;
    uv_loop_t *loop;
    struct endpoint to;
    struct auth_tokens tokens;
    struct tls_context *tls;
    int open_handles;
    bool closing;

    /* the connection */
    struct dial *dial;
    int64_t dial_begun;
    struct rdzv_conn *conn;
    bool up;           /* proved; requests may be sent */
    int64_t greet_due; /* when it must be up */
    int64_t away;      /* since when the rendezvous is out of reach, 0: it is not */
    int64_t pause_ms;  /* before the next dial */
    unsigned rng;
    char why[512]; /* it is out of reach */
    bool stranger; /* somebody else is there */
    uv_timer_t clock, retry;
    int64_t clock_due;   /* 0: not armed */
    int64_t progress_at; /* of the last one */
    struct tcp_asked asked[TCP_ASKED_MAX];
    unsigned asked_first, asked_last;
    bool next_open;    /* a NEXT has no answer yet */
    struct buf report; /* goes with the next NEXT; empty: none waits */

    /* what was announced and claimed */
    enum tcp_mode mode;
    bool join_sent;        /* ever */
    bool joined;           /* the JOIN of this joining is acknowledged */
    uint64_t joined_round; /* that it named */
    bool failing;          /* FAIL is to be sent again on a new connection */
    struct rdzv_cause cause;
    struct rdzv_cause why_leaving;
    bool leaving, parting; /* LEAVE is sent; while workers ran, so that JOIN must follow */
    uint64_t seq, round;
    struct buf members;   /* addresses of members, as far as their pages have come */
    uint64_t members_seq; /* of the news that they come with */
    int members_from;     /* the group rank that the next page begins with; 0: none is awaited */
    int group_rank, group_world;
    struct endpoint leader;
    struct lease lease;
    struct tcp_alive alive;
};

/* rdzv_client_tcp.c */
int64_t tcp_check(struct tcp *t); /* the clock, before anything else: fences when the lease is over; returns the time */
void tcp_arm(struct tcp *t);
void tcp_lease_moved(struct tcp *t);
void tcp_fence(struct tcp *t, const char *why);
void tcp_fail(struct tcp *t, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* rdzv_tcp_link.c */
void tcp_dial(struct tcp *t);
void tcp_give_up(struct tcp *t, const char *why); /* the connection; dials again */
void tcp_again(struct tcp *t);                    /* dial, or send what must be sent, after a pause */
void tcp_reached(struct tcp *t);                  /* it answered */
bool tcp_waits_to_reach(const struct tcp *t);     /* and people want to know */
int64_t tcp_left_ms(const struct tcp *t);         /* until it is given up; 0: not known */
void tcp_still_out_of_reach(struct tcp *t);       /* report the progress */

/* rdzv_tcp_ask.c */
void tcp_greet(struct tcp *t); /* the first words on a new connection, or of a new joining */
void tcp_say(struct tcp *t, enum tcp_ask what);
int tcp_keep_report(struct tcp *t, const char *fields); /* for the next NEXT, in place of one that still waits */
void tcp_say_failure(struct tcp *t, const char *text);

/* rdzv_tcp_talk.c */
void tcp_on_reply(struct tcp *t, const redisReply *r);
void tcp_end(struct tcp *t, const struct rdzv_news *news);
void tcp_progress(struct tcp *t, const struct rdzv_progress *p); /* at most once a second */

/* rdzv_tcp_alive.c */
void tcp_alive_start(struct tcp *t);
void tcp_alive_stop(struct tcp *t);

#endif
