/* Counts what happens to the agent, and writes it to the event log (events.h). */
#include "launcher/observe/events.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/include/crun.h"
#include "launcher/base/ending.h"
#include "launcher/observe/event_log.h"
#include "launcher/observe/timeline.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure.h"

struct events {
    struct event_log *log; /* NULL: none */
    struct logmux *mux;
    bool console;
    struct event_figures figures;
    int workers;
    uint64_t round;        /* the current one, 0: none yet */
    int nodes, world_size; /* of it */
};

static double seconds(int64_t from, int64_t to)
{
    return from > 0 && to > from ? (double)(to - from) / 1e9 : 0;
}

/* --- life */

static void write_line(void *arg, const char *line, size_t n)
{
    const struct events *ev = arg;
    logmux_add_event(ev->mux, line, n);
    if (ev->console && line)
        logmux_print_bytes(ev->mux, line, n);
}

static void write_start(struct events *ev, const struct events_options *o)
{
    struct json_write *w = event_log_begin(ev->log, "agent_started");
    json_text(w, "version", CRUN_VERSION);
    json_text(w, "host", o->host);
    json_int(w, "pid", getpid());
    json_text(w, "program", o->program);
    json_int(w, "workers", o->workers);
    json_int(w, "min_nodes", o->min_nodes);
    json_int(w, "max_nodes", o->max_nodes);
    json_int(w, "max_restarts", o->max_restarts);
    json_text(w, "rendezvous", o->rendezvous);
    json_text(w, "endpoint", o->endpoint);
    event_log_end(ev->log);
}

int events_open(struct events **ret, const struct events_options *o, struct err *e)
{
    struct events *ev = calloc(1, sizeof *ev);
    if (!ev)
        return err_errno(e, ENOMEM, "event log");
    ev->workers = o->workers;
    ev->figures.state_ns = clock_ns();
    ev->mux = o->mux;
    ev->console = o->console;
    if (o->file || o->console) {
        const struct event_log_options log = {.run_id = o->run_id, .node = o->node, .write = write_line, .arg = ev};
        const int rc = event_log_create(&ev->log, &log, e);
        if (rc < 0) {
            free(ev);
            return rc;
        }
        write_start(ev, o);
    }
    *ret = ev;
    return 0;
}

void events_close(struct events *ev)
{
    if (ev)
        event_log_destroy(ev->log);
    free(ev);
}

const struct event_figures *events_figures(const struct events *ev)
{
    return &ev->figures;
}

static struct json_write *begin(struct events *ev, const char *kind)
{
    struct json_write *w = event_log_begin(ev->log, kind);
    if (w)
        json_int(w, "round", (long long)ev->round);
    return w;
}

/* --- what happens */

void events_state(struct events *ev, const char *before, const char *now, const char *because)
{
    const int64_t now_ns = clock_ns();
    struct json_write *w = begin(ev, "state");
    if (w) {
        json_text(w, "from", before);
        json_text(w, "to", now);
        json_text(w, "because", because);
        json_number(w, "after_s", seconds(ev->figures.state_ns, now_ns));
        event_log_end(ev->log);
    }
    ev->figures.state_ns = now_ns;
}

static void write_members_changed(struct events *ev, int nodes_before, int world_before)
{
    struct json_write *w = begin(ev, "members_changed");
    if (!w)
        return;
    json_int(w, "nodes_before", nodes_before);
    json_int(w, "nodes", ev->nodes);
    json_int(w, "world_size_before", world_before);
    json_int(w, "world_size", ev->world_size);
    event_log_end(ev->log);
}

void events_round(struct events *ev, const struct rdzv_news *n)
{
    const int nodes_before = ev->nodes, world_before = ev->world_size;
    const bool is_first = ev->round == 0;
    ev->round = n->round;
    ev->nodes = n->group_world;
    ev->world_size = n->world_size;
    ev->figures.rounds++;
    if (!is_first && (nodes_before != ev->nodes || world_before != ev->world_size))
        write_members_changed(ev, nodes_before, world_before);
    struct json_write *w = begin(ev, "round_started");
    if (!w)
        return;
    json_text(w, "reason", n->why == RDZV_WHY_START ? "start" : crun_stop_reason_name((enum crun_stop_reason)n->why));
    json_int(w, "restarts", n->restart_count);
    json_int(w, "world_size", n->world_size);
    json_int(w, "nodes", n->group_world);
    json_int(w, "group_rank", n->group_rank);
    json_int(w, "first_rank", n->rank_base);
    json_int(w, "workers", ev->workers);
    event_log_end(ev->log);
}

