/* The parts of a simulated job: world (clock, network), faults, host (what a daemon does around the leader) and its
 * disk, agents, rules. */
#ifndef CRUN_TESTS_SIM_IMPL_H
#define CRUN_TESTS_SIM_IMPL_H

#include "common/base/buf.h"
#include "common/rdzv/leader/rdzv_reign.h"
#include "tests/sim/sim.h"
#include <stdbool.h>

#define NODES_MAX 64   /* at a time */
#define AGENTS_MAX 160 /* in all */
#define MESSAGES_MAX 16384
#define RESTARTS_MAX 256
#define ENDED_MAX 16
#define NEVER INT64_MAX

enum request { ASK_HEARTBEAT, ASK_JOIN, ASK_FAIL, ASK_DONE, ASK_LEAVE, TELL_GONE, TELL_LOST };

enum answer { ANSWER_OK, ANSWER_FENCED, ANSWER_REFUSED, ANSWER_DIFFERS };

/* What an agent needs of its news. */
struct told {
    uint64_t seq, round; /* seq 0: nothing */
    enum rdzv_news_kind kind;
    bool spare;
    int restarts;
    char instance[LEADER_INSTANCE_LEN + 1]; /* of the node, with or without news */
};

struct message {
    int64_t sent; /* on the agent's clock */
    int agent;
    bool to_agent;
    enum request ask;
    unsigned life; /* of the host it is sent to */
    uint64_t round;
    int restarts;
    uint64_t seen_seq; /* of news; in the answer to a JOIN: those above came with it */
    /* to_agent */
    enum answer answer;
    int64_t acked_send; /* on the agent's clock */
    struct told news;   /* from an agent: the instance it is of */
};

/* A message under way, or a free place. */
struct flight {
    int64_t at;
    uint64_t order; /* of those due at once */
    int slot;
};

enum agent_mode { AGENT_UNBORN, AGENT_JOINING, AGENT_WAITING, AGENT_WORKING, AGENT_ENDED, AGENT_DEAD };

/* Times are on its own clock, world time + skew, where nothing else is said. */
struct agent {
    char id[RDZV_ID_MAX + 1];
    char role[8];
    int slots, node_rank;
    enum agent_mode mode;
    int64_t skew;
    uint64_t seen_seq, told_round;
    int restarts;          /* that it heard of, and one more if its round broke with its rendezvous */
    int64_t acked_send;    /* when the newest request that was answered was sent: the agent's lease counts from here */
    int64_t answered_send; /* the same, refusals included */
    int64_t asked_join;    /* its newest JOIN: what an older one was answered came by an older connection */
    int64_t joining_since; /* a refusal of anything asked before is old news */
    int64_t next_ask;      /* heartbeat or repetition */
    bool workers;          /* alive; they progress until killed_at */
    uint64_t worker_round;
    char instance[LEADER_INSTANCE_LEN + 1];        /* it has joined; "": none yet */
    char worker_instance[LEADER_INSTANCE_LEN + 1]; /* its workers' */
    bool bye;                                      /* it is told that all its processes are gone */
    int64_t finish_at;                             /* all workers exit 0 */
    int64_t killed_at;                             /* being stopped: dead from then on */
    bool lost;                                     /* its round, which counts as a restart, once */
    bool lapsed; /* killed because its lease is over; it stays so, whatever is heard later */
    bool failed, done, done_told, leaving;
    bool greets;                    /* it has lost its connection to a daemon that was killed */
    int leaving_code;               /* of LEAVE; 0: in good order */
    int64_t deaf_until, mute_until; /* world time: no message to it, from it passes */
    int64_t paused_until;           /* world time: the whole node stands still */
    bool woke;                      /* from a pause, and has not looked at its lease yet */
    /* the host's side; times on the host's clock */
    bool known, connected, gone;
    uint64_t named_round; /* by its newest JOIN */
    int64_t heard_sent;   /* when its newest message was sent */
    int64_t taken_sent;   /* when the newest one was sent that was not refused: what an answer acknowledges */
    unsigned joined_as;   /* place in the order of first JOINs */
    bool to_tell;         /* its news, when they stand */
    uint64_t told_seq;
    char told_instance[LEADER_INSTANCE_LEN + 1];
};

/* The rules' own account of the job, made from what is told alone. */
struct account {
    uint64_t round;
    int restarts;                                 /* of the job's life */
    int64_t restart_at[RESTARTS_MAX];             /* host's clock */
    int64_t restart_age[RESTARTS_MAX];            /* as the log has it */
    int logged;                                   /* of these ages */
    int counted;                                  /* entries of those */
    int row;                                      /* failures in a row of rounds that lived too short */
    int64_t round_at, not_before, core_logged_at; /* host's clock */
    int order[AGENTS_MAX];                        /* members of the last round that are still known, by rank */
    int order_count;
    int failures[AGENTS_MAX]; /* rounds that each broke and stayed */
    unsigned joins;
};

