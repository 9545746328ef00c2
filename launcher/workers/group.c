/* The workers of a node: their states, how their ends are handled, and how they are ended (group.h). */
#include "launcher/base/oom.h"
#include "launcher/workers/group_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/crun/crun_page.h"
#include "common/job/exitcode.h"
#include "launcher/base/ending.h"
#include "launcher/base/watch.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/tree.h"
#include "launcher/output/logmux.h"
#include "launcher/workers/spawn_thread.h"

static void on_deaths(void *arg);

void group_set(struct group *g, enum group_event e)
{
    const enum group_state before = g->state;
    g->state = group_next(before, e);
    if (g->state != before)
        log_debug("workers", "%s: %s -> %s", group_event_name(e), group_state_name(before), group_state_name(g->state));
}

/* --- one worker */

static void kill_child(struct child *c)
{
    if (c->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
}

bool group_is_there(const struct failure_worker *w)
{
    return w->pid > 0 && !w->ended;
}

/* --- watching */

int group_watch_child(struct group *g, struct child *c)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    return epoll_ctl(g->deaths_fd, EPOLL_CTL_ADD, c->pidfd, &ev) < 0 && errno != EEXIST ? -errno : 0;
}

/* Remove a child from the epoll explicitly: a process between fork and exec has copies of our descriptors, so
 * close(2) alone would not do it. */
static void unwatch_child(struct group *g, struct child *c)
{
    epoll_ctl(g->deaths_fd, EPOLL_CTL_DEL, c->pidfd, NULL);
}

static void drop_pidfd(struct group *g, struct child *c)
{
    if (c->pidfd < 0)
        return;
    unwatch_child(g, c);
    close(c->pidfd);
    c->pidfd = -1;
}

/* --- starting */

int group_create(struct group **ret, uv_loop_t *loop, const struct group_options *o, struct err *e)
{
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return err_errno(e, ENOMEM, "workers");
    g->loop = loop;
    g->o = *o;
    g->status_fd = g->notify_fd = -1;
    /* if it fails, workers find that there is no such memory */
    g->memory_fd = memfd_create("crun-memory", MFD_CLOEXEC);
    g->in_fd = o->has_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    g->out_fd = o->terminal_group && o->terminal_out ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    g->deaths_fd = epoll_create1(EPOLL_CLOEXEC);
    uv_timer_init(loop, &g->rescan);
    uv_timer_init(loop, &g->late);
    uv_timer_init(loop, &g->pause);
    g->open_handles = 3;
    g->children = calloc((size_t)group_slots(g), sizeof *g->children);
    g->workers = calloc((size_t)group_slots(g), sizeof *g->workers);
    g->retired = calloc((size_t)group_slots(g), sizeof(struct crun_page *));
    g->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < group_slots(g) && g->children; i++)
        g->children[i] =
            (struct child){.local = i, .pidfd = -1, .out = {-1, -1}, .keep = {-1, -1}, .wake_fd = -1, .stdio_fd = -1};
    *ret = g;
    if (!g->children || !g->workers || !g->retired)
        return err_errno(e, ENOMEM, "%d workers", o->workers);
    if (g->null_fd < 0)
        return err_errno(e, errno, "/dev/null");
    if (g->deaths_fd < 0)
        return err_errno(e, errno, "epoll");
    TRY(watch_open(&g->deaths_watch, loop, g->deaths_fd, UV_READABLE, on_deaths, g, e));
    watch_set(g->deaths_watch, true);
    return 0;
}

/* --- deaths */

/* Reap orphans of our workers, which became our children. If a worker turns up here, its own watch handles it, and
 * then calls this again. */
void group_reap_orphans(struct group *g)
{
    while (!g->launch) { /* during a launch it is not known yet to whom a new process belongs */
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
            return;
        for (int i = 0; i < group_slots(g); i++)
            if (g->workers[i].pid == info.si_pid && !g->workers[i].ended) {
                group_watch_child(g, &g->children[i]);
                return;
            }
        waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
    }
}

