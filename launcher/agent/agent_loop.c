/* How an agent is put together and taken apart. What happens in between is in effects.c (the machine and its effects),
 * signals.c, member.c (the rendezvous) and round.c (the workers). */
#include "launcher/agent/agent_loop.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/container_of.h"
#include "common/base/dice.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/net/loop.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/failures.h"
#include "launcher/agent/hangs.h"
#include "launcher/agent/member.h"
#include "launcher/agent/notices.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/stragglers.h"
#include "launcher/agent/turns.h"
#include "launcher/agent/worker_setup.h"
#include "launcher/answer/answers.h"
#include "launcher/base/program.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/roster.h"
#include "launcher/observe/agent_http.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure_report.h"
#include "launcher/workers/group.h"

/* --- assembly */

static void log_to_console(void *arg, const char *line, size_t n)
{
    logmux_print_bytes(arg, line, n);
}

/* Name a folder for the workers' error records if the user wants no log folder; the output process makes it, because
 * it may lie on a disk that hangs. False: there is none. */
static bool name_scratch(struct run *r)
{
    const char *base = getenv("TMPDIR");
    if (r->logs.root[0])
        return false;
    const int n =
        snprintf(r->scratch, sizeof r->scratch, "%s/crun-%016" PRIx64, base && *base ? base : "/tmp", dice_seed());
    if (n > 0 && (size_t)n < sizeof r->scratch)
        return true;
    r->scratch[0] = '\0';
    return false;
}

static void on_noticed(void *arg)
{
    notices_file_found(arg);
}

/* Make this folder; false: it cannot be made, or not written to. */
static bool can_make(const char *folder)
{
    struct err e;
    file_at(folder);
    const bool can = path_make_writable(folder, &e) == 0;
    file_at(NULL);
    return can;
}

/* Choose the folder for logs. --tee and -r without a folder are mostly typed for the prefixes: if the default folder
 * cannot be written, run without log files. */
static int choose_logs(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const char *base = getenv("TMPDIR");
    char folder[1024];
    struct log_conf where = c->log;
    const int n = snprintf(folder, sizeof folder, "%s/crun-logs-XXXXXX", base && *base ? base : "/tmp");
    r->logs_moved =
        where.dir_chosen && !c->log.default_dir && !can_make(where.dir) && n < (int)sizeof folder && mkdtemp(folder);
    if (r->logs_moved)
        where.dir = folder;
    return log_layout_choose(&r->logs, &where, c->run_id, e);
}

static int open_output(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    TRY(choose_logs(r, e));
    const struct logmux_options o = {.fd = r->link->output_fd,
                                     .page = r->link->output_page,
                                     .conf = &c->log,
                                     .layout = &r->logs,
                                     .role = c->role,
                                     .host = r->host,
                                     .run_id = c->run_id,
                                     .max_workers = (int)c->nproc,
                                     .scratch = name_scratch(r) ? r->scratch : NULL,
                                     .event_log = c->event_log,
                                     .notice_file = c->stops.notice_file,
                                     .noticed = on_noticed,
                                     .arg = r};
    TRY(logmux_create(&r->mux, &r->loop, &o, e));
    log_redirect(log_to_console, r->mux);
    return 0;
}

