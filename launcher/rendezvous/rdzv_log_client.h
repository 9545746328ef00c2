/* The inside of the client of a rendezvous in a decision log (common/rdzv/homes/rdzv_home.h), be it in a Redis or in a
 * shared directory: rdzv_client_log.c (the agent's calls, on the loop), rdzv_log_node.c (the thread that is this
 * node), rdzv_log_lead.c (while this node leads).
 *
 * Homes are waited for in threads: one that is this node (a seat: it beats, asks and hears), and, while this node
 * leads, one that runs the machine for all (common/rdzv/leader/rdzv_host.h). The loop's thread gives them requests
 * under a mutex, and is given what was heard by an async. The silence rule is the loop's own: a timer at the end of
 * the lease, whatever the threads wait for. So is the end: what they wait for is cancelled FAREWELL_MS after close().
 *
 * The node's thread also watches the leader's pulse: one that has stood still for silence_ms, or is let go, makes it
 * claim. */
#ifndef CRUN_LAUNCHER_RDZV_LOG_CLIENT_H
#define CRUN_LAUNCHER_RDZV_LOG_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_host.h"
#include "common/rdzv/leader/rdzv_seat.h"
#include "launcher/rendezvous/rdzv_client.h"

#define LOG_CLIENT_PROGRESS_MS 1000

enum log_item_kind { ITEM_NEWS, ITEM_LOST, ITEM_FAILED, ITEM_PROGRESS, ITEM_LOG };

/* What the node's thread has for the loop's. */
struct log_item {
    enum log_item_kind kind;
    struct rdzv_news news;
    char *members;
    struct rdzv_progress progress;
    int code;
    char text[512];
    struct log_item *next;
};

struct log_leader {
    pthread_t thread;
    bool running; /* a thread to join; the node's thread only */
    atomic_bool stop, over;
    struct rdzv_home *home; /* set under the mutex: the loop may cancel it; NULL: none */
    struct rdzv_host_options o;
    char seen[RDZV_EPOCH_MAX + 1];
    int rc;
    struct err e;
};

struct log_client {
    struct rdzv_client base;
    struct rdzv_client_options o;
    uv_async_t async;
    uv_timer_t fence, late;    /* the end of the lease, of the farewell */
    bool closing, works, done; /* the loop's */
    bool joined_once;
    int open_handles;

    pthread_mutex_t mutex;
    pthread_cond_t asked;
    struct rdzv_event asks[SEAT_REQUESTS_MAX];
    int ask_count;
    bool stop, over;
    bool ended;  /* the job is, for this node: it beats on until its workers are gone */
    bool failed; /* it has no part in it: it does not */
    int64_t lease;
    struct log_item *first, **last;
    struct rdzv_home *home; /* the node's; the loop interrupts and cancels it */

    /* the node's thread */
    pthread_t thread;
    struct rdzv_seat seat;
    struct log_leader leader;
    struct rdzv_view view;
    struct buf beat, pulse;
    int64_t pulse_moved, claim_at, heard_at, progress_at, next_beat;
    int64_t leaderless; /* since when this node failed to lead and nobody else does, 0: somebody does */
    bool answered;      /* our first JOIN */
    bool knew_reign;    /* somebody led when we looked before */
    int pause_ms;
};

/* rdzv_client_log.c; any thread */
struct log_item *log_client_item(enum log_item_kind kind); /* NULL: no memory */
void log_client_post(struct log_client *l, struct log_item *item);
void log_client_post_text(struct log_client *l, enum log_item_kind kind, int code, const char *text);
/* ITEM_PROGRESS, at most once a second. left_ms: until it is given up, <= 0: it is not. */
void log_client_post_trouble(struct log_client *l, int64_t now, const char *why, int64_t left_ms);
uint64_t log_client_draw(void *unused); /* as rdzv_host_options.random */
int log_client_open_home(struct log_client *l, struct rdzv_home **ret, struct err *e);
int log_client_start(pthread_t *t, void *(*run)(void *), void *arg);

/* rdzv_log_node.c */
void *log_client_node(void *l);                                        /* the node's thread, until `stop` */
void log_client_fail(struct log_client *l, int code, const char *why); /* this node can have no part */
void log_client_fail_in_time(struct log_client *l, const char *why);

/* rdzv_log_lead.c; the node's thread */
void log_client_watch_leader(struct log_client *l, int64_t now); /* does nobody lead? then claim */
void log_client_end_leading(struct log_client *l, bool now);     /* !now: if its thread has ended */
/* A number of the leader's pulse; 0 if it is not there. */
long long log_client_pulse_number(const struct log_client *l, const char *key);

#endif
