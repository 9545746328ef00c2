/* The figures of /metrics: one table of those without labels, then those of workers, streams and phases. */
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/http/metrics_text.h"
#include "launcher/agent/agent_http.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/rendezvous.h"

/* --- without labels */

static double seconds_since(int64_t ns)
{
    const int64_t now = clock_ns();
    return now > ns ? (double)(now - ns) / 1e9 : 0;
}

static bool in_round(const struct run *r)
{
    return r->agent.state == AGENT_RUNNING || r->agent.state == AGENT_STOPPING || r->agent.state == AGENT_CLEARING ||
           r->agent.state == AGENT_FINISHING;
}

static int restarts_of(const struct run *r)
{
    return r->end.kind == RDZV_NEWS_END ? r->end.restart_count : r->round.restart_count;
}

#define AGENT_METRICS(X)                                                                                               \
    X("state_seconds", METRICS_GAUGE, "How long the agent has been in its state.", seconds_since(r->figures.state_ns)) \
    X("ready", METRICS_GAUGE, "1 while all workers of this node run.", ready)                                          \
    X("round", METRICS_GAUGE, "Round of the job, 0 before the first.", r->round.round)                                 \
    X("rounds_total", METRICS_COUNTER, "Rounds this node took part in.", r->figures.rounds)                            \
    X("world_size", METRICS_GAUGE, "Workers of the job, 0 where no round runs.",                                       \
      in_round(r) ? r->round.world_size : 0)                                                                           \
    X("nodes", METRICS_GAUGE, "Nodes of the job, 0 where no round runs.", in_round(r) ? r->round.group_world : 0)      \
    X("group_rank", METRICS_GAUGE, "Number of this node among them, -1 where no round runs.",                          \
      in_round(r) ? r->round.group_rank : -1)                                                                          \
    X("restarts_used", METRICS_GAUGE, "Restarts of the job that are used up, as far as this node was told.",           \
      restarts_of(r))                                                                                                  \
    X("max_restarts", METRICS_GAUGE, "Restarts the job may use.", r->config->max_restarts)                             \
    X("worker_failures_total", METRICS_COUNTER, "Workers of this node that failed by themselves.", r->figures.failed)  \
    X("hangs_total", METRICS_COUNTER, "Rounds ended because a worker made no progress.", r->figures.hangs)             \
    X("fenced_total", METRICS_COUNTER, "Times the workers were ended because the rendezvous was not heard.",           \
      r->figures.fenced)                                                                                               \
    X("preempted", METRICS_GAUGE, "1 once a preemption notice came.", r->preempted)                                    \
    X("log_lost_bytes_total", METRICS_COUNTER, "Output that no log file took.", logs.lost)                             \
    X("console_left_out_lines_total", METRICS_COUNTER, "Lines that --log-rate kept from the console.", logs.left_out)  \
    X("console_dropped_bytes_total", METRICS_COUNTER, "Output that the console did not take.", logs.dropped)

static void of_agent(struct metrics_text *m, const struct run *r)
{
    struct logmux_figures logs;
    char text[512];
    const bool ready = agent_readiness(r, text, sizeof text);
    logmux_figures(r->mux, &logs);
#define X(name, type, help, expr) metrics_figure(m, name, type, help, (double)(expr));
    AGENT_METRICS(X)
#undef X
    metrics_head(m, "log_bytes_total", METRICS_COUNTER, "Output read from the workers.");
    metrics_value(m, "log_bytes_total", "{stream=\"stdout\"}", (double)logs.bytes[0]);
    metrics_value(m, "log_bytes_total", "{stream=\"stderr\"}", (double)logs.bytes[1]);
}

static void of_job(struct metrics_text *m, const struct run *r)
{
    char labels[2048], id[300], node[300], host[150], role[150];
    snprintf(labels, sizeof labels, "{run_id=\"%s\",node=\"%s\",host=\"%s\",role=\"%s\",version=\"" CRUN_VERSION "\"}",
             metrics_quoted(r->config->run_id, id, sizeof id), metrics_quoted(r->node, node, sizeof node),
             metrics_quoted(r->host, host, sizeof host), metrics_quoted(r->config->role, role, sizeof role));
    metrics_head(m, "agent_info", METRICS_GAUGE, "Whose figures these are.");
    metrics_value(m, "agent_info", labels, 1);
    metrics_head(m, "state", METRICS_GAUGE, "1 for the state the agent is in.");
    for (int s = AGENT_IDLE; s <= AGENT_OVER; s++) {
        snprintf(labels, sizeof labels, "{state=\"%s\"}", agent_state_name((enum agent_state)s));
        metrics_value(m, "state", labels, (int)r->agent.state == s);
    }
}

static void of_rendezvous(struct metrics_text *m, const struct run *r)
{
    const struct home *h = &r->config->home;
    const bool hosts = rendezvous_hosts(r->rendezvous);
    char labels[2 * HOME_ENDPOINT_MAX + 128], at[2 * HOME_ENDPOINT_MAX];
    snprintf(labels, sizeof labels, "{kind=\"%s\",endpoint=\"%s\",hosted=\"%s\"}", home_kind_name(h->kind),
             metrics_quoted(h->kind == HOME_REDIS ? "" : h->endpoint, at, sizeof at),
             hosts ? "yes" : "no"); /* a URL may hold a password */
    metrics_head(m, "rendezvous_info", METRICS_GAUGE, "Where the nodes meet; hosted: by this agent.");
    metrics_value(m, "rendezvous_info", labels, 1);
    if (hosts || (h->kind != HOME_TCP && h->kind != HOME_STATIC))
        return;
    metrics_head(m, "rendezvous_connected", METRICS_GAUGE, "1 while the connection to the rendezvous stands.");
    metrics_value(m, "rendezvous_connected", NULL, r->rdzv_fd >= 0);
}

