/* Workers that outlive their round (workers/group.h): they are notified to let go of it, kept while the rest is ended,
 * and handed the next one. */
#include <signal.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "launcher/guard/tree.h"
#include "launcher/workers/group_internal.h"

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

/* The reason is none again only when the next round is published: whoever has it was notified already. */
static void hold(struct child *c)
{
    if (atomic_load(&c->page->stop_reason) == CRUN_STOP_HOLD)
        return;
    atomic_fetch_add(&c->page->holds, 1);
    atomic_store(&c->page->stop_reason, CRUN_STOP_HOLD);
    group_wake(c, true);
}

/* One that hangs obeys nobody. */
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

/* One look may miss who changes its parent meanwhile; without /proc nobody but the workers is known. */
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
