/* Jobs whose nodes dial whoever leads: the shipped client, jobs and leader of each node under one virtual clock. What
 * is simulated here: nodes' clocks (1 % apart), their network (delays, cuts, refusals, connections that break), agents
 * that stand still or die, workers that take their time to stop. Whom a node dials, and when it serves, is another
 * machine's to say (elect.c, listed.c: struct world_ops). Rules: no two rounds have workers at once; once all is healed
 * every node that lives works in one round within a minute. */
#ifndef CRUN_TESTS_MEMBERS_H
#define CRUN_TESTS_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rdzv/client/client.h"
#include "common/rdzv/client/election.h"
#include "common/rdzv/client/hosts.h"
#include "rendezvousd/jobs/jobs.h"

enum {
    NODES = 5,
    CONNS = 400,
    MESSAGES = 4096,
    FAULTS_MS = 60000,
    LIVE_MS = 60000, /* after the last fault */
    HEARTBEAT_MS = 1000,
    SILENCE_MS = 3000,
    KILL_MS = 1000,
    GRACE_MS = 6000, /* that workers may take to stop */
};
#define NEVER INT64_MAX

enum message_kind {
    M_DIAL,
    M_REQUEST,
    M_REPLY,
    M_CLOSED,
    M_RESET,
    M_HOME, /* from here on not of connections: to the home, */
    M_ANSWER,
    M_KEEPER,   /* to the thread that asks the home: a call, or the answer of an API */
    M_QUESTION, /* to a host of the list */
    M_HEARD,
};
enum home_asked { H_LOOK, H_CLAIM, H_LOAD, H_APPEND, H_RENEW, H_RELEASE };

struct message {
    int64_t at;
    uint64_t order;
    enum message_kind kind;
    int conn, node;
    unsigned life; /* of the node it is for */
    int error;     /* DIAL */
    bool proved;   /* CLOSED: all processes of the node are dead */
    /* REQUEST */
    enum client_ask what;
    uint64_t seq, round, got;
    int64_t hold;
    int from;
    char epoch[RDZV_EPOCH_MAX + 1], seen_epoch[RDZV_EPOCH_MAX + 1];
    /* REPLY */
    enum client_reply_kind reply;
    char *text; /* REQUEST, REPLY, HOME (decision), ANSWER (log) */
    /* HOME, ANSWER */
    enum home_asked call;
    struct rdzv_claim seen, own;
    uint64_t number;
    int64_t sent; /* on the node's clock */
    int rc;
    bool whole;
    char identity[RDZV_IDENTITY_MAX + 1];
    /* QUESTION, HEARD */
    int host;
    unsigned question;
    enum hosts_answer answer;
    int seats;
    uint64_t last;
};

struct conn {
    bool used, client_open, server_open;
    int client, server;
    unsigned client_life, server_life;
    struct jobs_party *party;
    int64_t to_server, to_client; /* newest arrival: it is a stream */
    bool blocked;                 /* a NEXT waits */
    int64_t blocked_until;        /* on the server's clock */
};

struct append {
    uint64_t number;
    char *text;
    char epoch[RDZV_EPOCH_MAX + 1];
    bool whole;
};

struct node {
    int index;
    bool alive, over;
    unsigned life;
    char id[RDZV_ID_MAX + 1];
    int64_t offset, rate; /* clock: offset + now * (1 + rate / 10000) */
    int64_t paused_from, paused_until, born_at;
    struct client c;
    int conn;    /* -1 */
    int address; /* which node it dials */
    uint64_t dials;
    /* workers; true times */
    bool works;
    uint64_t work_round;
    char work_instance[RDZV_INSTANCE_MAX + 1];
    int64_t dead_at;     /* they are being killed, or stop */
    int64_t lease_until; /* on its clock; 0: none */
    bool join_due;
    /* leading, hosting */
    struct jobs *jobs;
    unsigned serving;               /* counts its terms */
    bool pumping, applying, inside; /* inside: a call of its jobs */
    unsigned ev_first, ev_last;
    /* with a list of hosts */
    struct hosts h;
    unsigned question; /* the newest */
    struct hosts_event hosts_events[64];
    /* over a home */
    struct election x;
    struct election_event events[64];
    struct rdzv_home home;
    char *log;
    char identity[RDZV_IDENTITY_MAX + 1];
    struct append queue[256];
    unsigned queue_first, queue_last;
    bool append_out;
    int64_t append_at; /* its clock */
    char higher[RDZV_EPOCH_MAX + 1];
    /* a daemon */
    struct state_shared *log_of_jobs;
    bool writes, had_term, leaving; /* its decisions go to the home; it has led; it hands over, to end then */
    int64_t probe_at;
};

