/* A simulated job whose rendezvous lives in a log: a Redis that may fail over and lose its last acknowledged writes, or
 * a shared directory. Agents are the product's seats (common/rdzv/leader/rdzv_seat.h); whoever leads runs the product's
 * host (common/rdzv/leader/rdzv_host.h) as a coroutine, which may pause, crash or lose its connection before or after
 * the effect of every call. Each node has a clock of its own. */
#ifndef CRUN_TESTS_SIM_LOG_H
#define CRUN_TESTS_SIM_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_host.h"
#include "common/rdzv/leader/rdzv_seat.h"

enum { LOG_AGENTS_MAX = 12, LOG_EVENTS_MAX = 512, LOG_DECISIONS_MAX = 8192, LOG_HISTORY = 12 };

enum sim_home_kind {
    SIM_REDIS,
    SIM_FOLDER,
    /* A Redis without min-replicas, which crun takes with allow_unsafe=1 alone, and one cut, as long as it lasts. Both
     * sides take writes, and nobody claims on the one where nobody led: what happens then is the risk that was
     * taken. */
    SIM_CUT,
};

/* A home that does not keep its word, to show that the simulator sees it. */
extern enum log_home_fault {
    LOG_HOME_GOOD,
    LOG_HOME_UNFENCED,
    LOG_HOME_SLOTS_FIRST,
    LOG_HOME_UNREPLICATED
} log_home_fault;

struct log_stats {
    uint64_t steps, rounds, reigns, failovers, partitions, lost_writes, fences, appends, refused_appends, ended_well,
        ended_badly;
};

/* What the home holds. Strings live in the world's arena, so that a copy is a snapshot. */
struct home_state {
    const char *epoch, *pulse;
    const char *beats[LOG_AGENTS_MAX], *slots[LOG_AGENTS_MAX];
    int first, count;     /* decisions */
    const char *instance; /* of which they are, */
    uint64_t round;       /* and the newest round that they begin, */
    unsigned waited_for;  /* bits: its nodes that are not done */
    int waited;           /* the newest server on which somebody has decided */
};

struct decision {
    const char *epoch, *text;
};

enum log_event { EV_ARRIVE, EV_REPLY };

/* An exchange on its way. */
struct flight {
    enum log_event kind;
    int64_t at, sent; /* sent: by the agent's clock */
    int agent;
    uint64_t number; /* of the exchange; a late one is nobody's */
    int generation;
    int server; /* that answers */
    const char *beat, *epoch, *pulse, *slot;
};

enum work { WORK_NONE, WORK_RUNS, WORK_STOPS };

struct log_agent {
    struct sim_home *home;
    int index;
    bool alive, ended, leaving, knew_reign, lapsed;
    bool on_old; /* it reaches the old primary, and not the new one */
    int64_t offset, born_at, died_at, paused_until, cut_until;
    struct rdzv_seat seat;
    uint64_t exchange; /* newest; 0: none under way */
    uint64_t exchanges;
    int64_t next_beat, gives_up;
    enum work work;
    uint64_t work_round;
    char work_instance[20];
    int64_t dead_at, finish_at; /* true time */
    bool join_due;
    int slots;
    /* leading */
    ucontext_t context;
    char *stack;
    bool leads;
    int64_t wake;   /* of the coroutine */
    int generation; /* of its connection; -1: broken */
    char own_epoch[RDZV_EPOCH_MAX + 1];
    bool called[LOG_AGENTS_MAX];
    unsigned heard, heard_before; /* bits: nodes that have promised own_epoch; before the newest look */
    struct rdzv_host_options o;
    atomic_bool stop;
    char seen[RDZV_EPOCH_MAX + 1];
    /* what it has seen of the leader */
    const char *view_epoch, *view_pulse;
    int64_t pulse_moved, claim_at;
};

struct sim_home {
    struct rdzv_home base;
    struct log_world *w;
    int agent;
};

