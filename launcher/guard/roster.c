/* Records which workers crun has started, and kills the processes that they leave when no process of crun is above
 * these any more. */
#include "launcher/guard/roster.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"

void roster_name(struct roster *r, const char *run_id, const char *node_id)
{
    const int run = snprintf(r->run, sizeof r->run, "TORCHELASTIC_RUN_ID=%s", run_id);
    const int node = snprintf(r->node, sizeof r->node, "CRUN_NODE_ID=%s", node_id);
    atomic_store(&r->is_named, run < (int)sizeof r->run && node < (int)sizeof r->node);
}

struct roster_entry *roster_at(struct roster *r, int i)
{
    return r && i < ROSTER_MAX ? &r->v[i] : NULL;
}

static int64_t ticks_since_boot(void)
{
    struct timespec t;
    const int64_t per_s = sysconf(_SC_CLK_TCK);
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * per_s + t.tv_nsec / (INT64_C(1000000000) / per_s);
}

void roster_begin(struct roster_entry *e, pid_t terminal)
{
    if (!e)
        return;
    atomic_store(&e->pid, 0);
    atomic_store(&e->terminal, terminal);
    atomic_store(&e->began, ticks_since_boot());
}

void roster_enter(struct roster_entry *e)
{
    if (e)
        atomic_store(&e->pid, getpid());
}

void roster_move(struct roster *r, int from, int to)
{
    struct roster_entry *a = roster_at(r, from), *b = roster_at(r, to);
    if (!a || !b)
        return;
    atomic_store(&b->began, atomic_load(&a->began));
    atomic_store(&b->terminal, atomic_load(&a->terminal));
    atomic_store(&b->pid, atomic_load(&a->pid));
    atomic_store(&a->pid, 0);
}

static bool may_be_below(const struct roster_entry *e, const struct proc *p)
{
    const pid_t pid = atomic_load(&e->pid), terminal = atomic_load(&e->terminal);
    return pid && (terminal ? p->group == terminal : p->session == pid) && p->started >= atomic_load(&e->began);
}

static bool is_of_job(const struct roster *r, const struct proc *p)
{
    bool fits = false;
    for (int i = 0; i < ROSTER_MAX && !fits; i++)
        fits = may_be_below(&r->v[i], p);
    return fits && !proc_is_dead(p) && proc_uid(p->pid) == geteuid() && proc_carries(p->pid, r->run) &&
           proc_carries(p->pid, r->node);
}

static int kill_found(const struct roster *r)
{
    struct procs ps;
    int found = 0;
    procs_all(&ps);
    for (size_t i = 0; i < ps.n; i++)
        if (ps.v[i].pid != getpid() && is_of_job(r, &ps.v[i])) {
            kill(ps.v[i].pid, SIGKILL);
            found++;
        }
    procs_free(&ps);
    return found;
}

void roster_kill(const struct roster *r, int64_t timeout_ms)
{
    const int64_t end = clock_ms() + timeout_ms;
    const struct timespec pause = {.tv_nsec = TREE_RESCAN_MS * 1000000L};
    for (int looks = 0; atomic_load(&r->is_named) && looks < 2 && clock_ms() < end; nanosleep(&pause, NULL))
        looks = kill_found(r) == 0 ? looks + 1 : 0;
}
