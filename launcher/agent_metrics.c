/* The figures of /metrics: one table of those without labels, then those of workers, streams and phases. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "launcher/agent_http.h"
#include "launcher/config.h"
#include "launcher/logmux.h"
#include "launcher/run.h"

#define GAUGE "gauge"
#define COUNTER "counter"

/* Errors of a buffer stay: once full, nothing more goes in. */
struct page {
    struct buf *out;
    int rc;
};

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    if (p->rc == 0)
        p->rc = buf_printf(p->out, "# HELP crun_%s %s\n# TYPE crun_%s %s\n", name, help, name, type);
}

/* labels: NULL, or with their braces. */
static void value(struct page *p, const char *name, const char *labels, double v)
{
    if (p->rc == 0)
        p->rc = buf_printf(p->out, "crun_%s%s %.15g\n", name, labels ? labels : "", v);
}

/* The value of a label, as Prometheus quotes it. */
static const char *quoted(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (; *text && n + 3 < cap; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n')
            out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = 0;
    return out;
}

/* --- without labels ----------------------------------------------------------------------------------------------- */

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
    X("state_seconds", GAUGE, "How long the agent has been in its state.", seconds_since(r->figures.state_ns))         \
    X("ready", GAUGE, "1 while all workers of this node run.", ready)                                                  \
    X("round", GAUGE, "Round of the job, 0 before the first.", r->round.round)                                         \
    X("rounds_total", COUNTER, "Rounds this node took part in.", r->figures.rounds)                                    \
    X("world_size", GAUGE, "Workers of the job, 0 where no round runs.", in_round(r) ? r->round.world_size : 0)        \
    X("nodes", GAUGE, "Nodes of the job, 0 where no round runs.", in_round(r) ? r->round.group_world : 0)              \
    X("group_rank", GAUGE, "Number of this node among them, -1 where no round runs.",                                  \
      in_round(r) ? r->round.group_rank : -1)                                                                          \
    X("restarts_used", GAUGE, "Restarts of the job that are used up, as far as this node was told.", restarts_of(r))   \
    X("max_restarts", GAUGE, "Restarts the job may use.", r->config->max_restarts)                                     \
    X("worker_failures_total", COUNTER, "Workers of this node that failed by themselves.", r->figures.failed)          \
    X("hangs_total", COUNTER, "Rounds ended because a worker made no progress.", r->figures.hangs)                     \
    X("fenced_total", COUNTER, "Times the workers were ended because the rendezvous was not heard.",                   \
      r->figures.fenced)                                                                                               \
    X("preempted", GAUGE, "1 once a preemption notice came.", r->preempted)                                            \
    X("log_lost_bytes_total", COUNTER, "Output that no log file took.", logs.lost)                                     \
    X("console_left_out_lines_total", COUNTER, "Lines that --log-rate kept from the console.", logs.left_out)          \
    X("console_dropped_bytes_total", COUNTER, "Output that the console did not take.", logs.dropped)

static void of_agent(struct page *p, const struct run *r)
{
    struct logmux_figures logs;
    char text[512];
    const bool ready = agent_readiness(r, text, sizeof text);
    logmux_figures(r->mux, &logs);
#define X(name, type, help, expr)                                                                                      \
    head(p, name, type, help);                                                                                         \
    value(p, name, NULL, (double)(expr));
    AGENT_METRICS(X)
#undef X
    head(p, "log_bytes_total", COUNTER, "Output read from the workers.");
    value(p, "log_bytes_total", "{stream=\"stdout\"}", (double)logs.bytes[0]);
    value(p, "log_bytes_total", "{stream=\"stderr\"}", (double)logs.bytes[1]);
}

static void of_job(struct page *p, const struct run *r)
{
    char labels[2048], id[300], node[300], host[150], role[150];
    snprintf(labels, sizeof labels, "{run_id=\"%s\",node=\"%s\",host=\"%s\",role=\"%s\",version=\"" CRUN_VERSION "\"}",
             quoted(r->config->run_id, id, sizeof id), quoted(r->node, node, sizeof node),
             quoted(r->host, host, sizeof host), quoted(r->config->role, role, sizeof role));
    head(p, "agent_info", GAUGE, "Whose figures these are.");
    value(p, "agent_info", labels, 1);
    head(p, "state", GAUGE, "1 for the state the agent is in.");
    for (int s = AGENT_IDLE; s <= AGENT_OVER; s++) {
        snprintf(labels, sizeof labels, "{state=\"%s\"}", agent_state_name((enum agent_state)s));
        value(p, "state", labels, (int)r->agent.state == s);
    }
}

static void of_rendezvous(struct page *p, const struct run *r)
{
    const struct home *h = &r->config->home;
    const bool hosts = r->rendezvous.hosted;
    char labels[2 * HOME_ENDPOINT_MAX + 128], at[2 * HOME_ENDPOINT_MAX];
    snprintf(labels, sizeof labels, "{kind=\"%s\",endpoint=\"%s\",hosted=\"%s\"}", home_kind_name(h->kind),
             quoted(h->kind == HOME_REDIS ? "" : h->endpoint, at, sizeof at),
             hosts ? "yes" : "no"); /* a URL may hold a password */
    head(p, "rendezvous_info", GAUGE, "Where the nodes meet; hosted: by this agent.");
    value(p, "rendezvous_info", labels, 1);
    if (hosts || (h->kind != HOME_TCP && h->kind != HOME_STATIC))
        return;
    head(p, "rendezvous_connected", GAUGE, "1 while the connection to the rendezvous stands.");
    value(p, "rendezvous_connected", NULL, r->rdzv_fd >= 0);
}

/* --- workers ------------------------------------------------------------------------------------------------------ */

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

static void of_states(struct page *p, const struct run *r)
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
    head(p, "workers", GAUGE, "Workers of this node by state.");
    for (int s = 0; s < WORKER_STATES_N; s++) {
        snprintf(labels, sizeof labels, "{state=\"%s\"}", names[s]);
        value(p, "workers", labels, n[s]);
    }
}

