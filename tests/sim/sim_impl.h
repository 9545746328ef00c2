/* The parts of a simulated job: world (clock, network, faults), host (what a daemon does around the machine), agents. */
#ifndef CRUN_TESTS_SIM_IMPL_H
#define CRUN_TESTS_SIM_IMPL_H

#include "common/rdzv.h"
#include "tests/sim/sim.h"
#include <stdbool.h>

#define AGENTS_MAX 48
#define MESSAGES_MAX 4096
#define NEVER INT64_MAX

enum request { ASK_HEARTBEAT, ASK_JOIN, ASK_FAIL, ASK_DONE, ASK_LEAVE, TELL_GONE };
enum answer { ANSWER_OK, ANSWER_FENCED, ANSWER_REFUSED, ANSWER_OVER };

struct message {
    int64_t at, sent;
    int agent;
    bool to_agent;
    enum request ask;
    uint64_t round;
    /* to_agent */
    enum answer answer;
    int64_t acked_send;
    bool has_news;
    struct rdzv_news news;
};

enum agent_mode { AGENT_UNBORN, AGENT_JOINING, AGENT_WAITING, AGENT_WORKING, AGENT_ENDED, AGENT_DEAD };

struct agent {
    char id[RDZV_ID_MAX + 1];
    int slots;
    enum agent_mode mode;
    uint64_t seen_seq, told_round;
    int64_t acked_send;    /* when the newest request that was answered was sent: the agent's lease counts from here */
    int64_t answered_send; /* the same, refusals included */
    int64_t joining_since; /* a refusal of anything asked before is old news */
    int64_t next_ask;      /* heartbeat or repetition */
    bool workers;          /* alive; they progress until killed_at */
    uint64_t worker_round;
    int64_t finish_at; /* all workers exit 0 */
    int64_t killed_at; /* being stopped: dead from then on */
    bool failed, done, leaving;
    int64_t cut_until; /* no message passes */
    /* the host's side */
    int64_t heard, heard_sent; /* when its last message came, and when the newest was sent */
    bool known_silent;
    bool has_news;
    struct rdzv_news news;
};

struct world {
    uint64_t seed, rng;
    int64_t now, faults_end;
    bool trace;
    double loss, repeat, fault_rate, long_delay;
    int64_t next_fault;
    struct rdzv_config config;
    struct rdzv *rdzv;
    struct rdzv_effects fx;
    struct agent agents[AGENTS_MAX];
    int agent_count;
    struct message queue[MESSAGES_MAX];
    int queued;
    /* what the checks remember */
    uint64_t last_round;
    int restarts_seen;
    char order[AGENTS_MAX][RDZV_ID_MAX + 1];
    int order_count;
    struct sim_stats *stats;
    struct err *e;
    int broken;
};

/* sim_world.c */
uint64_t sim_random(struct world *w);
int64_t sim_between(struct world *w, int64_t lo, int64_t hi); /* inclusive */
bool sim_chance(struct world *w, double p);
void sim_send(struct world *w, struct message m);
void sim_broken(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* sim_host.c */
int sim_step(struct world *w, const struct rdzv_event *ev);
void sim_host_receive(struct world *w, const struct message *m);
int64_t sim_host_wake(const struct world *w);
void sim_host_tick(struct world *w);

/* sim_agent.c */
void sim_agent_born(struct world *w, struct agent *a);
void sim_agent_receive(struct world *w, struct agent *a, const struct message *m);
int64_t sim_agent_wake(const struct world *w, const struct agent *a);
void sim_agent_tick(struct world *w, struct agent *a);
void sim_agent_kill_workers(struct world *w, struct agent *a, int64_t within_ms);

#endif
