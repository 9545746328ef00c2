/* How a group starts its workers: pipes, log files, processes (workers/group.h). */
#include "launcher/workers/group_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "launcher/base/oom.h"
#include "launcher/base/pty.h"
#include "launcher/base/watch.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/roster.h"
#include "launcher/guard/tree.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/logmux.h"
#include "launcher/place/binding.h"
#include "launcher/workers/spawn.h"
#include "launcher/workers/spawn_thread.h"

static void group_close_pipe_ends(struct group *g);
static int group_copy_fds(const int from[2], int to[2], struct err *e);

extern char **environ;

/* Warn that a worker has no shared page: hangs and steps are not seen, reasons of stops and error texts not passed
 * on. */
static void warn_unshared(struct group *g)
{
    if (!g->unshared)
        logmux_print(
            g->o.mux,
            "the limit on file sizes (ulimit -f) leaves no page to share with a worker: libcrun's words do not "
            "reach crun, nor crun's reasons the workers");
    g->unshared = true;
}

struct launch {
    struct spawn_batch batch;
    struct group *g;
    int n; /* number of `local` below: workers whose processes are being prepared */
    int *locals;
    int status_fd;
    int typist_fd; /* -1: none */
    char typist_number[16];
    struct prepared {
        char **env, **argv;    /* argv NULL: that of all */
        int page_fd, stdio_fd; /* -1: none */
    } * prepared;
    struct spawn_request *requests;
    struct spawned *spawned;
};

static void free_launch(struct launch *l)
{
    for (int i = 0; l->prepared && i < l->n; i++) {
        free(l->prepared[i].env);
        free(l->prepared[i].argv);
        if (l->prepared[i].page_fd >= 0)
            close(l->prepared[i].page_fd);
        if (l->prepared[i].stdio_fd >= 0)
            close(l->prepared[i].stdio_fd);
    }
    group_close_pipe_ends(l->g);
    group_drop_retired(l->g);
    if (l->status_fd >= 0)
        close(l->status_fd);
    if (l->typist_fd >= 0)
        close(l->typist_fd);
    free(l->locals);
    free(l->prepared);
    free(l->requests);
    free(l->spawned);
    free(l);
}

/* Choose the path of the error record, which the process keeps from round to round. */
static int name_error_record(struct group *g, struct child *c, struct err *e)
{
    const int spare = c->local - g->o.workers;
    const char *path = g->o.events.make_error_path(g->o.arg, spare < 0 ? c->local : -1, spare < 0 ? -1 : spare);
    c->error_path = path ? strdup(path) : NULL;
    return path && !c->error_path ? err_errno(e, ENOMEM, "a worker's error record") : 0;
}

static int prepare_one(struct launch *l, int local, struct err *e)
{
    struct group *g = l->g;
    struct child *c = &g->children[local];
    struct prepared *p = &l->prepared[l->n];
    struct spawn_request *r = &l->requests[l->n];
    const bool is_spare = local >= g->o.workers;
    const int named = is_spare ? -1 : local;
    p->page_fd = p->stdio_fd = -1;
    l->locals[l->n++] = local;
    const int rc = group_create_page(g, c, &p->page_fd, e);
    if (rc == 1)
        warn_unshared(g);
    TRY(rc);
    if (is_spare) {
        TRY(group_make_spare(c, &p->stdio_fd, e));
        TRY(group_copy_fds(g->children[0].keep, c->out, e));
    }
    TRY(name_error_record(g, c, e));
    TRY(g->o.events.make_env(g->o.arg, named, p->page_fd, c->error_path, &p->env, e));
    TRY(g->o.events.make_argv(g->o.arg, named, &p->argv, e));
    *r = (struct spawn_request){.path = g->o.path,
                                .argv = p->argv ? p->argv : g->o.argv,
                                .envp = p->env,
                                .stdio = {c->pty                      ? c->out[0]
                                          : c->reads && g->in_fd >= 0 ? g->in_fd
                                                                      : g->null_fd,
                                          c->guest && g->out_fd >= 0 ? g->out_fd : c->out[0], c->out[1]},
                                .group = c->guest ? g->o.terminal_group : 0,
                                .roster = roster_at(g->o.roster, local),
                                .terminal = c->pty,
                                .keep = {p->page_fd, g->notify_fd, g->memory_fd, c->wake_fd, p->stdio_fd},
                                .n_keep = c->wake_fd < 0 ? 3
                                          : is_spare     ? 5
                                                         : 4,
                                .status_fd = l->status_fd,
                                .tag = local,
                                .mask = &g->o.mask,
                                .on_pipe = &g->o.on_pipe,
                                .on_ttou = &g->o.on_ttou,
                                .nofile = &g->o.nofile,
                                .binding = g->o.bindings && !is_spare ? &g->o.bindings[local] : NULL,
                                .cgroup_fd = cgroup_fd(g->o.cgroup),
                                .cgroup_must = g->o.cgroup_must};
    return 0;
}

