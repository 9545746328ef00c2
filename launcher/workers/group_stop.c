/* Sends signals to the workers of a group, and reports when others have stopped them (workers/group.h). */
#include "launcher/workers/group_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "launcher/base/ending.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"
#include "launcher/output/logmux.h"
#include "launcher/workers/spawn_thread.h"

#define PAUSE_MS 1000 /* ms: some workers are stopped and continued by others all the time */

/* Wait for a worker that was not reaped, so its pid is still its own. By pid, because P_PIDFD needs Linux 5.4, and
 * some seccomp filters refuse it. */
int group_wait_worker(const struct failure_worker *w, siginfo_t *ret, int options)
{
    *ret = (siginfo_t){0};
    return waitid(P_PID, (id_t)w->pid, ret, WEXITED | WNOHANG | options);
}

/* Signal the worker's process group; only the worker if it has no group of its own, or has not made it yet. */
static void signal_child(const struct child *c, pid_t pid, int signo)
{
    if (c->guest || (kill(-pid, signo) < 0 && errno == ESRCH))
        kill(pid, signo);
}

/* The reason first, then the signals. */
void group_stop_child(struct child *c, pid_t pid, const struct group_stop *s)
{
    atomic_store(&c->page->stop_reason, (uint32_t)s->reason);
    group_wake(c, true);
    if (!c->guest || !s->typed)
        signal_child(c, pid, s->signo);
    signal_child(c, pid, SIGCONT);
}

static bool is_ready(const struct group *g, int i)
{
    return group_is_there(&g->workers[i]) && tree_is_ready_for(g->workers[i].pid, g->stop.signo);
}

static bool others_are_ready(const struct group *g, int i)
{
    bool ready = false;
    for (int k = 0; k < g->o.workers && !ready; k++)
        ready = k != i && is_ready(g, k);
    return ready;
}

/* A new process among workers that outlived their round. All must save and end, but a signal would kill this one
 * before it can handle it, and the others would wait for it. So let it join the round first: the others tell it. */
static bool joins_first(const struct group *g, int i)
{
    const bool saves = g->stop.reason == CRUN_STOP_DRAIN || g->stop.reason == CRUN_STOP_RESIZE;
    return g->goes_on && saves && g->children[i].local < g->o.workers &&
           (!atomic_load(&g->children[i].page->attached) || (!is_ready(g, i) && others_are_ready(g, i)));
}

static void stop_child(struct group *g, int i)
{
    g->workers[i].told_to_stop = true;
    if (joins_first(g, i))
        atomic_store(&g->children[i].page->stop_reason, (uint32_t)g->stop.reason);
    else
        group_stop_child(&g->children[i], g->workers[i].pid, &g->stop);
}

/* The worker died before we sent it anything: its end is about to be reported, and is a failure of its own. */
bool group_is_dead(const struct failure_worker *w)
{
    siginfo_t info;
    return group_wait_worker(w, &info, WNOWAIT) == 0 && info.si_pid != 0;
}

void group_stop(struct group *g, const struct group_stop *s)
{
    group_launch_now(g); /* start the workers now: whoever waits for their end must see them end */
    group_set(g, GROUP_STOP);
    group_keep_nobody(g);
    if (g->paused)
        group_pause(g, false, false);
    g->stop = *s;
    for (int i = 0; i < group_slots(g); i++) {
        if (!group_is_there(&g->workers[i]) || group_is_dead(&g->workers[i]))
            continue;
        stop_child(g, i);
    }
}

/* Stop only workers that were not signalled yet: a second signal may mean something else to the others. */
void group_stop_late(struct group *g)
{
    for (int i = 0; i < group_slots(g); i++) {
        const struct failure_worker *w = &g->workers[i];
        if (group_is_there(w) && !w->told_to_stop && !group_is_dead(w))
            stop_child(g, i);
    }
}

bool group_has_terminal(const struct group *g, int local)
{
    return g->children[local].guest;
}

/* Has a typed Ctrl-Z (or fg) reached this worker and its children directly, because they share the terminal? */
static bool has_had_key(const struct group *g, int i)
{
    return g->pause_typed && g->children[i].guest;
}

/* Stop or continue all processes below this one: workers may have sessions within theirs. */
static int pause_tree(struct group *g, bool go_on)
{
    pid_t *spared = calloc((size_t)group_slots(g), sizeof *spared);
    int n = 0;
    if (!spared)
        return -1;
    for (int i = 0; i < group_slots(g); i++)
        if (group_is_there(&g->workers[i]) && has_had_key(g, i))
            spared[n++] = g->workers[i].pid;
    const int ran = tree_pause(spared, n, go_on);
    free(spared);
    return ran;
}

void group_stand_still(struct group *g)
{
    const int64_t begun = clock_ms();
    g->looks = pause_tree(g, false) > 0 ? 0 : g->looks + 1;
    if (g->looks < 2 && begun < g->pause_deadline)
        group_rescan_in(g, 2 * (clock_ms() - begun));
}

void group_pause(struct group *g, bool pause, bool typed)
{
    g->paused = pause;
    if (pause)
        g->pause_typed = typed;
    else
        pause_tree(g, true);
    for (int i = 0; i < group_slots(g); i++)
        if (group_is_there(&g->workers[i]) && !has_had_key(g, i))
            signal_child(&g->children[i], g->workers[i].pid, pause ? SIGSTOP : SIGCONT);
    if (!pause) {
        group_warm_up_soon(g);
        return;
    }
    g->looks = 0;
    g->pause_deadline = clock_ms() + PAUSE_MS;
    group_stand_still(g);
}

