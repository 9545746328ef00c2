/* Writes /metrics: a table of figures without labels, then those of workers, streams and phases. */
#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "common/http/metrics_text.h"
#include "launcher/observe/agent_http.h"
#include "launcher/observe/agent_view.h"
#include "launcher/observe/events.h"
#include "launcher/report/failure.h"

/* --- without labels */

static double seconds_since(int64_t ns)
{
    const int64_t now = clock_ns();
    return now > ns ? (double)(now - ns) / 1e9 : 0;
}

#define AGENT_METRICS(X)                                                                                               \
    X("state_seconds", METRICS_GAUGE, "How long the agent has been in its state.",                                     \
      seconds_since(v->figures->state_ns))                                                                             \
    X("ready", METRICS_GAUGE, "1 while all workers of this node run.", v->ready)                                       \
    X("round", METRICS_GAUGE, "Round of the job, 0 before the first.", v->round)                                       \
    X("rounds_total", METRICS_COUNTER, "Rounds this node took part in.", v->figures->rounds)                           \
    X("world_size", METRICS_GAUGE, "Workers of the job, 0 where no round runs.", v->in_round ? v->world_size : 0)      \
    X("nodes", METRICS_GAUGE, "Nodes of the job, 0 where no round runs.", v->in_round ? v->nodes : 0)                  \
    X("group_rank", METRICS_GAUGE, "Number of this node among them, -1 where no round runs.",                          \
      v->in_round ? v->group_rank : -1)                                                                                \
    X("restarts_used", METRICS_GAUGE, "Restarts of the job that are used up, as far as this node knows.", v->restarts) \
    X("max_restarts", METRICS_GAUGE, "Restarts the job may use.", v->max_restarts)                                     \
    X("worker_failures_total", METRICS_COUNTER, "Workers of this node that failed by themselves.", v->figures->failed) \
    X("hangs_total", METRICS_COUNTER, "Rounds ended because a worker made no progress.", v->figures->hangs)            \
    X("fenced_total", METRICS_COUNTER, "Times the workers were ended because the rendezvous was not heard.",           \
      v->figures->fenced)                                                                                              \
    X("preempted", METRICS_GAUGE, "1 once a preemption notice came.", v->preempted)                                    \
    X("log_lost_bytes_total", METRICS_COUNTER, "Output that no log file took.", v->logs.lost)                          \
    X("console_left_out_lines_total", METRICS_COUNTER, "Lines that --log-rate kept from the console.",                 \
      v->logs.left_out)                                                                                                \
    X("console_dropped_bytes_total", METRICS_COUNTER, "Output that the console did not take.", v->logs.dropped)

static void write_agent(struct metrics_text *m, const struct agent_view *v)
{
#define X(name, type, help, expr) metrics_figure(m, name, type, help, (double)(expr));
    AGENT_METRICS(X)
#undef X
    metrics_head(m, "log_bytes_total", METRICS_COUNTER, "Output read from the workers.");
    metrics_value(m, "log_bytes_total", "{stream=\"stdout\"}", (double)v->logs.bytes[0]);
    metrics_value(m, "log_bytes_total", "{stream=\"stderr\"}", (double)v->logs.bytes[1]);
}

static void write_job(struct metrics_text *m, const struct agent_view *v)
{
    char labels[2048], id[300], node[300], host[150], role[150];
    snprintf(labels, sizeof labels, "{run_id=\"%s\",node=\"%s\",host=\"%s\",role=\"%s\",version=\"" CRUN_VERSION "\"}",
             metrics_quoted(v->run_id, id, sizeof id), metrics_quoted(v->node, node, sizeof node),
             metrics_quoted(v->host, host, sizeof host), metrics_quoted(v->role, role, sizeof role));
    metrics_head(m, "agent_info", METRICS_GAUGE, "Whose figures these are.");
    metrics_value(m, "agent_info", labels, 1);
    metrics_head(m, "state", METRICS_GAUGE, "1 for the state the agent is in.");
    for (int s = 0; s < v->n_states; s++) {
        snprintf(labels, sizeof labels, "{state=\"%s\"}", v->states[s]);
        metrics_value(m, "state", labels, v->state == s);
    }
}

