#include "launcher/agent/agent_loop.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/agent/failures.h"
#include "launcher/agent/farewell.h"
#include "launcher/agent/hangs.h"
#include "launcher/agent/member.h"
#include "launcher/agent/run.h"
#include "launcher/agent/view.h"
#include "launcher/base/program.h"
#include "launcher/base/watch.h"
#include "launcher/config/config.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/tree.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/agent_http.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/remote/remote_wire.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/report/failure_report.h"

/* At the end, a console that reads nothing (a pager) is waited for this long, or until a stop signal. */
#define FLUSH_MS 600000
/* After the guardian's death nobody waits for us any more; this bounds the farewell. */
#define LOST_KILL_MS 30000

void run_post(struct run *r, const struct agent_event *ev)
{
    assert(r->queue_last - r->queue_first < RUN_QUEUE_MAX);
    r->queue[r->queue_last++ % RUN_QUEUE_MAX] = *ev;
}

static void finish(struct run *r, int code)
{
    char text[FAREWELL_MAX];
    const struct farewell f = {.code = code,
                               .signo = r->agent.signo,
                               .preempt = r->preempted ? r->config->stops.preempt : 0,
                               .ended = r->agent.ended,
                               .end_code = r->agent.code,
                               .bad = r->agent.bad_code != 0};
    round_say_timeline(r);
    switch (farewell(&f, text)) {
    case FAREWELL_NONE:
        r->failed = code != EXIT_OK;
        break;
    case FAREWELL_WHOLE:
        logmux_say(r->mux, "%s", text);
        break;
    case FAREWELL_STOPPED:
        round_say_stopped(r, text);
        break;
    }
    r->exit_code = code;
    r->done = true;
    events_ended(r->events, code, r->end.kind == RDZV_NEWS_END ? r->end.restart_count : r->round.restart_count,
                 r->end.cause.text);
}

/* --- effects */

static void on_grace_over(uv_timer_t *t)
{
    struct run *r = container_of(t, struct run, grace);
    if (r->grace_ms > 0)
        logmux_say(r->mux, "some workers did not end within %g s of SIGTERM; killing them", (double)r->grace_ms / 1000);
    run_post(r, &(struct agent_event){.kind = AGENT_GRACE_OVER});
    run_pump(r);
}

static void on_wait_over(uv_timer_t *t)
{
    struct run *r = container_of(t, struct run, grace);
    run_post(r, &(struct agent_event){.kind = AGENT_GRACE_OVER});
    run_pump(r);
}

static void stop_workers(struct run *r, int reason)
{
    log_info("agent", "stopping the workers reason=%s", crun_stop_reason_name((enum crun_stop_reason)reason));
    group_stop(r->group, reason);
    r->grace_ms = stops_grace_ms(&r->config->stops, reason);
    uv_timer_start(&r->grace, on_grace_over, (uint64_t)r->grace_ms, 0);
    events_stop(r->events, reason, r->grace_ms);
}

/* Requests are taken at once; only a rendezvous in this process can refuse one here, and then one of the two is
 * wrong. */
static void told(struct run *r, int rc, const struct err *e)
{
    if (rc == 0)
        return;
    log_error("agent", "the rendezvous refused a request: %s", e->text);
    run_post(r, &(struct agent_event){.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_END, .exit_code = EXIT_INTERNAL}});
}

