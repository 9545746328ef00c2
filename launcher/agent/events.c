#include "launcher/agent/events.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/include/crun.h"
#include "launcher/agent/run.h"
#include "launcher/base/ending.h"
#include "launcher/base/program.h"
#include "launcher/config/config.h"
#include "launcher/observe/event_log.h"
#include "launcher/output/logmux.h"

static double seconds(int64_t from, int64_t to)
{
    return from > 0 && to > from ? (double)(to - from) / 1e9 : 0;
}

/* --- life */

static void say_line(void *arg, const char *line)
{
    logmux_say_text(arg, line);
}

static void say_failure(void *arg, const char *text)
{
    logmux_say(arg, "%s", text);
}

int events_open(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const bool console = strcmp(c->event_log_handler, "console") == 0;
    const struct event_log_options o = {.path = c->event_log,
                                        .run_id = c->run_id,
                                        .node = r->node,
                                        .say = console ? say_line : NULL,
                                        .fail = say_failure,
                                        .arg = r->mux};
    r->figures.state_ns = clock_ns();
    if (!c->event_log && !console)
        return 0;
    TRY(event_log_open(&r->events, &o, e));
    struct json_write *w = event_log_begin(r->events, "agent_started");
    json_text(w, "version", CRUN_VERSION);
    json_text(w, "host", r->host);
    json_int(w, "pid", getpid());
    json_text(w, "program", r->program->name);
    json_int(w, "workers", c->nproc);
    json_int(w, "min_nodes", c->nnodes.min);
    json_int(w, "max_nodes", c->nnodes.max);
    json_int(w, "max_restarts", c->max_restarts);
    json_text(w, "rendezvous", home_kind_name(c->home.kind));
    json_text(w, "endpoint", c->home.kind == HOME_REDIS ? "" : c->home.endpoint); /* a URL may hold a password */
    event_log_end(r->events);
    return 0;
}

void events_close(struct run *r)
{
    event_log_close(r->events);
    r->events = NULL;
}

static struct json_write *begin(struct run *r, const char *kind)
{
    struct json_write *w = event_log_begin(r->events, kind);
    if (w)
        json_int(w, "round", (long long)r->round.round);
    return w;
}

/* --- what happens */

void events_state(struct run *r, enum agent_state before, enum agent_event_kind why)
{
    const int64_t now = clock_ns();
    struct json_write *w = begin(r, "state");
    if (w) {
        json_text(w, "from", agent_state_name(before));
        json_text(w, "to", agent_state_name(r->agent.state));
        json_text(w, "because", agent_event_name(why));
        json_number(w, "after_s", seconds(r->figures.state_ns, now));
        event_log_end(r->events);
    }
    r->figures.state_ns = now;
}

static void members_changed(struct run *r, const struct rdzv_news *before)
{
    const struct rdzv_news *n = &r->round;
    if (before->round == 0 || (before->group_world == n->group_world && before->world_size == n->world_size))
        return;
    struct json_write *w = begin(r, "members_changed");
    if (!w)
        return;
    json_int(w, "nodes_before", before->group_world);
    json_int(w, "nodes", n->group_world);
    json_int(w, "world_size_before", before->world_size);
    json_int(w, "world_size", n->world_size);
    event_log_end(r->events);
}

void events_round(struct run *r, const struct rdzv_news *before)
{
    const struct rdzv_news *n = &r->round;
    r->figures.rounds++;
    members_changed(r, before);
    struct json_write *w = begin(r, "round_started");
    if (!w)
        return;
    json_text(w, "reason", n->why == RDZV_WHY_START ? "start" : crun_stop_reason_name((enum crun_stop_reason)n->why));
    json_int(w, "restarts", n->restart_count);
    json_int(w, "world_size", n->world_size);
    json_int(w, "nodes", n->group_world);
    json_int(w, "group_rank", n->group_rank);
    json_int(w, "first_rank", n->rank_base);
    json_int(w, "workers", r->agent.slots);
    event_log_end(r->events);
}

