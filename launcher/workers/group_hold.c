/* Workers that outlive their round, and warm spares, which replace those that do not (workers/group.h). */
#include "launcher/workers/group_internal.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "common/net/fds.h"
#include "launcher/base/ending.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/roster.h"
#include "launcher/guard/tree.h"
#include "launcher/output/logmux.h"

int group_slots(const struct group *g)
{
    return g->o.workers + g->o.spares;
}

void group_warm_up(struct group *g)
{
    struct err e;
    bool missing = false;
    if (g->launch || g->paused || g->state != GROUP_RUNNING)
        return;
    if (g->status_fd >= 0) /* the workers' own start must be reported first; then this is called again */
        return;
    for (int i = g->o.workers; i < group_slots(g); i++) {
        if (g->children[i].page)
            continue;
        missing = true;
        g->workers[i] = (struct failure_worker){.rank = -1, .local_rank = -1};
    }
    if (missing && group_launch_spares(g, &e) < 0)
        logmux_print(g->o.mux, "no warm spares: %s", e.text);
}

/* A spare ended. If it ended by itself it keeps its page, so that no other one is started in this round, which would
 * end in the same way. */
void group_spare_ended(struct group *g, struct child *c)
{
    char text[ENDING_TEXT_MAX];
    const struct failure_worker *w = &g->workers[c->local];
    if (!w->told_to_stop)
        logmux_print(g->o.mux, "a warm spare (pid %d) %s before it was needed; this round has one spare less",
                     (int)w->pid, ending_text(w->ending, text, sizeof text));
    else
        group_drop_page(c);
    group_reap_orphans(g);
    group_check_gone(g);
}

void group_drop_spares(struct group *g)
{
    for (int i = g->o.workers; i < group_slots(g); i++)
        if (group_is_there(&g->workers[i])) {
            g->workers[i].told_to_stop = true;
            kill(g->workers[i].pid, SIGKILL);
        }
}

/* Is a spare usable? It waits for a round, and nobody has stopped it. */
static bool is_ready(const struct group *g, int slot)
{
    const struct child *c = &g->children[slot];
    return c->page && group_is_there(&g->workers[slot]) && !group_is_dead(&g->workers[slot]) &&
           atomic_load(&c->page->stop_reason) == CRUN_STOP_HOLD &&
           atomic_load(&c->page->held) == atomic_load(&c->page->holds) &&
           tolower(proc_state(g->workers[slot].pid)) != 't';
}

/* Send the spare the pipes of the worker whose place it takes. */
static bool gives_pipes(const struct child *spare, const int pipes[2])
{
    const struct iovec byte = {"", 1};
    return fds_send(spare->stdio_fd, &byte, 1, pipes, 2) == 1;
}

static void move(struct group *g, int slot, int local)
{
    struct child *from = &g->children[slot], *to = &g->children[local];
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = to};
    group_drop_page(to);
    to->page = from->page;
    to->wake_fd = from->wake_fd;
    to->error_path = from->error_path;
    to->pidfd = from->pidfd;
    to->held = true;
    to->stop_pid = from->stop_pid;
    to->stopped = from->stopped;
    to->stops = from->stops;
    epoll_ctl(g->deaths_fd, EPOLL_CTL_MOD, to->pidfd, &ev);
    g->workers[local] = g->workers[slot];
    roster_move(g->o.roster, slot, local);
    from->page = NULL;
    from->error_path = NULL;
    close(from->stdio_fd); /* what was sent can still be received */
    from->wake_fd = from->stdio_fd = from->pidfd = -1;
    g->workers[slot] = (struct failure_worker){.rank = -1};
}

void group_use_spares(struct group *g)
{
    int slot = g->o.workers;
    for (int i = 0; i < g->o.workers && slot < group_slots(g); i++) {
        if (g->children[i].held || g->children[i].pty || g->children[i].reads)
            continue;
        while (slot < group_slots(g) && !is_ready(g, slot))
            slot++;
        if (slot < group_slots(g) && gives_pipes(&g->children[slot], g->children[i].keep))
            move(g, slot, i);
        slot++;
    }
    for (int k = g->o.workers; k < group_slots(g); k++) /* spares that ended are started again with the round */
        if (g->children[k].page && !group_is_there(&g->workers[k]))
            group_drop_page(&g->children[k]);
}

static bool stays(const struct child *c)
{
    return c->wake_fd >= 0 && atomic_load(&c->page->stays) && !atomic_load(&c->page->done);
}