static void apply(struct run *r, const struct agent_effect *f)
{
    struct err e = {0};
    struct rendezvous *z = r->rendezvous;
    log_debug("agent", "%s state=%s", agent_effect_name(f->kind), agent_state_name(r->agent.state));
    switch (f->kind) {
    case AGENT_DO_JOIN:
        told(r, rendezvous_join(z, &e), &e);
        break;
    case AGENT_DO_FAIL:
        told(r, rendezvous_fail(z, &f->cause, &e), &e);
        r->broken.told = clock_ns();
        break;
    case AGENT_DO_DONE:
        told(r, rendezvous_done(z, &e), &e);
        break;
    case AGENT_DO_LEAVE:
        told(r, rendezvous_leave(z, f->cause.exit_code ? &f->cause : NULL, &e), &e);
        break;
    case AGENT_DO_SPAWN:
        round_spawn(r, &f->news);
        break;
    case AGENT_DO_STOP:
        stop_workers(r, f->reason);
        break;
    case AGENT_DO_CLEAR:
        uv_timer_stop(&r->grace);
        group_clear(r->group);
        break;
    case AGENT_DO_AWAIT:
        uv_timer_start(&r->grace, on_wait_over, AGENT_PART_MS, 0);
        break;
    case AGENT_DO_EXIT:
        finish(r, f->code);
        break;
    }
}

static void step(struct run *r, const struct agent_event *ev)
{
    struct agent_effects fx;
    enum agent_state before = r->agent.state;
    agent_step(&r->agent, ev, &fx);
    if (r->agent.state != before) {
        log_debug("agent", "%s: %s -> %s", agent_event_name(ev->kind), agent_state_name(before),
                  agent_state_name(r->agent.state));
        events_state(r->events, agent_state_name(before), agent_state_name(r->agent.state), agent_event_name(ev->kind));
    }
    for (int i = 0; i < fx.n; i++)
        apply(r, &fx.v[i]);
}

void run_pump(struct run *r)
{
    if (r->pumping)
        return;
    r->pumping = true;
    while (r->queue_first != r->queue_last && !r->done) {
        struct agent_event ev = r->queue[r->queue_first++ % RUN_QUEUE_MAX];
        step(r, &ev);
    }
    r->pumping = false;
}

/* --- the world */

static bool is_stop(const struct run *r, int signo)
{
    const struct stops *s = &r->config->stops;
    return signo == s->preempt || sigismember(&s->handled.set, signo);
}

static bool is_typed(const struct signalfd_siginfo *info)
{
    return info->ssi_code == SI_QUEUE && info->ssi_int == GUARDIAN_TYPED;
}

/* The worker got it as well. */
static bool is_shared(const struct run *r, const struct signalfd_siginfo *info)
{
    return is_typed(info) && r->shares_terminal && (info->ssi_signo == SIGINT || info->ssi_signo == SIGQUIT);
}

/* A preemption notice, a wish to stop, or a word for the workers (SIGUSR1, SIGUSR2). */
static void take_signal(struct run *r, const struct signalfd_siginfo *info)
{
    const int signo = (int)info->ssi_signo;
    const struct stops *s = &r->config->stops;
    struct agent_event ev = {.kind = AGENT_SIGNAL,
                             .signo = signo,
                             .now_ms = clock_ms(),
                             .typed = is_typed(info),
                             .shared = is_shared(r, info)};
    if (!is_stop(r, signo)) {
        group_forward(r->group, signo);
        events_signal(r->events, signo, "forwarded");
    } else if (r->done) {
        r->hurry = true;
        r->drops_console = r->drops_console || !ev.shared;
    } else {
        if (signo == s->preempt)
            ev.kind = AGENT_PREEMPTED;
        r->preempted = r->preempted || signo == s->preempt;
        events_signal(r->events, signo, signo == s->preempt ? "preemption" : "stop");
        run_post(r, &ev);
    }
}

static void be_told(struct run *r, int signo, bool typed)
{
    const struct signalfd_siginfo info = {
        .ssi_signo = (uint32_t)signo, .ssi_code = SI_QUEUE, .ssi_int = typed ? GUARDIAN_TYPED : GUARDIAN_SENT};
    take_signal(r, &info);
}