static struct json_write *begin_worker(struct run *r, const char *event, const struct failure_worker *f)
{
    struct json_write *w = begin(r, event);
    if (!w)
        return NULL;
    json_int(w, "rank", f->rank);
    json_int(w, "local_rank", f->local_rank);
    json_int(w, "pid", f->pid);
    return w;
}

void events_started(struct run *r)
{
    const struct failure_worker *f = group_workers(r->group);
    for (int i = 0; i < r->agent.slots; i++)
        if (!f[i].ended && begin_worker(r, "worker_started", &f[i])) /* else events_exited() has told */
            event_log_end(r->events);
}

void events_exited(struct run *r, const struct failure_worker *f)
{
    char name[32];
    if (failure_is(f))
        r->figures.failed++;
    if (!r->timeline.spawned && !r->unspawned && begin_worker(r, "worker_started", f))
        event_log_end(r->events); /* it ended while others were being started */
    struct json_write *w = begin_worker(r, "worker_exited", f);
    if (!w)
        return;
    json_int(w, "exit_code", ending_code(f->ending));
    if (f->ending.signaled) {
        json_text(w, "signal", signal_text(f->ending.value, name, sizeof name));
        json_bool(w, "core", f->ending.core);
    }
    json_bool(w, "told_to_stop", f->told_to_stop);
    event_log_end(r->events);
}

void events_stop(struct run *r, int reason, int64_t grace_ms)
{
    struct json_write *w = begin(r, "stop");
    if (!w)
        return;
    json_text(w, "reason", crun_stop_reason_name((enum crun_stop_reason)reason));
    json_number(w, "grace_s", (double)grace_ms / 1000);
    event_log_end(r->events);
}

void events_gone(struct run *r)
{
    if (begin(r, "round_ended"))
        event_log_end(r->events);
}

void events_restart(struct run *r, const struct timeline *t)
{
    struct event_figures *f = &r->figures;
    f->restarts++;
    f->last_s = seconds(t->woken, t->spawned);
    f->restart_s += f->last_s;
#define X(field, name, from, to) f->field##_s = seconds(t->from, t->to);
    RESTART_PHASES(X)
#undef X
    struct json_write *w = begin(r, "restart");
    if (!w)
        return;
    json_int(w, "restart", t->restart);
    json_text(w, "cause", t->cause);
#define X(field, name, from, to)                                                                                       \
    if (t->to)                                                                                                         \
        json_number(w, name "_s", f->field##_s);
    RESTART_PHASES(X)
#undef X
    event_log_end(r->events);
}

void events_hang(struct run *r, int rank, const char *text)
{
    r->figures.hangs++;
    struct json_write *w = begin(r, "hang");
    if (!w)
        return;
    json_int(w, "rank", rank);
    json_text(w, "text", text);
    event_log_end(r->events);
}

void events_fenced(struct run *r, const char *why)
{
    r->figures.fenced++;
    struct json_write *w = begin(r, "fenced");
    if (!w)
        return;
    json_text(w, "why", why);
    event_log_end(r->events);
}

void events_signal(struct run *r, int signo, const char *meaning)
{
    char name[32];
    struct json_write *w = begin(r, "signal");
    if (!w)
        return;
    json_text(w, "signal", signal_text(signo, name, sizeof name));
    json_text(w, "meaning", meaning);
    event_log_end(r->events);
}

void events_ended(struct run *r, int code)
{
    struct json_write *w = begin(r, "job_ended");
    if (!w)
        return;
    json_int(w, "exit_code", code);
    json_int(w, "restarts", r->end.kind == RDZV_NEWS_END ? r->end.restart_count : r->round.restart_count);
    if (r->end.cause.text[0])
        json_text(w, "cause", r->end.cause.text);
    event_log_end(r->events);
}
