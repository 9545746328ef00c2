/* How the workers of a group come to be: pipes, log files, shared pages, processes (workers/group.h). */
#include "launcher/base/oom.h"
#include "launcher/workers/group_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "launcher/base/watch.h"
#include "launcher/guard/tree.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/logmux.h"
#include "launcher/workers/spawn.h"

#define WARM_UP_MS 3000 /* spares wait for the first step, which they would slow down, or so long */

/* Log files are not open: the output process says that the disk hangs. Else spares are due. */
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

/* Execs that failed, then end-of-file when no process is left between clone and exec. */
void group_on_status(void *arg)
{
    struct group *g = arg;
    struct spawn_failure f;
    while (g->status_fd >= 0) {
        ssize_t n = read(g->status_fd, &f, sizeof f);
        if (n == sizeof f && f.tag >= 0) {
            if (!g->warming) /* else the workers' own start has reported it */
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

/* The first step of the round, 0: none yet. Pages of those that were held may still show the round before. */
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

/* Who has the terminal, who a terminal of its own, who reads what was given to crun. */
static struct child place_child(const struct group *g, int local, int rank)
{
    struct child c = {.local = local, .pidfd = -1, .out = {-1, -1}, .keep = {-1, -1}, .wake_fd = -1, .stdio_fd = -1};
    const bool named = g->o.stdin_rank >= 0;
    c.pty = log_conf_has_pty(g->o.log, rank);
    c.reads = g->o.has_stdin && (named ? rank == g->o.stdin_rank : g->o.workers == 1 || c.pty);
    c.guest = c.reads && !c.pty && g->o.terminal_group > 0;
    return c;
}

int group_copy_fds(const int from[2], int to[2], struct err *e)
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
        TRY(group_copy_fds(c->keep, c->out, e));
    }
    return 0;
}

void group_close_pipe_ends(struct group *g)
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

/* Beside those that are held: files are open, pipes are there. Who lost its parent while they waited goes. */
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
    group_drop_retired(g); /* nobody was made since */
    for (int i = 0; i < group_slots(g); i++)
        if (!group_is_there(&g->workers[i])) /* a spare that was dropped may have to die yet */
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