static void on_death(struct group *g, struct child *c)
{
    struct failure_worker *w = &g->workers[c->local];
    int64_t woken = clock_ns();
    siginfo_t info;

    group_on_status(g); /* a failed exec is known before its process ends, and tells more than the exit code */
    const int rc = group_wait_worker(w, &info, 0);
    if (rc == 0 && info.si_pid == 0) {
        unwatch_child(g, c); /* dead, but a debugger must reap it first; SIGCHLD tells when it is our turn */
        return;
    }
    if (rc < 0) { /* certainly not a success */
        logmux_print(g->o.mux, "how rank %d ended is not known (waitid: %s): taken for a failure", w->rank,
                     strerror(errno));
        info.si_status = EXIT_INTERNAL;
    }
    w->ended = true;
    if (!w->hung[0]) {
        w->order = ++g->deaths;
        w->ended_ns = woken;
    }
    w->ending = ending_of(&info);
    w->kills = g->o.oom && !w->told_to_stop && !w->hung[0] ? oom_kills_since(g->o.oom) : 0;
    w->ending.oom = w->ending.signaled && w->ending.value == SIGKILL && w->kills > 0 && g->o.events.is_oom(g->o.arg, w);
    drop_pidfd(g, c);
    if (c->local >= g->o.workers) {
        group_spare_ended(g, c);
        return;
    }
    g->o.events.ended(g->o.arg, c->local, woken);
    c->held = false;
    /* the last of the workers that were held for a round has gone */
    if (g->state == GROUP_KEPT && group_held(g) == 0) {
        group_drop_spares(g); /* they would hold the pipes open */
        group_set(g, GROUP_GONE);
        group_end_output(g);
    }
    group_reap_orphans(g);
    group_check_gone(g);
}

/* Handle deaths one at a time: handling one may end the round, and further reports of the kernel would be about
 * workers that are gone. */
static void on_deaths(void *arg)
{
    struct group *g = arg;
    struct epoll_event ev;
    while (epoll_wait(g->deaths_fd, &ev, 1, 0) == 1)
        on_death(g, ev.data.ptr);
}

void group_on_sigchld(struct group *g)
{
    group_look_for_stops(g);
    group_reap_orphans(g);
    group_check_gone(g);
}

/* --- stopping */

void group_hung(struct group *g, int local, const char *hung)
{
    struct failure_worker *w = &g->workers[local];
    if (local >= g->n || w->ended)
        return;
    snprintf(w->hung, sizeof w->hung, "%s", hung);
    w->order = ++g->deaths;
    w->ended_ns = clock_ns();
}

static void on_rescan(uv_timer_t *t)
{
    struct group *g = container_of(t, struct group, rescan);
    if (g->paused && !group_state_clears(g->state))
        group_stand_still(g);
    else
        group_check_gone(g);
}

void group_end_output(struct group *g)
{
    group_close_notify(g);
    for (int i = 0; i < g->o.workers; i++)
        group_close_kept(&g->children[i]);
    logmux_end_round(g->o.mux);
}

void group_finish_round(struct group *g, const char *left)
{
    group_set(g, GROUP_LEFT); /* no spare is started any more */
    uv_timer_stop(&g->rescan);
    group_on_status(g); /* workers may have ended before the loop read the status pipe */
    group_on_notify(g);
    group_close_status(g);
    uv_timer_stop(&g->late);
    if (group_held(g) == 0) {
        group_set(g, GROUP_GONE);
        group_end_output(g);
    }
    if (left)
        g->o.events.unkillable(g->o.arg, left);
    else
        g->o.events.gone(g->o.arg);
}

/* Look for processes that are left, and kill them. Afterwards pause as long as the look took: the loop has other
 * work. */
static void sweep(struct group *g)
{
    const int64_t begun = clock_ms();
    if (begun < g->sweep_ms)
        return;
    if (g->state == GROUP_DISMISSING) {
        group_set(g, GROUP_CLEAR);
        logmux_print(g->o.mux, "what the workers left running did not end within %d s of SIGTERM; killing it",
                     GROUP_DISMISS_MS / 1000);
    }
    if (tree_kill() > 0 || !tree_is_dead())
        g->dead_ms = 0;
    else if (!g->dead_ms)
        g->dead_ms = begun;
    g->sweep_ms = 2 * clock_ms() - begun;
}

/* Are only dead processes left that a debugger must reap first? It may take its time. */
static bool only_held_dead_are_left(const struct group *g)
{
    return !g->launch && g->dead_ms && clock_ms() - g->dead_ms >= TREE_DEAD_MS && tree_is_dead();
}

static void drop_pidfds(struct group *g)
{
    for (int i = 0; i < group_slots(g); i++)
        drop_pidfd(g, &g->children[i]);
}