static struct json_write *begin_worker(struct events *ev, const char *event, const struct failure_worker *f)
{
    struct json_write *w = begin(ev, event);
    if (!w)
        return NULL;
    json_int(w, "rank", f->rank);
    json_int(w, "local_rank", f->local_rank);
    json_int(w, "pid", f->pid);
    return w;
}

void events_started(struct events *ev, const struct failure_worker *workers, int n)
{
    for (int i = 0; i < n; i++)
        if (!workers[i].ended && begin_worker(ev, "worker_started", &workers[i])) /* else events_exited() wrote it */
            event_log_end(ev->log);
}

void events_exited(struct events *ev, const struct failure_worker *f, bool first)
{
    char name[32];
    if (failure_is(f))
        ev->figures.failed++;
    if (first && begin_worker(ev, "worker_started", f))
        event_log_end(ev->log);
    struct json_write *w = begin_worker(ev, "worker_exited", f);
    if (!w)
        return;
    json_int(w, "exit_code", ending_code(f->ending));
    if (f->ending.signaled) {
        json_text(w, "signal", signal_text(f->ending.value, name, sizeof name));
        json_bool(w, "core", f->ending.core);
    }
    json_bool(w, "told_to_stop", f->told_to_stop);
    event_log_end(ev->log);
}

void events_stop(struct events *ev, int reason, int64_t grace_ms)
{
    struct json_write *w = begin(ev, "stop");
    if (!w)
        return;
    json_text(w, "reason", crun_stop_reason_name((enum crun_stop_reason)reason));
    json_number(w, "grace_s", (double)grace_ms / 1000);
    event_log_end(ev->log);
}

void events_gone(struct events *ev)
{
    if (begin(ev, "round_ended"))
        event_log_end(ev->log);
}

void events_restart(struct events *ev, const struct timeline *t)
{
    struct event_figures *f = &ev->figures;
    f->restarts++;
    f->last_s = seconds(t->woken, t->spawned);
    f->restart_s += f->last_s;
#define X(field, name, from, to) f->field##_s = seconds(t->from, t->to);
    RESTART_PHASES(X)
#undef X
    struct json_write *w = begin(ev, "restart");
    if (!w)
        return;
    json_int(w, "restart", t->restart);
    json_text(w, "cause", t->cause);
    json_int(w, "kept", t->kept);
#define X(field, name, from, to)                                                                                       \
    if (t->to)                                                                                                         \
        json_number(w, name "_s", f->field##_s);
    RESTART_PHASES(X)
#undef X
    event_log_end(ev->log);
}

void events_hang(struct events *ev, int rank, const char *text)
{
    ev->figures.hangs++;
    struct json_write *w = begin(ev, "hang");
    if (!w)
        return;
    json_int(w, "rank", rank);
    json_text(w, "text", text);
    event_log_end(ev->log);
}

void events_straggler(struct events *ev, int rank, int peer, const char *why, uint64_t step, const char *text)
{
    struct json_write *w = begin(ev, "straggler");
    if (!w)
        return;
    json_int(w, "rank", rank);
    if (peer >= 0)
        json_int(w, "peer", peer);
    json_text(w, "class", why);
    json_int(w, "step", (int64_t)step);
    json_text(w, "text", text);
    event_log_end(ev->log);
}

void events_fenced(struct events *ev, const char *why)
{
    ev->figures.fenced++;
    struct json_write *w = begin(ev, "fenced");
    if (!w)
        return;
    json_text(w, "why", why);
    event_log_end(ev->log);
}

void events_signal(struct events *ev, int signo, const char *meaning)
{
    char name[32];
    struct json_write *w = begin(ev, "signal");
    if (!w)
        return;
    json_text(w, "signal", signal_text(signo, name, sizeof name));
    json_text(w, "meaning", meaning);
    event_log_end(ev->log);
}

void events_notice(struct events *ev, const char *option)
{
    struct json_write *w = begin(ev, "notice");
    if (!w)
        return;
    json_text(w, "by", option);
    event_log_end(ev->log);
}

void events_ended(struct events *ev, int code, int restarts, const char *cause)
{
    struct json_write *w = begin(ev, "job_ended");
    if (!w)
        return;
    json_int(w, "exit_code", code);
    json_int(w, "restarts", restarts);
    if (cause[0])
        json_text(w, "cause", cause);
    event_log_end(ev->log);
}