/* Prepare the typist, a process that copies what is typed on crun's terminal to the worker's own pty. Only a member
 * of the process group that has crun's terminal can read there. It is one more process of the batch, not a worker. */
static void prepare_typist(struct launch *l)
{
    static const char *argv[] = {"job-typist", PTY_TYPIST_COMMAND, NULL, NULL};
    struct group *g = l->g;
    const struct child *reader = NULL;
    for (int i = 0; i < g->o.workers; i++)
        if (g->children[i].pty && g->children[i].reads)
            reader = reader ? reader : &g->children[i];
    if (!reader || !g->o.terminal_group || (l->typist_fd = logmux_pty(g->o.mux, reader->local)) < 0)
        return;
    snprintf(l->typist_number, sizeof l->typist_number, "%d", l->typist_fd);
    argv[2] = l->typist_number;
    l->requests[l->n] = (struct spawn_request){.path = "/proc/self/exe",
                                               .argv = (char *const *)argv,
                                               .envp = environ,
                                               .stdio = {g->in_fd, g->null_fd, g->null_fd},
                                               .group = g->o.terminal_group,
                                               .keep = {l->typist_fd},
                                               .n_keep = 1,
                                               .status_fd = l->status_fd,
                                               .tag = -1,
                                               .mask = &g->o.mask,
                                               .on_pipe = &g->o.on_pipe,
                                               .on_ttou = &g->o.on_ttou,
                                               .nofile = &g->o.nofile,
                                               .cgroup_fd = -1};
    spawn_thread_add(g->spawner, &l->batch);
}

static void on_spawned(struct spawn_batch *b);

static int create_launch(struct launch **ret, struct group *g, struct err *e)
{
    const size_t n = (size_t)group_slots(g);
    struct launch *l = calloc(1, sizeof *l);
    if (!l)
        return err_errno(e, ENOMEM, "workers");
    *ret = l;
    l->g = g;
    l->status_fd = l->typist_fd = -1;
    l->locals = calloc(n, sizeof *l->locals);
    l->prepared = calloc(n, sizeof *l->prepared);
    l->requests = calloc(n + 1, sizeof *l->requests); /* and the typist */
    l->spawned = calloc(n + 1, sizeof *l->spawned);
    if (!l->locals || !l->prepared || !l->requests || !l->spawned)
        return err_errno(e, ENOMEM, "workers");
    l->batch = (struct spawn_batch){.requests = l->requests, .spawned = l->spawned, .done = on_spawned};
    return 0;
}

/* Held workers have the eventfd already. */
static int open_channels(struct group *g, struct launch *l, struct err *e)
{
    int status[2];
    if (pipe2(status, O_CLOEXEC) < 0)
        return err_errno(e, errno, "pipe");
    g->status_fd = status[0];
    l->status_fd = status[1];
    fcntl(status[0], F_SETFL, O_NONBLOCK);
    if (g->notify_fd < 0)
        g->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return g->notify_fd < 0 ? err_errno(e, errno, "eventfd") : 0;
}

/* Prepare all requests; the first is started while the next ones are prepared. */
static void prepare_all(struct group *g, struct launch *l)
{
    struct err e = {0};
    int rc = 0;
    const int first = g->warming ? g->o.workers : 0, end = g->warming ? group_slots(g) : g->o.workers;
    for (int i = first; i < end && rc == 0; i++) {
        if (g->children[i].held || (g->warming && g->children[i].page))
            continue;
        rc = prepare_one(l, i, &e);
        if (rc == 0)
            spawn_thread_add(g->spawner, &l->batch);
    }
    if (rc == 0 && !g->warming)
        prepare_typist(l);
    spawn_thread_complete(g->spawner, &l->batch, rc, &e);
}