void group_insist(struct group *g)
{
    for (int i = 0; i < group_slots(g); i++)
        if (g->workers[i].told_to_stop && group_is_there(&g->workers[i]))
            signal_child(&g->children[i], g->workers[i].pid, SIGTERM);
}

void group_forward(struct group *g, int signo)
{
    if (g->launch)
        g->forward |= UINT64_C(1) << (signo - 1);
    for (int i = 0; i < g->n; i++)
        if (group_is_there(&g->workers[i]))
            tree_signal(g->workers[i].pid, !g->children[i].guest, signo);
}

/* --- what others sent them */

/* Print that a process was stopped. One that is stopped again and again (a duty cycle, a debugger) is named once,
 * and then after pauses. */
#define STOPS_FIRST_MS 10000
#define STOPS_MOST_MS 60000

static void note_process(struct child *c, pid_t pid)
{
    if (c->stop_pid == pid)
        return;
    c->stop_pid = pid;
    c->stopped = c->stop_unsaid = false;
    c->stops = (struct repeat){.first_ms = STOPS_FIRST_MS, .most_ms = STOPS_MOST_MS};
}

static void say_stopped(struct group *g, int i, int unsaid)
{
    char name[32], more[64] = "";
    const struct failure_worker *w = &g->workers[i];
    g->children[i].stop_unsaid = false;
    if (unsaid > 0)
        snprintf(more, sizeof more, " (%d stops since the last such line were not reported)", unsaid);
    logmux_print(g->o.mux, "rank %d (pid %d) was stopped by %s; kill -CONT %d lets it go on%s", w->rank, (int)w->pid,
                 signal_text(g->children[i].stop_signal, name, sizeof name), (int)w->pid, more);
}

/* Was this worker stopped during a pause, and is it still? */
static bool is_unsaid(const struct group *g, int i)
{
    const struct child *c = &g->children[i];
    const struct failure_worker *w = &g->workers[i];
    return c->stop_unsaid && c->stop_pid == w->pid && !w->ended && !w->told_to_stop;
}

static void wait_for_pause(struct group *g);

static void on_pause_over(uv_timer_t *t)
{
    struct group *g = container_of(t, struct group, pause);
    const int64_t now = clock_ms();
    for (int i = 0, unsaid; i < g->n; i++)
        if (is_unsaid(g, i) && now >= g->children[i].stops.next_ms &&
            repeat_is_said(&g->children[i].stops, now, &unsaid))
            say_stopped(g, i, unsaid - 1);
    wait_for_pause(g);
}

static void wait_for_pause(struct group *g)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < g->n; i++)
        if (is_unsaid(g, i) && g->children[i].stops.next_ms < next)
            next = g->children[i].stops.next_ms;
    uv_timer_stop(&g->pause);
    const int64_t left = next - clock_ms();
    if (next < INT64_MAX)
        uv_timer_start(&g->pause, on_pause_over, left > 0 ? (uint64_t)left : 1, 0);
}

/* A worker was stopped. If that happened along with crun, the user did it. */
static void note_stop(struct group *g, int i, int signo)
{
    int unsaid;
    struct child *c = &g->children[i];
    const bool is_typed = c->guest && signo != SIGSTOP;
    const bool is_news = !c->stopped && !is_typed && !g->paused && !g->workers[i].told_to_stop;
    c->stopped = true;
    if (!is_news)
        return;
    c->stop_signal = signo;
    if (repeat_is_said(&c->stops, clock_ms(), &unsaid))
        say_stopped(g, i, unsaid);
    else
        c->stop_unsaid = true;
}

void group_look_for_stops(struct group *g)
{
    for (int i = 0; i < g->n; i++) {
        siginfo_t info = {0};
        struct child *c = &g->children[i];
        const pid_t pid = g->workers[i].pid;
        if (pid <= 0 || g->workers[i].ended || waitid(P_PID, (id_t)pid, &info, WSTOPPED | WCONTINUED | WNOHANG) < 0 ||
            info.si_pid != pid)
            continue;
        note_process(c, pid);
        if (info.si_code == CLD_CONTINUED)
            c->stopped = c->stop_unsaid = false;
        else
            note_stop(g, i, info.si_status);
    }
    wait_for_pause(g);
}

/* --- whatever they left */

bool group_end_now(struct group *g, int64_t timeout_ms)
{
    const int64_t end = clock_ms() + timeout_ms;
    bool was_idle, all;
    group_cancel_launch(g);
    do {
        /* read before the look: a process made during the look is seen by the next one */
        was_idle = spawn_thread_is_idle(g->spawner);
        all = tree_kill_all(end - clock_ms());
    } while (!was_idle && clock_ms() < end);
    return was_idle && all;
}

bool group_ask_to_go(void)
{
    struct procs ps;
    const bool known = procs_below(&ps, getpid());
    for (size_t i = 0; i < ps.n; i++)
        if (!proc_is_dead(&ps.v[i])) {
            kill(ps.v[i].pid, SIGTERM);
            kill(ps.v[i].pid, SIGCONT);
        }
    procs_free(&ps);
    return known;
}