static void write_rendezvous(struct metrics_text *m, const struct agent_view *v)
{
    char labels[2048 + 128], at[2048];
    snprintf(labels, sizeof labels, "{kind=\"%s\",endpoint=\"%s\",hosted=\"%s\"}", v->rendezvous,
             metrics_quoted(v->endpoint, at, sizeof at), v->hosts ? "yes" : "no");
    metrics_head(m, "rendezvous_info", METRICS_GAUGE, "Where the nodes meet; hosted: by this agent.");
    metrics_value(m, "rendezvous_info", labels, 1);
    if (!v->dials)
        return;
    metrics_head(m, "rendezvous_connected", METRICS_GAUGE, "1 while the connection to the rendezvous stands.");
    metrics_value(m, "rendezvous_connected", NULL, v->connected);
}

/* --- workers */

#define WORKER_STATES(X)                                                                                               \
    X(WAITING, "waiting")   /* for a round */                                                                          \
    X(STARTING, "starting") /* not all workers of the round have executed their program yet */                         \
    X(RUNNING, "running")                                                                                              \
    X(STOPPING, "stopping") /* a stop was requested */                                                                 \
    X(FINISHED, "finished") /* exited with 0 */                                                                        \
    X(STOPPED, "stopped")   /* ended after that request */                                                             \
    X(FAILED, "failed")     /* ended badly by themselves */

enum worker_state {
#define X(name, text) WORKER_##name,
    WORKER_STATES(X)
#undef X
        WORKER_STATES_N
};

static enum worker_state worker_state(const struct agent_view *v, const struct failure_worker *w)
{
    if (v->waiting)
        return WORKER_WAITING;
    if (!w->ended)
        return v->stopping ? WORKER_STOPPING : v->started ? WORKER_RUNNING : WORKER_STARTING;
    if (!w->ending.signaled && w->ending.value == 0)
        return WORKER_FINISHED;
    return w->told_to_stop ? WORKER_STOPPED : WORKER_FAILED;
}

static void write_states(struct metrics_text *m, const struct agent_view *v)
{
    static const char *const names[] = {
#define X(name, text) text,
        WORKER_STATES(X)
#undef X
    };
    const struct failure_worker *w = v->list;
    int n[WORKER_STATES_N] = {0};
    char labels[64];
    for (int i = 0; i < v->workers; i++)
        n[worker_state(v, &w[i])]++;
    metrics_head(m, "workers", METRICS_GAUGE, "Workers of this node by state.");
    for (int s = 0; s < WORKER_STATES_N; s++) {
        snprintf(labels, sizeof labels, "{state=\"%s\"}", names[s]);
        metrics_value(m, "workers", labels, n[s]);
    }
}

/* The page of a worker that calls crun_progress() of libcrun; else NULL. */
static const struct crun_page *progress_of(const struct agent_view *v, int local)
{
    const struct crun_page *page = v->in_round ? v->page(v->arg, local) : NULL;
    return page && atomic_load(&page->last_step_ns) ? page : NULL;
}

static void write_progress(struct metrics_text *m, const struct agent_view *v)
{
    const struct failure_worker *w = v->list;
    char labels[64];
    metrics_head(m, "worker_step", METRICS_GAUGE, "Last step that a worker said it had finished.");
    for (int i = 0; i < v->workers; i++) {
        const struct crun_page *page = progress_of(v, i);
        snprintf(labels, sizeof labels, "{rank=\"%d\",local_rank=\"%d\"}", w[i].rank, i);
        if (page)
            metrics_value(m, "worker_step", labels, (double)atomic_load(&page->step));
    }
    metrics_head(m, "worker_progress_age_seconds", METRICS_GAUGE, "How long ago that was.");
    for (int i = 0; i < v->workers; i++) {
        const struct crun_page *page = progress_of(v, i);
        snprintf(labels, sizeof labels, "{rank=\"%d\",local_rank=\"%d\"}", w[i].rank, i);
        if (page)
            metrics_value(m, "worker_progress_age_seconds", labels, seconds_since(atomic_load(&page->last_step_ns)));
    }
}

static void write_restarts(struct metrics_text *m, const struct agent_view *v)
{
    const struct event_figures *f = v->figures;
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

int agent_metrics(const struct agent_view *v, struct buf *out)
{
    struct metrics_text m = {.out = out, .prefix = "crun_"};
    write_job(&m, v);
    write_agent(&m, v);
    write_rendezvous(&m, v);
    write_states(&m, v);
    write_progress(&m, v);
    write_restarts(&m, v);
    metrics_figure(&m, "resident_memory_bytes", METRICS_GAUGE, "Memory of the agent itself.", metrics_resident_bytes());
    return m.rc;
}