bool group_can_hold(const struct group *g)
{
    for (int i = 0; g->o.holds && i < g->n; i++)
        if (group_is_there(&g->workers[i]) && !g->workers[i].hung[0] && stays(&g->children[i]))
            return true;
    return false;
}

bool group_can_grow(const struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (!group_is_there(&g->workers[i]) || g->workers[i].hung[0] || g->children[i].wake_fd < 0 ||
            atomic_load(&g->children[i].page->stays) < 2)
            return false;
    return g->o.holds && g->n > 0;
}

/* Ask a worker to let go. The reason stays until the next round is published; a worker that has it was asked
 * already. */
static void hold(struct child *c)
{
    if (atomic_load(&c->page->stop_reason) == CRUN_STOP_HOLD)
        return;
    atomic_fetch_add(&c->page->holds, 1);
    atomic_store(&c->page->stop_reason, CRUN_STOP_HOLD);
    group_wake(c, true);
}

/* End a hung worker, which obeys nobody. */
static void end_instead(struct group *g, int i)
{
    const struct group_stop stop = {.reason = CRUN_STOP_FAILURE, .signo = g->workers[i].hung[0] ? SIGKILL : SIGTERM};
    group_stop_child(&g->children[i], g->workers[i].pid, &stop);
}

void group_hold(struct group *g)
{
    group_launch_now(g);
    if (g->paused)
        group_pause(g, false, false);
    group_set(g, GROUP_HOLD);
    for (int i = 0; i < g->n; i++) {
        struct failure_worker *w = &g->workers[i];
        if (!group_is_there(w) || group_is_dead(w) || w->told_to_stop)
            continue;
        w->told_to_stop = true;
        if (!w->hung[0] && stays(&g->children[i]))
            hold(&g->children[i]);
        else
            end_instead(g, i);
    }
}

void group_take_acks(struct group *g)
{
    for (int i = 0; g->state == GROUP_HOLDING && i < g->n; i++) {
        struct child *c = &g->children[i];
        if (c->held || c->wake_fd < 0 || !group_is_there(&g->workers[i]) ||
            atomic_load(&c->page->stop_reason) != CRUN_STOP_HOLD ||
            atomic_load(&c->page->held) != atomic_load(&c->page->holds))
            continue;
        c->held = true;
        g->o.events.held(g->o.arg);
    }
}

int group_held(const struct group *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->children[i].held && !g->workers[i].ended;
    return n;
}

bool group_is_held(const struct group *g, int local)
{
    return g->children[local].held;
}

void group_tell_round(struct group *g)
{
    for (int i = 0; i < g->n; i++) {
        struct child *c = &g->children[i];
        struct crun_page_round r = {.rank = 0};
        if (!c->held)
            continue;
        g->o.events.make_round(g->o.arg, i, &r);
        c->held = false;
        crun_page_tell_round(c->page, &r);
        atomic_store(&c->page->stop_reason, CRUN_STOP_NONE);
        group_wake(c, false);
    }
}

void group_keep_nobody(struct group *g)
{
    for (int i = 0; i < g->n; i++)
        g->children[i].held = false;
}

/* --- the rest is ended */

int group_kept(const struct group *g, pid_t *ret)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        if (g->children[i].held && !g->workers[i].ended)
            ret[n++] = g->workers[i].pid;
    for (int i = g->o.workers; i < group_slots(g); i++)
        if (group_is_there(&g->workers[i]))
            ret[n++] = g->workers[i].pid;
    return n;
}

static bool others_have_ended(const struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (!g->children[i].held && group_is_there(&g->workers[i]))
            return false;
    return true;
}

/* Kill all processes except held workers. One look may miss a process that changes its parent meanwhile, so look
 * twice; without /proc only the workers are known. */
void group_check_rest(struct group *g)
{
    pid_t *kept = calloc((size_t)group_slots(g), sizeof *kept);
    const int64_t begun = clock_ms();
    const int others = kept ? tree_others(kept, group_kept(g, kept), true) : 1;
    free(kept);
    g->looks = others <= 0 && !g->launch && others_have_ended(g) ? g->looks + 1 : 0;
    if (group_held(g) == 0) { /* nobody is to stay any more */
        group_clear(g, false);
    } else if (g->looks >= 2) {
        group_finish_round(g, NULL);
    } else if (begun < g->clear_deadline) {
        group_rescan_in(g, 2 * (clock_ms() - begun));
    } else {
        char text[512];
        tree_describe(text, sizeof text);
        group_finish_round(g, text);
    }
}
