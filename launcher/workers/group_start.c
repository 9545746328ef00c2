/* How the workers of a group come to be: pipes, log files, shared pages, processes (workers/group.h). */
#include "launcher/workers/group_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "launcher/base/pty.h"
#include "launcher/base/watch.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/tree.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/logmux.h"
#include "launcher/place/binding.h"
#include "launcher/workers/spawn_thread.h"

extern char **environ;

/* --- what the new processes tell */

void group_close_status(struct group *g)
{
    watch_close(g->status);
    g->status = NULL;
    if (g->status_fd >= 0)
        close(g->status_fd);
    g->status_fd = -1;
}

/* Execs that failed, then end-of-file when no process is left between clone and exec. */
void group_on_status(void *arg)
{
    struct group *g = arg;
    struct spawn_failure f;
    while (g->status_fd >= 0) {
        ssize_t n = read(g->status_fd, &f, sizeof f);
        if (n == sizeof f && f.tag >= 0) {
            g->o.events.unstarted(g->o.arg, f.tag, f.error);
        } else if (n == 0) {
            group_close_status(g);
            g->o.events.started(g->o.arg);
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

/* The first step of the round, 0: none yet. Pages of those that were held may still tell of the round before. */
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
    ssize_t ignored = g->notify_fd >= 0 ? read(g->notify_fd, &n, sizeof n) : 0; /* how often is of no interest */
    (void)ignored;
    const int64_t first = g->progressed ? 0 : first_step(g);
    if (first > 0) {
        g->progressed = true;
        g->o.events.progressed(g->o.arg, first);
    }
    group_take_acks(g);
}

/* Hangs and steps are not seen then, reasons of stops and records not told. */
static void warn_unshared(struct group *g)
{
    if (!g->unshared)
        logmux_print(
            g->o.mux,
            "the limit on file sizes (ulimit -f) leaves no page to share with a worker: libcrun's words do not "
            "reach crun, nor crun's reasons the workers");
    g->unshared = true;
}

static void close_pipe_ends(struct child *c)
{
    for (int i = 0; i < 2; i++)
        if (c->out[i] >= 0)
            close(c->out[i]);
    c->out[0] = c->out[1] = -1;
}

/* Who has the terminal, who a terminal of its own, who reads what was given to crun. */
static struct child place_child(const struct group *g, int local, int rank)
{
    struct child c = {.local = local, .pidfd = -1, .out = {-1, -1}, .keep = {-1, -1}, .wake_fd = -1};
    const bool named = g->o.stdin_rank >= 0;
    c.pty = log_conf_has_pty(g->o.log, rank);
    c.reads = g->o.has_stdin && (named ? rank == g->o.stdin_rank : g->o.workers == 1 || c.pty);
    c.guest = c.reads && !c.pty && g->o.terminal_group > 0;
    return c;
}

static int copy_fds(const int from[2], int to[2], struct err *e)
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
            TRY(copy_fds(c->out, c->keep, e));
    }
    return 0;
}

/* Who is held stays who it is; in place of each of the others comes a new process, which writes where it wrote. */
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
        TRY(copy_fds(c->keep, c->out, e));
    }
    return 0;
}

static void close_all_pipe_ends(struct group *g)
{
    for (int i = 0; i < g->o.workers; i++)
        close_pipe_ends(&g->children[i]);
}

/* --- the processes, made by the thread */