/* What the rules know, as of a decision: a daemon that is killed goes back to the last one that landed. */
struct books {
    struct account account;
    char instance[LEADER_INSTANCE_LEN + 1];
    bool known[AGENTS_MAX];
    unsigned joined_as[AGENTS_MAX];
};

/* A decision on its way to the disk. */
struct landing {
    int64_t at; /* world time */
    bool whole;
    struct buf text;
    struct books books;
    struct landing *prev, *next;
};

/* The daemon's home: its memory, or a directory. */
struct sim_disk {
    struct rdzv_home home;
    struct world *w;
    struct buf log; /* what has landed */
    struct books books;
    struct landing *landings; /* in this order */
};

struct world {
    uint64_t seed, rng;
    int64_t now, faults_end;
    bool trace, durable, blank, roles, cut_all;
    double loss, repeat, fault_rate, long_delay;
    int64_t next_fault;
    struct rdzv_config config;
    struct rdzv_reign reign;       /* its leader: NULL: the daemon is down, or nobody has joined */
    struct sim_disk disk;          /* its home */
    struct rdzv *rdzv;             /* its machine */
    const struct rdzv_effects *fx; /* of the step at hand */
    char instance[LEADER_INSTANCE_LEN + 1];
    char former[LEADER_INSTANCE_LEN + 1]; /* the first that was brought to it before its first round */
    bool up;
    unsigned life;                                  /* of the host: how often it lost its memory */
    int64_t born;                                   /* when this one began; host's clock */
    int brought;                                    /* restarts that the JOIN at hand brings from another instance */
    char ended[ENDED_MAX][LEADER_INSTANCE_LEN + 1]; /* instances that are over, as far as the host knows; a ring */
    unsigned ended_count;
    int64_t host_skew, host_up_at, host_paused_until;
    int known;     /* nodes */
    int64_t armed; /* host's clock: the earliest date it knew */
    struct agent agents[AGENTS_MAX];
    int64_t wakes[AGENTS_MAX];                /* when each has something to do, world time */
    int agent_count, agent_limit, most_alive; /* limit: alive at a time */
    struct message *slots;                    /* MESSAGES_MAX */
    struct flight *heap;                      /* by time; behind queued: free slots */
    int queued;
    uint64_t sent;
    struct account account;
    uint64_t events;
    struct sim_stats *stats;
    struct err *e;
    int broken;
};

/* sim_world.c */
uint64_t sim_random(struct world *w);
int64_t sim_between(struct world *w, int64_t lo, int64_t hi); /* inclusive */
bool sim_chance(struct world *w, double p);
bool sim_faulty(const struct world *w);
void sim_send(struct world *w, struct message m);
void sim_broken(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct agent *sim_add_agent(struct world *w); /* NULL: there are enough */

/* sim_faults.c */
void sim_fault(struct world *w);
void sim_cease(struct world *w); /* faults that last end now */

/* sim_disk.c */
void sim_disk_open(struct world *w, void (*landed)(void *arg));
void sim_disk_land(struct world *w);    /* what is due */
void sim_disk_go_back(struct world *w); /* to what has landed: the daemon was killed */
void sim_disk_close(struct world *w);

/* sim_host.c */
int64_t sim_host_clock(const struct world *w);
bool sim_is_over(const struct world *w);
void sim_host_open(struct world *w);
void sim_host_close(struct world *w);
void sim_host_kill(struct world *w, int64_t down_ms);
void sim_host_compact(struct world *w);
void sim_host_receive(struct world *w, const struct message *m);
void sim_host_lost(struct world *w, struct agent *a);
void sim_host_drain(struct world *w);
int64_t sim_host_wake(const struct world *w); /* world time */
void sim_host_tick(struct world *w);

/* sim_rules.c */
struct agent *sim_by_id(struct world *w, const char *id);
bool sim_progresses(const struct world *w, const struct agent *a);
void sim_check_alone(struct world *w, const struct agent *a); /* no other round than a's progresses */
void sim_check_step(struct world *w, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before);
void sim_account_logged(struct world *w);
void sim_account_restarted(struct world *w);
void sim_account_compacted(struct world *w);
void sim_account_adopted(struct world *w, int restarts);

/* sim_agent.c */
void sim_agent_born(struct world *w, struct agent *a);
void sim_agent_receive(struct world *w, struct agent *a, const struct message *m);
int64_t sim_agent_wake(const struct world *w, const struct agent *a); /* world time */
void sim_agent_tick(struct world *w, struct agent *a);
void sim_agent_kill_workers(struct world *w, struct agent *a, int64_t within_ms);

#endif