static int launch(struct group *g, struct err *e)
{
    struct launch *l = NULL;
    int rc = g->spawner ? 0 : spawn_thread_create(&g->spawner, g->loop, g->o.workers, e);
    if (rc == 0)
        rc = create_launch(&l, g, e);
    if (rc == 0)
        rc = open_channels(g, l, e);
    if (rc < 0) {
        if (l)
            free_launch(l);
        group_close_pipe_ends(g);
        return rc;
    }
    g->launch = l;
    spawn_thread_start(g->spawner, &l->batch);
    prepare_all(g, l);
    return 0;
}

/* Start a process for each worker that is not held; their pipes exist. */
static int group_launch(struct group *g, struct err *e)
{
    group_set(g, GROUP_OPENED);
    g->warming = false;
    uv_timer_stop(&g->late);
    logmux_note_launch(g->o.mux);
    return launch(g, e);
}

int group_launch_spares(struct group *g, struct err *e)
{
    g->warming = true;
    return launch(g, e);
}

/* Forget processes that are not workers. The typist is reaped with the orphans, and so are those made after one that
 * failed: the round ends, and they with it. */
static void drop_spawned(const struct spawn_batch *b, int from, bool has_failed)
{
    for (int i = from; i < b->n_begun; i++) {
        if (!b->spawned[i].pid)
            continue;
        if (has_failed)
            syscall(SYS_pidfd_send_signal, b->spawned[i].pidfd, SIGKILL, NULL, 0);
        close(b->spawned[i].pidfd);
    }
}

static int watch_new(struct group *g, struct err *e)
{
    TRY(watch_open(&g->status, g->loop, g->status_fd, UV_READABLE, group_on_status, g, e));
    watch_set(g->status, true);
    if (g->notify)
        return 0;
    TRY(watch_open(&g->notify, g->loop, g->notify_fd, UV_READABLE, group_on_notify, g, e));
    watch_set(g->notify, true);
    return 0;
}

static int take_spawned(struct group *g, const struct launch *l, struct err *e)
{
    const struct spawn_batch *b = &l->batch;
    int rc = 0, k = 0;
    for (; k < b->n_begun && k < l->n && b->spawned[k].pid; k++) {
        const int i = l->locals[k];
        g->children[i].pidfd = b->spawned[k].pidfd;
        g->workers[i].pid = b->spawned[k].pid;
        g->n = i < g->n || g->warming ? g->n : i + 1;
        const int watched = group_watch_child(g, &g->children[i]);
        if (watched < 0)
            rc = err_errno(e, -watched, "cannot watch process %d", (int)b->spawned[k].pid);
    }
    drop_spawned(b, k, k < l->n);
    TRY(rc);
    return watch_new(g, e);
}

/* Forward signals that came during the launch: a worker may have been ready for them before we knew its pid. */
static void forward_late(struct group *g)
{
    const uint64_t signals = g->forward;
    g->forward = 0;
    for (int signo = 1; signo <= 64; signo++)
        if (signals >> (signo - 1) & 1)
            group_forward(g, signo);
}

static void on_spawned(struct spawn_batch *b)
{
    struct launch *l = container_of(b, struct launch, batch);
    struct group *g = l->g;
    struct err e = b->e;
    const bool was_wanted = g->launch == l;
    int rc = b->rc;
    g->launch = NULL;
    if (was_wanted && take_spawned(g, l, rc < 0 ? NULL : &e) < 0 && rc == 0)
        rc = e.code;
    free_launch(l);
    if (group_state_clears(g->state)) { /* kill those born meanwhile */
        group_kill_children(g);
        group_check_gone(g);
        return;
    }
    if (rc < 0 && g->warming)
        logmux_print(g->o.mux, "no warm spares: %s", e.text);
    else if (rc < 0)
        g->o.events.failed(g->o.arg, rc, e.text);
    else if (g->state == GROUP_HOLDING)
        group_hold(g);
    else if (g->state == GROUP_STOPPING)
        group_stop_late(g);
    else if (g->paused)
        group_pause(g, true, g->pause_typed);
    forward_late(g);
    group_look_for_stops(g); /* SIGCHLD may have come before we knew the pids */
    group_reap_orphans(g);
}