/* --- workers */

#define WORKER_STATES(X)                                                                                               \
    X(WAITING, "waiting")   /* for a round */                                                                          \
    X(STARTING, "starting") /* not all of the round execute their program yet */                                       \
    X(RUNNING, "running")                                                                                              \
    X(STOPPING, "stopping") /* told to */                                                                              \
    X(FINISHED, "finished") /* exited with 0 */                                                                        \
    X(STOPPED, "stopped")   /* ended after they were told to */                                                        \
    X(FAILED, "failed")     /* ended badly by themselves */

enum worker_state {
#define X(name, text) WORKER_##name,
    WORKER_STATES(X)
#undef X
        WORKER_STATES_N
};

static enum worker_state worker_state(const struct run *r, const struct failure_worker *w)
{
    if (r->round.round == 0 || r->agent.state == AGENT_JOINING)
        return WORKER_WAITING;
    if (!w->ended)
        return r->agent.state == AGENT_STOPPING ? WORKER_STOPPING
               : r->timeline.spawned            ? WORKER_RUNNING
                                                : WORKER_STARTING;
    if (!w->ending.signaled && w->ending.value == 0)
        return WORKER_FINISHED;
    return w->told_to_stop ? WORKER_STOPPED : WORKER_FAILED;
}

static void of_states(struct metrics_text *m, const struct run *r)
{
    static const char *const names[] = {
#define X(name, text) text,
        WORKER_STATES(X)
#undef X
    };
    const struct failure_worker *w = group_workers(r->group);
    int n[WORKER_STATES_N] = {0};
    char labels[64];
    for (int i = 0; i < r->agent.slots; i++)
        n[worker_state(r, &w[i])]++;
    metrics_head(m, "workers", METRICS_GAUGE, "Workers of this node by state.");
    for (int s = 0; s < WORKER_STATES_N; s++) {
        snprintf(labels, sizeof labels, "{state=\"%s\"}", names[s]);
        metrics_value(m, "workers", labels, n[s]);
    }
}

/* Only of workers that call crun_progress() of libcrun. */
static const struct crun_page *progress_of(const struct run *r, int local)
{
    const struct crun_page *page = in_round(r) ? group_page(r->group, local) : NULL;
    return page && atomic_load(&page->last_step_ns) ? page : NULL;
}

static void of_progress(struct metrics_text *m, const struct run *r)
{
    const struct failure_worker *w = group_workers(r->group);
    char labels[64];
    metrics_head(m, "worker_step", METRICS_GAUGE, "Last step that a worker said it had finished.");
    for (int i = 0; i < r->agent.slots; i++) {
        const struct crun_page *page = progress_of(r, i);
        snprintf(labels, sizeof labels, "{rank=\"%d\",local_rank=\"%d\"}", w[i].rank, i);
        if (page)
            metrics_value(m, "worker_step", labels, (double)atomic_load(&page->step));
    }
    metrics_head(m, "worker_progress_age_seconds", METRICS_GAUGE, "How long ago that was.");
    for (int i = 0; i < r->agent.slots; i++) {
        const struct crun_page *page = progress_of(r, i);
        snprintf(labels, sizeof labels, "{rank=\"%d\",local_rank=\"%d\"}", w[i].rank, i);
        if (page)
            metrics_value(m, "worker_progress_age_seconds", labels, seconds_since(atomic_load(&page->last_step_ns)));
    }
}

static void of_restarts(struct metrics_text *m, const struct run *r)
{
    const struct event_figures *f = &r->figures;
    metrics_head(m, "restart_seconds", METRICS_SUMMARY, "From the death of a worker to the start of the last new one.");
    metrics_value(m, "restart_seconds_sum", NULL, f->restart_s);
    metrics_value(m, "restart_seconds_count", NULL, (double)f->restarts);
    if (f->restarts == 0)
        return;
    metrics_head(m, "last_restart_seconds", METRICS_GAUGE, "The same of the last restart.");
    metrics_value(m, "last_restart_seconds", NULL, f->last_s);
    metrics_head(m, "last_restart_phase_seconds", METRICS_GAUGE, "Where its time went.");
#define X(field, name, from, to) metrics_value(m, "last_restart_phase_seconds", "{phase=\"" name "\"}", f->field##_s);
    RESTART_PHASES(X)
#undef X
}

int agent_metrics(const struct run *r, struct buf *out)
{
    struct metrics_text m = {.out = out, .prefix = "crun_"};
    of_job(&m, r);
    of_agent(&m, r);
    of_rendezvous(&m, r);
    of_states(&m, r);
    of_progress(&m, r);
    of_restarts(&m, r);
    metrics_figure(&m, "resident_memory_bytes", METRICS_GAUGE, "Memory of the agent itself.", metrics_resident_bytes());
    return m.rc;
}