struct members_stats {
    uint64_t events, rounds, terms, releases, higher, kills, pauses, cuts, outages, wipes, failovers, lost_replies,
        fences;
};

struct world;

struct world_ops {
    void (*set_up)(struct world *w);                             /* draws how many nodes there are; then settle() */
    void (*born)(struct world *w, struct node *n);               /* its machine begins */
    void (*away)(struct world *w, struct node *n, bool refused); /* as CLIENT_SEEK, CLIENT_ACKED */
    void (*acked)(struct world *w, struct node *n);
    void (*ranked)(struct world *w, struct node *n, int rank); /* NULL: nobody cares */
    void (*pump)(struct world *w, struct node *n);             /* what its machine has not heard yet */
    void (*tick)(struct world *w, struct node *n);
    int64_t (*deadline)(const struct node *n);          /* of the next tick, on its clock */
    void (*deliver)(struct world *w, struct message m); /* that is not of a connection */
    void (*fault)(struct world *w);                     /* may say when the next one is: w->next_fault */
    void (*heal)(struct world *w);                      /* NULL: nothing else */
};

struct world {
    const struct world_ops *ops;
    uint64_t seed, rng, order;
    int64_t now, faults_end, next_fault;
    bool trace, listed, cuts_last;
    double late; /* share of messages that are late, by up to */
    int64_t late_ms;
    int nodes, min, max, hosts;
    int daemons; /* the first so many are no nodes of the job, but daemons that nodes dial: one after the other */
    struct node n[NODES];
    struct conn conns[CONNS];
    struct message m[MESSAGES];
    int messages;
    int64_t cut_until[NODES][NODES];    /* both ways */
    int64_t refuse_until[NODES][NODES]; /* dials */
    char **arena;
    size_t arena_n, arena_cap;
    struct rdzv_config config;
    struct members_stats *st;
    struct err *e;
    int broken;
};

extern struct world *W; /* jobs ask for the time without an argument */
extern struct node *running;

/* One schedule in a world of zeros. 0, or ERR_CORRUPT with the rule that broke. */
int members_run(struct world *w, const struct world_ops *ops, uint64_t seed, int kind, bool trace,
                struct members_stats *total, struct err *e);
void settle(struct world *w); /* settings and nodes, when their numbers are known */

uint64_t draw(struct world *w);
int64_t between(struct world *w, int64_t lo, int64_t hi);
bool chance(struct world *w, double p);
bool faulty(const struct world *w);
void broken(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void note(const struct world *w, const struct node *n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int64_t clock_of(const struct node *n);
int64_t clock_now(void); /* of the node that runs */
bool awake(const struct node *n);
char *keep(struct world *w, const char *p, size_t n); /* a copy, until the end */

struct message *post(struct world *w, enum message_kind kind, int64_t at);
int64_t delay(struct world *w); /* when a message of now arrives */
bool is_cut(const struct world *w, int a, int b);
void client(struct world *w, struct node *n, struct client_event ev);
void stop_serving(struct world *w, struct node *n, bool tell);

static inline bool is_daemon(const struct world *w, const struct node *n)
{
    return n->index < w->daemons;
}

void die(struct world *w, struct node *n, bool proved);
void cut(struct world *w, int a, int b, int64_t until, bool refuse);
void cut_from_all(struct world *w, const struct node *n, int64_t until);
void pause_node(struct world *w, struct node *n, int64_t from, int64_t until);
void fail_worker(struct world *w, struct node *n);

#endif