/* The crun that started this one passes on signals; its end is the end of the job here. */
static void on_control(void *arg)
{
    struct run *r = arg;
    unsigned char byte;
    ssize_t n;
    while ((n = read((int)r->config->control_fd, &byte, 1)) == 1)
        if (byte == REMOTE_ASK)
            logmux_say_text(r->mux, REMOTE_ALIVE "\n");
        else
            be_told(r, byte & ~REMOTE_TYPED, byte & REMOTE_TYPED);
    if (n == 0) {
        watch_close(r->control);
        r->control = NULL;
        if (r->done)
            r->hurry = true;
        else
            run_post(r, &(struct agent_event){.kind = AGENT_SIGNAL, .signo = SIGTERM, .now_ms = clock_ms()});
    }
    run_pump(r);
}

static void on_signal(void *arg)
{
    struct run *r = arg;
    struct signalfd_siginfo info;
    bool child = false;
    while (read(r->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            child = true;
        else
            take_signal(r, &info);
    }
    run_pump(r);
    if (child && !r->done)
        group_on_sigchld(r->group);
}

static void log_to_console(void *arg, const char *line, size_t n)
{
    logmux_say_bytes(arg, line, n);
}

/* The pipe to the guardian ended: it was killed. Nobody would notice us any more, so everything goes, before anything
 * is said. */
static void on_guardian_gone(void *arg)
{
    struct run *r = arg;
    tree_kill(); /* first, as cgroup.kill may wait for other changes of cgroups */
    cgroup_kill(r->cgroup);
    if (tree_kill_all(LOST_KILL_MS) && r->rdzv_fd >= 0)
        guardian_prove(r->rdzv_fd);
    guardian_remove_scratch(r->link->scratch_dir);
    cgroup_remove_at(r->link->cgroup_dir);
    log_error("agent", "the guardian is gone; all workers were ended");
    _exit(128 + SIGKILL);
}

/* What the options name, and what is forwarded to workers; but nothing that was ignored at the start. */
static sigset_t handled_signals(const struct run *r)
{
    sigset_t set = r->config->stops.handled.set;
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    if (r->config->stops.preempt)
        sigaddset(&set, r->config->stops.preempt);
    for (int s = 1; s < 32; s++)
        if (sigismember(&r->link->ignored, s))
            sigdelset(&set, s);
    return set;
}

static int watch_world(struct run *r, struct err *e)
{
    sigset_t set = handled_signals(r), mask;
    guardian_signals(r->link, &set);
    sigaddset(&set, SIGCHLD);
    sigorset(&mask, &r->link->worker_mask, &set);
    sigaddset(&mask, SIGXFSZ); /* to a log file a limit is a full disk like any other, no end of crun */
    sigprocmask(SIG_SETMASK, &mask, NULL);
    r->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r->signal_fd < 0)
        return err_errno(e, errno, "signalfd");
    TRY(watch_open(&r->signals, &r->loop, r->signal_fd, UV_READABLE, on_signal, r, e));
    TRY(watch_open(&r->guardian, &r->loop, r->link->guardian_fd, UV_READABLE, on_guardian_gone, r, e));
    watch_set(r->signals, true);
    watch_set(r->guardian, true);
    if (r->config->control_fd < 0)
        return 0;
    TRY(watch_open(&r->control, &r->loop, (int)r->config->control_fd, UV_READABLE, on_control, r, e));
    watch_set(r->control, true);
    return 0;
}

/* A place for the workers' error records where no log folder was asked for. Without one (read-only system) they go
 * without. */
static void make_scratch(struct run *r)
{
    const char *base = getenv("TMPDIR");
    char path[GUARDIAN_PATH_MAX], *shared = r->link->scratch_dir;
    if (r->logs.root[0])
        return;
    int n = snprintf(path, sizeof path, "%s/crun-XXXXXX", base && *base ? base : "/tmp");
    if (n < 0 || (size_t)n >= sizeof path)
        return;
    /* Whenever we are killed, the guardian knows what we made: the folder is made under its shared name, whose first
     * byte comes last, lest it removes what half a name names. */
    memcpy(shared + 1, path + 1, (size_t)n);
    atomic_signal_fence(memory_order_seq_cst);
    shared[0] = path[0];
    if (!mkdtemp(shared))
        shared[0] = '\0';
}