static int open_events(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    const struct events_options o = {
        .mux = r->mux,
        .file = c->event_log,
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

static struct page *find_page(void *arg)
{
    return member_page(arg);
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
                                         .run_id = c->run_id,
                                         .look = view_fill,
                                         .page = find_page,
                                         .arg = r};
    return c->http_port < 0 ? 0 : agent_http_open(&r->http, &o, e);
}

static int open_answers(struct run *r, struct err *e)
{
    const struct answers_options o = {
        .loop = &r->loop, .logs = &r->logs, .look = view_fill, .answer = member_answer, .arg = r};
    return answers_open(&r->answers, &o, e);
}

/* Is all output shown unchanged on the console only? Then the worker that has the terminal writes to it directly: a
 * debugger's prompt is not a whole line. */
static bool shows_everything(const struct config *c)
{
    const struct log_conf *l = &c->log;
    const bool by_lines = c->nproc == 1 && log_conf_asks_for_lines(l);
    return !l->dir && l->local_ranks.n == 0 && l->ranks.n == 0 && l->show == LOG_SHOW_ALL && !by_lines;
}

static int open_group(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    roster_name(r->link->roster, c->run_id, r->node);
    const struct group_options o = {
        .workers = (int)c->nproc,
        .holds = config_holds(c),
        .spares = config_spares(c),
        .terminal_group = isatty(STDIN_FILENO) ? getpgid(getppid()) : 0,
        .stdin_rank = (int)c->stdin_rank,
        .has_stdin = isatty(STDIN_FILENO) || c->stdin_rank >= 0,
        .log = &c->log,
        .terminal_out = isatty(STDOUT_FILENO) && shows_everything(c),
        .kill_ms = (int64_t)(c->stops.kill * 1000),
        .path = r->program->path,
        .argv = r->program->argv,
        .mask = r->link->worker_mask,
        .on_pipe = r->link->worker_pipe,
        .on_ttou = r->link->worker_ttou,
        .nofile = r->link->worker_nofile,
        .bindings = worker_setup_bindings(r),
        .cgroup = worker_setup_cgroup(r),
        .cgroup_must = c->cgroup == CONFIG_CGROUP_ON,
        .oom = &r->oom,
        .roster = r->link->roster,
        .mux = r->mux,
        .events = round_events,
        .arg = r,
    };
    return group_create(&r->group, &r->loop, &o, e);
}

/* Open the parts. Output comes first, because errors of the others are reported through it. Signals come last: until
 * then the guardian's defaults hold, and nothing needs an orderly stop. */
static int open_parts(struct run *r, struct err *e)
{
    TRY(effects_open(r, e));
    TRY(turns_open(r, e));
    TRY(notices_open(r, e));
    TRY(signals_open(r, e));
    TRY(round_open(r, e));
    TRY(open_output(r, e));
    TRY(failures_open(r, e));
    TRY(open_events(r, e));
    TRY(open_http(r, e));
    logmux_greet(r->mux); /* the output process makes its folder while this process makes the cgroup */
    TRY(worker_setup_open(r, e));
    logmux_greet(r->mux);
    if (r->logs.root[0] && (r->config->log.dir_chosen || r->logs.torchrun)) /* else the path is known beforehand */
        logmux_print(r->mux, "the workers' output goes to %s%s", r->logs.root,
                     r->logs_moved ? ", since the current folder cannot be written (--log-dir names another)" : "");
    TRY(open_group(r, e));
    TRY(hangs_open(r, e));
    TRY(stragglers_open(r, e));
    TRY(open_answers(r, e));
    TRY(member_open(r, e));
    logmux_greet(r->mux);
    return signals_watch(r, e);
}

/* --- teardown */

/* Write what is left to the console, which may take its time unless another signal comes. */
static void flush(struct run *r)
{
    if (r->effects)
        effects_await_end(r, -1);
    signals_flush_output(r);
    if (r->effects)
        effects_await_end(r, 0);
}

/* Close the parts that could still call others first, then the ones that they could call. What others may still read
 * is freed after the loop's last turn. */
static void close_parts(struct run *r)
{
    signals_unwatch(r);
    effects_close(r);
    turns_close(r);
    notices_close(r);
    agent_http_close(r->http);
    events_close(r->events);
    r->events = NULL;
    hangs_close(r);
    stragglers_close(r);
    failure_report_close(r->failures);
    answers_close(r->answers);
    member_close(r);
    if (r->mux)
        flush(r);
    log_redirect(NULL, NULL);
    logmux_destroy(r->mux);
    group_destroy(r->group);
    worker_setup_close(r);
    uv_run(&r->loop, UV_RUN_DEFAULT); /* only handles that close are left */
    uv_loop_close(&r->loop);
    effects_free(r);
    turns_free(r);
    notices_free(r);
    member_free(r);
    stragglers_free(r);
    round_close(r);
    signals_close(r);
}

/* --- the run */

/* Make the node id: the whole host name, then a byte that sorts before all characters of names, so that ids sort as
 * hosts do. Containers may share host name and process id, and two nodes with one id would displace each other:
 * hence the 64 random bits. */
static void name_node(struct run *r)
{
    gethostname(r->host, sizeof r->host - 1);
    if (r->config->home.kind == HOME_LOCAL) {
        snprintf(r->node, sizeof r->node, "%s+%d", r->host, (int)getpid());
        return;
    }
    snprintf(r->node, sizeof r->node, "%s+%d-%016" PRIx64, r->host, (int)getpid(), dice_seed());
}

static int run_job(struct run *r, int *ret_code, struct err *e)
{
    TRY(open_parts(r, e));
    worker_setup_choose_threads(r);
    run_post(r, &(struct agent_event){.kind = AGENT_START});
    run_pump(r);
    while (!run_is_done(r))
        uv_run(&r->loop, UV_RUN_ONCE);
    if (run_has_failed(r))
        failures_finish(r);
    member_see_off(r);
    *ret_code = run_exit_code(r);
    return 0;
}

int agent_run(const struct config *c, const struct program *p, const struct guardian_link *link,
              const struct cgroup_tables *cgroups, int *ret_code, struct err *e)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return err_errno(e, ENOMEM, "agent");
    r->config = c;
    r->program = p;
    r->link = link;
    r->cgroups = cgroups;
    oom_kills_open(&r->oom, cgroups);
    r->shares_terminal = c->nproc == 1 && c->log.ptys.n == 0 && isatty(STDIN_FILENO);
    name_node(r);
    agent_init(&r->agent, (int)c->nproc, (int)c->spare_exit_code);
    int rc = loop_open(&r->loop, e);
    if (rc == 0) {
        rc = run_job(r, ret_code, e);
        close_parts(r);
    }
    oom_kills_close(&r->oom);
    free(r);
    return rc;
}