void group_cancel_launch(struct group *g)
{
    if (g->launch)
        atomic_store(&g->launch->batch.cancelled, true);
}

#define WARM_UP_MS 3000 /* ms that spares wait for the first step, which they would slow down */

/* The log files are not open in time: start the workers without them (the output process prints that the disk
 * hangs). Or, in a running round, it is time to start the spares. */
static void on_late(uv_timer_t *t)
{
    struct group *g = container_of(t, struct group, late);
    if (g->state == GROUP_OPENING)
        group_launch_now(g);
    else
        group_warm_up(g);
}

void group_warm_up_soon(struct group *g)
{
    if (g->state != GROUP_OPENING && g->status_fd < 0)
        uv_timer_start(&g->late, on_late, WARM_UP_MS, 0);
}

/* --- what the new processes report */

void group_close_status(struct group *g)
{
    watch_close(g->status);
    g->status = NULL;
    if (g->status_fd >= 0)
        close(g->status_fd);
    g->status_fd = -1;
}

/* Read which execs failed; end-of-file comes when no process is left between clone and exec. */
void group_on_status(void *arg)
{
    struct group *g = arg;
    struct spawn_failure f;
    while (g->status_fd >= 0) {
        ssize_t n = read(g->status_fd, &f, sizeof f);
        if (n == sizeof f && f.tag >= 0) {
            if (!g->warming) /* else the workers' start was reported already */
                g->o.events.unstarted(g->o.arg, f.tag, f.error);
        } else if (n == 0) {
            group_close_status(g);
            if (!g->warming) {
                g->o.events.started(g->o.arg);
                group_warm_up_soon(g);
            }
        } else {
            return;
        }
    }
}

void group_close_notify(struct group *g)
{
    watch_close(g->notify);
    g->notify = NULL;
    if (g->notify_fd >= 0)
        close(g->notify_fd);
    g->notify_fd = -1;
}

/* Time of the first step of the round, 0: none yet. Pages of held workers may still show the round before. */
static int64_t first_step(const struct group *g)
{
    int64_t first = 0;
    for (int i = 0; i < g->n; i++) {
        struct crun_page *p = g->children[i].page;
        const int64_t t = p ? atomic_load(&p->first_step_ns) : 0;
        if (t > g->begun_ns && (first == 0 || t < first))
            first = t;
    }
    return first;
}

void group_on_notify(void *arg)
{
    struct group *g = arg;
    uint64_t n;
    ssize_t ignored = g->notify_fd >= 0 ? read(g->notify_fd, &n, sizeof n) : 0; /* the count does not matter */
    (void)ignored;
    const int64_t first = g->progressed ? 0 : first_step(g);
    if (first > 0) {
        g->progressed = true;
        g->o.events.progressed(g->o.arg, first);
        group_warm_up(g);
    }
    group_take_acks(g);
}

static void close_pipe_ends(struct child *c)
{
    for (int i = 0; i < 2; i++)
        if (c->out[i] >= 0)
            close(c->out[i]);
    c->out[0] = c->out[1] = -1;
}

/* Decide which worker has crun's terminal, which a pty, and which reads crun's standard input. */
static struct child place_child(const struct group *g, int local, int rank)
{
    struct child c = {.local = local, .pidfd = -1, .out = {-1, -1}, .keep = {-1, -1}, .wake_fd = -1, .stdio_fd = -1};
    const bool named = g->o.stdin_rank >= 0;
    c.pty = log_conf_has_pty(g->o.log, rank);
    c.reads = g->o.has_stdin && (named ? rank == g->o.stdin_rank : g->o.workers == 1 || c.pty);
    c.guest = c.reads && !c.pty && g->o.terminal_group > 0;
    return c;
}

static int group_copy_fds(const int from[2], int to[2], struct err *e)
{
    for (int i = 0; i < 2; i++)
        if ((to[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 3)) < 0)
            return err_errno(e, errno, "cannot copy a pipe of a worker");
    return 0;
}