static void choose_omp(struct run *r)
{
    const struct placement *p = &r->placement;
    if (!placement_sets_threads(p))
        return;
    int least = placement_threads(p, 0), most = least;
    for (int i = 1; i < p->workers; i++) {
        const int n = placement_threads(p, i);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    char range[32] = "";
    if (most > least)
        snprintf(range, sizeof range, " to %d", most);
    r->set_omp = true;
    logmux_say(r->mux, "OMP_NUM_THREADS is not set: each worker gets %d%s (workers: %d, cores: %d)", least, range,
               p->workers, p->cores);
}

static int make_cgroup(struct run *r, struct err *e)
{
    struct err why;
    if (r->config->cgroup == CONFIG_CGROUP_OFF ||
        cgroup_create(&r->cgroup, "/proc/self", r->link->cgroup_dir, &why) == 0)
        return 0;
    if (r->config->cgroup == CONFIG_CGROUP_ON)
        return err_set(e, why.code, "%s (--cgroup on)", why.text);
    log_debug("agent", "%s", why.text);
    return 0;
}

/* One worker's output needs no multiplexer then, and a debugger's prompt is no whole line. */
static bool shows_everything(const struct log_conf *l)
{
    return !l->dir && l->local_ranks.n == 0 && l->ranks.n == 0 && l->show == LOG_SHOW_ALL;
}

static int open_events(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const struct events_options o = {
        .mux = r->mux,
        .path = c->event_log,
        .console = strcmp(c->event_log_handler, "console") == 0,
        .run_id = c->run_id,
        .node = r->node,
        .host = r->host,
        .program = r->program->name,
        .workers = (int)c->nproc,
        .min_nodes = c->nnodes.min,
        .max_nodes = c->nnodes.max,
        .max_restarts = c->max_restarts,
        .rendezvous = home_kind_name(c->home.kind),
        .endpoint = c->home.kind == HOME_REDIS ? "" : c->home.endpoint, /* a URL may hold a password */
    };
    return events_open(&r->events, &o, e);
}

static int open_http(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const struct agent_http_options o = {.loop = &r->loop,
                                         .mux = r->mux,
                                         .port = (int)c->http_port,
                                         .bind = c->http_bind,
                                         .token_file = c->http_token_file,
                                         .any_host = c->http_insecure,
                                         .look = view_fill,
                                         .arg = r};
    return c->http_port < 0 ? 0 : agent_http_open(&r->http, &o, e);
}

static int open_parts(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const int n = (int)c->nproc;
    TRY(log_layout_open(&r->logs, &c->log, c->run_id, e));
    const struct logmux_options mux = {
        .conf = &c->log, .layout = &r->logs, .role = c->role, .host = r->host, .run_id = c->run_id, .max_workers = n};
    TRY(logmux_create(&r->mux, &r->loop, &mux, e));
    log_redirect(log_to_console, r->mux);
    TRY(failures_open(r, e));
    TRY(open_events(r, e));
    TRY(open_http(r, e));
    TRY(placement_plan(&r->placement, (enum binding_mode)c->numa_binding, n, e));
    TRY(make_cgroup(r, e));
    if (r->logs.root[0] && (c->log.dir_chosen || r->logs.torchrun)) /* else the path is known beforehand */
        logmux_say(r->mux, "the workers' output goes to %s", r->logs.root);
    r->shares_terminal = n == 1 && isatty(STDIN_FILENO);
    const struct group_options group = {
        .workers = n,
        .terminal_group = r->shares_terminal ? getpgid(getppid()) : 0,
        .terminal_out = isatty(STDOUT_FILENO) && shows_everything(&c->log),
        .kill_ms = (int64_t)(c->stops.kill * 1000),
        .path = r->program->path,
        .argv = r->program->argv,
        .mask = r->link->worker_mask,
        .on_pipe = r->link->worker_pipe,
        .on_ttou = r->link->worker_ttou,
        .nofile = r->link->worker_nofile,
        .bindings = r->placement.bindings,
        .cgroup = r->cgroup,
        .cgroup_must = c->cgroup == CONFIG_CGROUP_ON,
        .mux = r->mux,
        .events = round_events,
        .arg = r,
    };
    TRY(group_create(&r->group, &r->loop, &group, e));
    TRY(hangs_open(r, e));
    TRY(member_open(r, e));
    make_scratch(r);
    return watch_world(r, e);
}

static void flush_output(struct run *r)
{
    struct signalfd_siginfo info;
    while (read(r->signal_fd, &info, sizeof info) == sizeof info) /* of children that ended: old news */
        r->drops_console = r->drops_console || (is_stop(r, (int)info.ssi_signo) && !is_shared(r, &info));
    logmux_flush(r->mux, r->drops_console ? 0 : FLUSH_MS, (const int[2]){r->signal_fd, r->link->guardian_fd});
}

static void close_parts(struct run *r)
{
    watch_close(r->signals);
    watch_close(r->guardian);
    watch_close(r->control);
    uv_close((uv_handle_t *)&r->grace, NULL);
    agent_http_close(r->http);
    events_close(r->events);
    r->events = NULL;
    hang_watch_close(r->hang);
    r->hang = NULL;
    failure_report_close(r->failures);
    member_close(r);
    guardian_remove_scratch(r->link->scratch_dir);
    if (r->mux)
        flush_output(r);
    group_destroy(r->group);
    cgroup_destroy(r->cgroup);
    placement_free(&r->placement);
    log_redirect(NULL, NULL);
    logmux_destroy(r->mux);
    uv_run(&r->loop, UV_RUN_DEFAULT); /* only handles that close are left */
    uv_loop_close(&r->loop);
    if (r->signal_fd >= 0)
        close(r->signal_fd);
}

/* Host name first, so that ids sort as hosts do; containers may share host name and process id. */
static void name_node(struct run *r)
{
    uint16_t random = 0;
    gethostname(r->host, sizeof r->host - 1);
    if (r->config->home.kind == HOME_LOCAL) {
        snprintf(r->node, sizeof r->node, "%.40s-%d", r->host, (int)getpid());
        return;
    }
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint16_t)clock_ns();
    snprintf(r->node, sizeof r->node, "%.40s-%d-%04x", r->host, (int)getpid(), random);
}