struct log_world {
    uint64_t seed, rng;
    enum sim_home_kind kind;
    int64_t now, faults_end, next_fault, no_births_until, horizon;
    bool trace;
    bool cut;       /* SIM_CUT, a kind of SIM_REDIS */
    bool takeovers; /* leaders go, and nodes that hear of the next one are out of reach from then on */
    bool sound;     /* but for failovers that leave an old primary, the network and the nodes are */
    double loss, slow, breaks, fault_rate;
    struct rdzv_config config;
    struct home_state state;
    struct decision log[LOG_DECISIONS_MAX];
    struct home_state history[LOG_HISTORY];
    int history_count;
    int generation; /* of the server: grows with each failover */
    /* A Redis' replicas, of which min_replicas must have acknowledged within max_lag_ms (0: a lone Redis). */
    int replicas, min_replicas;
    int64_t max_lag_ms, writes_from; /* before, it takes no writes */
    bool promoted, old_promoted;     /* it was a replica once */
    /* The old primary, which lives on behind a partition, perhaps with some of the replicas: it acknowledges writes as
     * long as enough of them are there, and for max_lag_ms more. */
    struct home_state old;
    struct decision old_log[LOG_DECISIONS_MAX];
    int old_generation, old_replicas;
    int64_t old_replicas_until, old_writes_until, old_until; /* until 0: it does not live */
    struct log_agent agents[LOG_AGENTS_MAX];
    struct sim_home homes[LOG_AGENTS_MAX];
    int agent_count;
    struct flight flights[LOG_EVENTS_MAX];
    int flight_count;
    ucontext_t main;
    char **arena;
    size_t arena_count, arena_cap;
    /* what the rules remember */
    uint64_t round_world[64];
    unsigned round_nodes[64]; /* bits: who was told */
    char round_instance[64][20];
    int round_slots[64];
    char round_leader[64][RDZV_ADDR_MAX + 1];
    uint64_t round_number[64];
    unsigned round_heard[2][64]; /* bits: nodes whose promise the leader had seen before the look in which it decided
                                    the round, on the new primary and on the old one: others may be heard later in
                                    that look than the node that completes the round */
    uint64_t round_taken[64];    /* bits: group ranks */
    struct log_stats *stats;
    struct err *e;
    int broken;
};

uint64_t log_random(struct log_world *w);
int64_t log_between(struct log_world *w, int64_t lo, int64_t hi);
bool log_chance(struct log_world *w, double p);
const char *log_keep(struct log_world *w, const char *p, size_t n);
void log_broken(struct log_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_trace(struct log_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool log_faulty(const struct log_world *w)
{
    return w->now < w->faults_end;
}

/* The server that an agent reaches. */
static inline struct home_state *log_state(struct log_world *w, const struct log_agent *a)
{
    return a->on_old ? &w->old : &w->state;
}
static inline struct decision *log_decisions(struct log_world *w, const struct log_agent *a)
{
    return a->on_old ? w->old_log : w->log;
}
static inline int log_generation(const struct log_world *w, const struct log_agent *a)
{
    return a->on_old ? w->old_generation : w->generation;
}
static inline bool log_takes_writes(const struct log_world *w, const struct log_agent *a)
{
    return a->on_old ? w->now < w->old_writes_until : w->now >= w->writes_from;
}

/* sim_log_world.c */
struct log_agent *log_leader(struct log_world *w); /* NULL: none */

/* sim_log_failover.c */
void log_deploy(struct log_world *w);
void log_heal(struct log_world *w);    /* the old primary is gone: all reach the new one */
void log_mutated(struct log_world *w); /* before each change, so that a failover can go back */
void log_failover(struct log_world *w);
bool log_has_replicas(const struct log_world *w, const struct log_agent *a); /* as many as a write needs */

/* sim_log_home.c */
void log_home_open(struct log_world *w, int agent);
void log_lead(struct log_world *w, struct log_agent *a);
void log_resume(struct log_world *w, struct log_agent *a); /* its coroutine */

/* sim_log_agent.c */
void log_agent_born(struct log_world *w, struct log_agent *a, int index);
void log_agent_tick(struct log_world *w, struct log_agent *a);
int64_t log_agent_wake(const struct log_world *w, const struct log_agent *a);
void log_agent_hear(struct log_world *w, struct log_agent *a, const struct flight *f);
void log_agent_crash(struct log_world *w, struct log_agent *a);
void log_agent_fail(struct log_world *w, struct log_agent *a);
void log_agent_leave(struct log_world *w, struct log_agent *a);

/* One schedule; 0, or ERR_CORRUPT with the rule that broke. */
int log_run(enum sim_home_kind kind, uint64_t seed, bool trace, struct log_stats *total, struct err *e);

#endif