void group_close_kept(struct child *c)
{
    for (int i = 0; i < 2; i++)
        if (c->keep[i] >= 0)
            close(c->keep[i]);
    c->keep[0] = c->keep[1] = -1;
}

static int make_pipes(struct group *g, int rank_base, struct err *e)
{
    for (int i = 0; i < g->o.workers; i++) {
        g->children[i] = place_child(g, i, rank_base + i);
        g->workers[i] = (struct failure_worker){.rank = rank_base + i, .local_rank = i};
    }
    for (int i = 0; i < g->o.workers; i++) {
        struct child *c = &g->children[i];
        TRY(logmux_add(g->o.mux, i, c->out, e));
        if (g->o.holds)
            TRY(group_copy_fds(c->out, c->keep, e));
    }
    return 0;
}

/* Keep held workers in their places; each of the others becomes a new process with the same pipes. */
static int take_over(struct group *g, int rank_base, struct err *e)
{
    g->n = g->o.workers;
    for (int i = 0; i < g->o.workers; i++) {
        struct child *c = &g->children[i];
        struct failure_worker *w = &g->workers[i];
        const bool held = c->held;
        const int keep[2] = {c->keep[0], c->keep[1]};
        *w = (struct failure_worker){.rank = rank_base + i, .local_rank = i, .pid = held ? w->pid : 0};
        if (held)
            continue;
        group_drop_page(c);
        *c = place_child(g, i, rank_base + i);
        memcpy(c->keep, keep, sizeof keep);
        TRY(group_copy_fds(c->keep, c->out, e));
    }
    return 0;
}

/* the workers' */
static void group_close_pipe_ends(struct group *g)
{
    for (int i = 0; i < group_slots(g); i++)
        close_pipe_ends(&g->children[i]);
}

/* --- log files first */

void group_launch_now(struct group *g)
{
    struct err e = {0};
    if (g->state != GROUP_OPENING)
        return;
    const int rc = group_launch(g, &e);
    if (rc < 0)
        g->o.events.failed(g->o.arg, rc, e.text);
}

void group_give_up_opening(struct group *g)
{
    group_set(g, GROUP_OPENED);
    uv_timer_stop(&g->late);
    group_close_pipe_ends(g);
}

static void on_opened(void *arg, int rc, const char *text)
{
    struct group *g = arg;
    if (rc == 0) {
        group_launch_now(g);
        return;
    }
    if (g->state == GROUP_OPENING)
        group_give_up_opening(g);
    g->o.events.failed(g->o.arg, rc, text);
}

/* Start the next round beside held workers: files are open, pipes exist. Kill processes that lost their parent
 * meanwhile. */
static int resume(struct group *g, int rank_base, struct err *e)
{
    pid_t *kept = calloc((size_t)group_slots(g), sizeof *kept);
    if (!kept)
        return err_errno(e, ENOMEM, "workers");
    tree_others(kept, group_kept(g, kept), true);
    free(kept);
    group_use_spares(g);
    int rc = take_over(g, rank_base, e);
    if (rc < 0) {
        group_close_pipe_ends(g);
        return rc;
    }
    rc = group_launch(g, e);
    group_tell_round(g);
    return rc;
}

int group_start(struct group *g, int rank_base, struct err *e)
{
    const bool goes_on = group_held(g) > 0;
    g->begun_ns = clock_ns();
    g->progressed = false;
    g->deaths = 0;
    if (g->o.oom)
        oom_kills_begin(g->o.oom);
    group_set(g, GROUP_START);
    g->paused = false;
    g->goes_on = goes_on;
    if (goes_on)
        return resume(g, rank_base, e);
    group_drop_retired(g); /* no process was made since */
    for (int i = 0; i < group_slots(g); i++)
        if (!group_is_there(&g->workers[i])) /* a spare that was dropped may not be dead yet */
            group_retire_page(g, &g->children[i]);
    g->n = 0;
    const int rc = make_pipes(g, rank_base, e);
    if (rc < 0) {
        group_close_pipe_ends(g);
        return rc;
    }
    if (!logmux_open_files(g->o.mux, on_opened, g))
        return group_launch(g, e);
    group_set(g, GROUP_OPEN);
    uv_timer_start(&g->late, on_late, LOGMUX_OPEN_MS, 0);
    return 0;
}