/* A crun that hosts leaves last: the others may still be stopping their workers. */
static void see_off(struct run *r)
{
    const struct config *c = r->config;
    rendezvous_see_off(r->rendezvous, stops_longest_ms(&c->stops) + c->conf.close_timeout_ms, &r->hurry);
}

int agent_run(const struct config *c, const struct program *p, const struct guardian_link *link, int *ret_code,
              struct err *e)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return err_errno(e, ENOMEM, "agent");
    r->config = c;
    r->program = p;
    r->link = link;
    r->signal_fd = r->rdzv_fd = -1;
    r->nccl_async = getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
    if (!r->nccl_async)
        r->nccl_async = "1";
    name_node(r);
    uv_loop_init(&r->loop);
    uv_timer_init(&r->loop, &r->grace);
    uv_timer_init(&r->loop, &r->report);
    uv_timer_init(&r->loop, &r->take_over);
    agent_init(&r->agent, (int)c->nproc);
    int rc = open_parts(r, e);
    if (rc == 0) {
        choose_omp(r);
        run_post(r, &(struct agent_event){.kind = AGENT_START});
        run_pump(r);
        while (!r->done)
            uv_run(&r->loop, UV_RUN_ONCE);
        if (r->failed)
            failures_finish(r);
        see_off(r);
        *ret_code = r->exit_code;
    }
    close_parts(r);
    free(r);
    return rc;
}
