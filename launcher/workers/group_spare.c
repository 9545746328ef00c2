/* Warm spares: processes that have started up, and wait for a round and a place in it (workers/group.h). */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "common/net/fds.h"
#include "launcher/base/ending.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/roster.h"
#include "launcher/output/logmux.h"
#include "launcher/workers/group_internal.h"

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
    if (g->status_fd >= 0) /* the workers' own start is to be reported first; then this is called again */
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

/* One that ended by itself keeps its page, so that no other one is started in this round: it would end the same
 * way. */
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

/* It has come so far as to wait for a round, and would go on: nobody has stopped it. */
static bool is_ready(const struct group *g, int slot)
{
    const struct child *c = &g->children[slot];
    return c->page && group_is_there(&g->workers[slot]) && !group_is_dead(&g->workers[slot]) &&
           atomic_load(&c->page->stop_reason) == CRUN_STOP_HOLD &&
           atomic_load(&c->page->held) == atomic_load(&c->page->holds) &&
           tolower(proc_state(g->workers[slot].pid)) != 't';
}

/* The pipes of the worker whose place it takes. */
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
    close(from->stdio_fd); /* what was sent is there to be taken */
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
    for (int k = g->o.workers; k < group_slots(g); k++) /* those that ended are started again with the round */
        if (g->children[k].page && !group_is_there(&g->workers[k]))
            group_drop_page(&g->children[k]);
}