struct launch {
    struct spawn_batch batch;
    struct group *g;
    int n; /* prepared: processes that take the places of these workers */
    int *locals;
    int status_fd;
    int typist_fd; /* -1: none */
    char typist_number[16];
    struct prepared {
        char **env, **argv; /* argv NULL: that of all */
        int page_fd;
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
    }
    close_all_pipe_ends(l->g);
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

static int prepare_one(struct launch *l, int local, struct err *e)
{
    struct group *g = l->g;
    struct child *c = &g->children[local];
    struct prepared *p = &l->prepared[l->n];
    struct spawn_request *r = &l->requests[l->n];
    p->page_fd = -1;
    l->locals[l->n++] = local;
    const int rc = group_create_page(c, g->notify_fd, g->o.holds, &p->page_fd, e);
    if (rc == 1)
        warn_unshared(g);
    TRY(rc);
    TRY(g->o.events.make_env(g->o.arg, local, p->page_fd, &p->env, e));
    TRY(g->o.events.make_argv(g->o.arg, local, &p->argv, e));
    *r = (struct spawn_request){.path = g->o.path,
                                .argv = p->argv ? p->argv : g->o.argv,
                                .envp = p->env,
                                .stdio = {c->pty                      ? c->out[0]
                                          : c->reads && g->in_fd >= 0 ? g->in_fd
                                                                      : g->null_fd,
                                          c->guest && g->out_fd >= 0 ? g->out_fd : c->out[0], c->out[1]},
                                .group = c->guest ? g->o.terminal_group : 0,
                                .terminal = c->pty,
                                .keep = {p->page_fd, g->notify_fd, c->wake_fd},
                                .n_keep = c->wake_fd >= 0 ? 3 : 2,
                                .status_fd = l->status_fd,
                                .tag = local,
                                .mask = &g->o.mask,
                                .on_pipe = &g->o.on_pipe,
                                .on_ttou = &g->o.on_ttou,
                                .nofile = &g->o.nofile,
                                .binding = g->o.bindings ? &g->o.bindings[local] : NULL,
                                .cgroup_fd = cgroup_fd(g->o.cgroup),
                                .cgroup_must = g->o.cgroup_must};
    return 0;
}

/* What is typed on crun's terminal goes to the worker's own: by a process of its own in the group that has crun's, as
 * only its members may read there. It is one more process of the batch, and none of the workers. */
static void prepare_typist(struct launch *l)
{
    static const char *argv[] = {"crun", PTY_TYPIST_COMMAND, NULL, NULL};
    struct group *g = l->g;
    const struct child *reader = NULL;
    for (int i = 0; i < g->o.workers; i++)
        if (g->children[i].pty && g->children[i].reads)
            reader = reader ? reader : &g->children[i];
    if (!reader || !g->o.terminal_group || (l->typist_fd = logmux_pty(g->o.mux, reader->local)) < 0)
        return;
    snprintf(l->typist_number, sizeof l->typist_number, "%d", l->typist_fd);
    argv[2] = l->typist_number;
    l->requests[l->batch.n] = (struct spawn_request){.path = "/proc/self/exe",
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
    l->batch.n++;
}

static void on_spawned(struct spawn_batch *b);

static int create_launch(struct launch **ret, struct group *g, int status_fd, struct err *e)
{
    const size_t n = (size_t)g->o.workers;
    struct launch *l = calloc(1, sizeof *l);
    if (!l) {
        close(status_fd);
        return err_errno(e, ENOMEM, "workers");
    }
    *ret = l;
    l->g = g;
    l->status_fd = status_fd;
    l->typist_fd = -1;
    l->locals = calloc(n, sizeof *l->locals);
    l->prepared = calloc(n, sizeof *l->prepared);
    l->requests = calloc(n + 1, sizeof *l->requests); /* and the typist */
    l->spawned = calloc(n + 1, sizeof *l->spawned);
    if (!l->locals || !l->prepared || !l->requests || !l->spawned)
        return err_errno(e, ENOMEM, "workers");
    for (int i = 0; i < g->o.workers; i++)
        if (!g->children[i].held)
            TRY(prepare_one(l, i, e));
    l->batch = (struct spawn_batch){.requests = l->requests, .spawned = l->spawned, .n = l->n, .done = on_spawned};
    prepare_typist(l);
    return 0;
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

/* Its pipes are made. */
static int launch(struct group *g, struct err *e)
{
    int status[2];
    struct launch *l = NULL;
    g->opening = false;
    uv_timer_stop(&g->open_late);
    logmux_note_launch(g->o.mux);
    if (!g->spawner)
        TRY(spawn_thread_create(&g->spawner, g->loop, e));
    if (pipe2(status, O_CLOEXEC) < 0)
        return err_errno(e, errno, "pipe");
    g->status_fd = status[0];
    fcntl(status[0], F_SETFL, O_NONBLOCK);
    if (g->notify_fd < 0)
        g->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = g->notify_fd < 0 ? err_errno(e, errno, "eventfd") : 0;
    if (rc < 0)
        close(status[1]);
    else
        rc = create_launch(&l, g, status[1], e);
    if (rc < 0) {
        if (l)
            free_launch(l);
        close_all_pipe_ends(g);
        return rc;
    }
    if (l->batch.n == 0) { /* end-of-file on the status pipe says that all are started */
        free_launch(l);
        return watch_new(g, e);
    }
    g->launch = l;
    spawn_thread_start(g->spawner, &l->batch);
    return 0;
}

static int take_spawned(struct group *g, const struct launch *l, struct err *e)
{
    const struct spawn_batch *b = &l->batch;
    int rc = 0;
    if (b->n_spawned > l->n)
        close(b->spawned[l->n].pidfd); /* reaped with the orphans */
    for (int k = 0; k < b->n_spawned && k < l->n; k++) {
        const int i = l->locals[k];
        g->children[i].pidfd = b->spawned[k].pidfd;
        g->workers[i].pid = b->spawned[k].pid;
        g->n = i < g->n ? g->n : i + 1;
        const int watched = group_watch_child(g, &g->children[i]);
        if (watched < 0)
            rc = err_errno(e, -watched, "cannot watch process %d", (int)b->spawned[k].pid);
    }
    TRY(rc);
    return watch_new(g, e);
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
    if (g->clearing) { /* those that were born meanwhile */
        group_kill_children(g);
        group_check_gone(g);
        return;
    }
    if (rc < 0)
        g->o.events.failed(g->o.arg, rc, e.text);
    else if (g->holding)
        group_hold(g);
    else if (g->stop.reason >= 0)
        group_stop(g, &g->stop);
    group_look_for_stops(g); /* SIGCHLD may have come before we knew their ids */
    group_reap_orphans(g);
}

/* --- log files first */

void group_launch_now(struct group *g)
{
    struct err e = {0};
    if (!g->opening)
        return;
    const int rc = launch(g, &e);
    if (rc < 0)
        g->o.events.failed(g->o.arg, rc, e.text);
}

/* The output process says that the disk hangs. */
static void on_open_late(uv_timer_t *t)
{
    group_launch_now(container_of(t, struct group, open_late));
}

void group_give_up_opening(struct group *g)
{
    g->opening = false;
    uv_timer_stop(&g->open_late);
    close_all_pipe_ends(g);
}

static void on_opened(void *arg, int rc, const char *text)
{
    struct group *g = arg;
    if (rc == 0) {
        group_launch_now(g);
        return;
    }
    if (g->opening)
        group_give_up_opening(g);
    g->o.events.failed(g->o.arg, rc, text);
}

/* Beside those that are held: files are open, pipes are there. Who lost its parent while they waited goes. */
static int resume(struct group *g, int rank_base, struct err *e)
{
    pid_t *kept = calloc((size_t)g->o.workers, sizeof *kept);
    if (!kept)
        return err_errno(e, ENOMEM, "workers");
    tree_others(kept, group_kept(g, kept), true);
    free(kept);
    TRY(take_over(g, rank_base, e));
    const int rc = launch(g, e);
    group_tell_round(g);
    return rc;
}

int group_start(struct group *g, int rank_base, struct err *e)
{
    const bool goes_on = group_held(g) > 0;
    g->begun_ns = clock_ns();
    g->progressed = false;
    g->deaths = 0;
    g->clearing = g->dismissing = g->keeping = g->holding = g->kept = false;
    g->stop.reason = -1;
    if (goes_on)
        return resume(g, rank_base, e);
    for (int i = 0; i < g->o.workers; i++)
        group_drop_page(&g->children[i]);
    g->n = 0;
    const int rc = make_pipes(g, rank_base, e);
    if (rc < 0) {
        close_all_pipe_ends(g);
        return rc;
    }
    if (!logmux_open_files(g->o.mux, on_opened, g))
        return launch(g, e);
    g->opening = true;
    uv_timer_start(&g->open_late, on_open_late, LOGMUX_OPEN_MS, 0);
    return 0;
}

void group_cancel_launch(struct group *g)
{
    if (g->launch)
        atomic_store(&g->launch->batch.cancelled, true);
}