void group_rescan_in(struct group *g, int64_t ms)
{
    uv_timer_start(&g->rescan, on_rescan, ms > TREE_RESCAN_MS ? (uint64_t)ms : TREE_RESCAN_MS, 0);
}

/* If a process is left, kill again, as often as it takes: one may be born while we read /proc. */
void group_check_gone(struct group *g)
{
    if (!group_state_clears(g->state))
        return;
    if (g->state == GROUP_SORTING) {
        group_check_rest(g);
        return;
    }
    if (tree_empty() && !g->launch) {
        group_finish_round(g, NULL);
        return;
    }
    if (only_held_dead_are_left(g)) {
        drop_pidfds(g);
        group_finish_round(g, NULL);
        return;
    }
    if (clock_ms() < g->clear_deadline) {
        sweep(g);
        const int64_t left = g->state == GROUP_DISMISSING ? g->sweep_ms - clock_ms() : 0; /* an end wakes us */
        group_rescan_in(g, left);
        return;
    }
    char text[512];
    tree_describe(text, sizeof text);
    drop_pidfds(g);
    g->launch = NULL; /* its memory is the thread's */
    group_finish_round(g, text);
}

void group_kill_children(struct group *g)
{
    for (int i = 0; i < group_slots(g); i++) {
        const bool stays = g->state == GROUP_SORTING && (i >= g->o.workers || g->children[i].held);
        if (!group_is_there(&g->workers[i]) || stays || group_is_dead(&g->workers[i]))
            continue;
        g->workers[i].told_to_stop = true;
        kill_child(&g->children[i]);
    }
}

void group_clear(struct group *g, bool keep)
{
    if (g->state == GROUP_OPENING)
        group_give_up_opening(g);
    group_cancel_launch(g);
    group_set(g, keep && group_held(g) > 0 ? GROUP_SORT : GROUP_CLEAR);
    if (g->state == GROUP_CLEARING)
        group_keep_nobody(g);
    g->looks = 0;
    group_kill_children(g);
    g->clear_deadline = clock_ms() + g->o.kill_ms;
    g->sweep_ms = g->clear_deadline - g->o.kill_ms;
    g->dead_ms = 0;
    if (g->state == GROUP_CLEARING && !tree_empty() && cgroup_kill(g->o.cgroup))
        g->sweep_ms += TREE_RESCAN_MS; /* then only processes that left the cgroup remain */
    group_check_gone(g);
}

void group_dismiss(struct group *g)
{
    group_drop_spares(g);
    if (tree_empty() || !group_ask_to_go()) {
        group_clear(g, false);
        return;
    }
    group_set(g, GROUP_DISMISS);
    g->sweep_ms = clock_ms() + GROUP_DISMISS_MS;
    g->clear_deadline = g->sweep_ms + g->o.kill_ms;
    group_check_gone(g);
}

/* --- for the report */

const struct failure_worker *group_workers(const struct group *g)
{
    return g->workers;
}

bool group_attached(const struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (g->children[i].page && atomic_load(&g->children[i].page->attached))
            return true;
    return false;
}

struct crun_page *group_page(const struct group *g, int local)
{
    return local < g->n ? g->children[local].page : NULL;
}

const char *group_error_text(const struct group *g, int local)
{
    struct crun_page *p = g->children[local].page;
    if (!p || atomic_load(&p->error_code) == 0)
        return NULL;
    p->error_text[sizeof p->error_text - 1] = '\0';
    return p->error_text;
}

const char *group_error_path(const struct group *g, int local)
{
    return g->children[local].error_path;
}

static void on_closed(uv_handle_t *h)
{
    struct group *g = h->data;
    if (--g->open_handles > 0)
        return;
    free(g->children);
    free(g->workers);
    free(g->retired);
    free(g);
}

void group_destroy(struct group *g)
{
    if (!g)
        return;
    group_close_status(g);
    group_close_notify(g);
    watch_close(g->deaths_watch);
    if (g->deaths_fd >= 0)
        close(g->deaths_fd);
    for (int i = 0; i < group_slots(g) && g->children; i++) {
        group_close_kept(&g->children[i]);
        free(g->children[i].error_path);
    }
    spawn_thread_close(g->spawner);
    const int fds[] = {g->null_fd, g->in_fd, g->out_fd, g->memory_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    uv_timer_t *const timers[] = {&g->rescan, &g->late, &g->pause};
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
        timers[i]->data = g;
        uv_close((uv_handle_t *)timers[i], on_closed);
    }
}