/* Only of workers that call crun_progress() of libcrun. */
static const struct crun_page *progress_of(const struct run *r, int local)
{
    const struct crun_page *page = in_round(r) ? group_page(r->group, local) : NULL;
    return page && atomic_load(&page->last_step_ns) ? page : NULL;
}

static void of_progress(struct page *p, const struct run *r)
{
    const struct failure_worker *w = group_workers(r->group);
    char labels[64];
    head(p, "worker_step", GAUGE, "Last step that a worker said it had finished.");
    for (int i = 0; i < r->agent.slots; i++) {
        const struct crun_page *page = progress_of(r, i);
        snprintf(labels, sizeof labels, "{rank=\"%d\",local_rank=\"%d\"}", w[i].rank, i);
        if (page)
            value(p, "worker_step", labels, (double)atomic_load(&page->step));
    }
    head(p, "worker_progress_age_seconds", GAUGE, "How long ago that was.");
    for (int i = 0; i < r->agent.slots; i++) {
        const struct crun_page *page = progress_of(r, i);
        snprintf(labels, sizeof labels, "{rank=\"%d\",local_rank=\"%d\"}", w[i].rank, i);
        if (page)
            value(p, "worker_progress_age_seconds", labels, seconds_since(atomic_load(&page->last_step_ns)));
    }
}

static void of_restarts(struct page *p, const struct run *r)
{
    const struct event_figures *f = &r->figures;
    head(p, "restart_seconds", "summary", "From the death of a worker to the start of the last new one.");
    value(p, "restart_seconds_sum", NULL, f->restart_s);
    value(p, "restart_seconds_count", NULL, (double)f->restarts);
    if (f->restarts == 0)
        return;
    head(p, "last_restart_seconds", GAUGE, "The same of the last restart.");
    value(p, "last_restart_seconds", NULL, f->last_s);
    head(p, "last_restart_phase_seconds", GAUGE, "Where its time went.");
#define X(field, name, from, to) value(p, "last_restart_phase_seconds", "{phase=\"" name "\"}", f->field##_s);
    RESTART_PHASES(X)
#undef X
}

static double resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*u %lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

int agent_metrics(const struct run *r, struct buf *out)
{
    struct page p = {out, 0};
    of_job(&p, r);
    of_agent(&p, r);
    of_rendezvous(&p, r);
    of_states(&p, r);
    of_progress(&p, r);
    of_restarts(&p, r);
    head(&p, "resident_memory_bytes", GAUGE, "Memory of the agent itself.");
    value(&p, "resident_memory_bytes", NULL, resident_bytes());
    return p.rc;
}
