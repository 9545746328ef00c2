/* Keeps the table of open faults, and undoes them in time (chaos_table.h). */
#include "launcher/tools/chaos/chaos_table.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/tools/chaos/chaos_means.h"
#include "launcher/tools/chaos/chaos_plan.h"
#include "launcher/tools/chaos/chaos_target.h"

struct chaos_table *chaos_table_create(void)
{
    void *p = mmap(NULL, sizeof(struct chaos_table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int chaos_signal(const struct chaos_process *p, int signo)
{
    const int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (fd < 0)
        return -errno;
    int rc = chaos_started(p->pid) == p->started ? 0 : -ESRCH;
    if (rc == 0 && syscall(SYS_pidfd_send_signal, fd, signo, NULL, 0) < 0)
        rc = -errno;
    close(fd);
    return rc;
}

static bool is(const struct chaos_open *o, enum chaos_deed deed)
{
    return atomic_load(&o->deed) == (int)deed + 1;
}

/* Does another fault keep this process stopped now? */
static bool held_by_others(const struct chaos_table *t, const struct chaos_open *self)
{
    for (const struct chaos_open *o = t->v; o < t->v + atomic_load(&t->n); o++)
        if (o != self && o->process.pid == self->process.pid && o->process.started == self->process.started &&
            (is(o, CHAOS_STOP) || (is(o, CHAOS_SLOW) && o->halts)))
            return true;
    return false;
}

static void go_on(const struct chaos_table *t, const struct chaos_open *o)
{
    if (!held_by_others(t, o))
        chaos_signal(&o->process, SIGCONT);
}

static bool cut_by_others(const struct chaos_table *t, const struct chaos_open *self)
{
    for (const struct chaos_open *o = t->v; o < t->v + atomic_load(&t->n); o++)
        if (o != self && is(o, CHAOS_CUT) && o->node == self->node)
            return true;
    return false;
}

/* Set a node's clock to the sum of all open faults, except one (NULL: none). */
static void set_clock(const struct chaos_table *t, const struct chaos_means *m, int node, const struct chaos_open *but)
{
    double ahead_s = 0;
    for (const struct chaos_open *o = t->v; o < t->v + atomic_load(&t->n); o++)
        if (o != but && is(o, CHAOS_CLOCK) && o->node == node)
            ahead_s += o->by;
    chaos_clock_set(m, node, ahead_s);
}

/* --- one fault */

static int begin(const struct chaos_table *t, const struct chaos_means *m, const struct chaos_open *o)
{
    if (is(o, CHAOS_CUT))
        return chaos_link_set(m, o->node, false);
    if (is(o, CHAOS_CLOCK))
        set_clock(t, m, o->node, NULL);
    return is(o, CHAOS_STOP) || is(o, CHAOS_SLOW) ? chaos_signal(&o->process, SIGSTOP) : 0;
}

static void end(const struct chaos_table *t, const struct chaos_means *m, struct chaos_open *o)
{
    if (is(o, CHAOS_STOP) || is(o, CHAOS_SLOW))
        go_on(t, o);
    else if (is(o, CHAOS_CUT) && !cut_by_others(t, o))
        chaos_link_set(m, o->node, true);
    else if (is(o, CHAOS_CLOCK))
        set_clock(t, m, o->node, o);
    else if (is(o, CHAOS_FILL) && o->fd >= 0)
        close(o->fd);
    atomic_store(&o->deed, 0);
}

int chaos_table_begin(struct chaos_table *t, const struct chaos_means *m, int deed, struct chaos_open what,
                      struct err *e)
{
    const int n = atomic_load(&t->n);
    struct chaos_open *o = t->v;
    while (o < t->v + n && atomic_load(&o->deed) != 0)
        o++;
    if (o == t->v + CHAOS_OPEN_MAX)
        return err_set(e, -EMFILE,
                       "more than %d faults are not over, one of each process: expected shorter ones, or fewer",
                       CHAOS_OPEN_MAX);
    what.turn_ms = clock_ms() + CHAOS_SLOW_MS;
    what.halts = deed == CHAOS_SLOW;
    atomic_init(&what.deed, 0);
    memcpy(o, &what, sizeof what);
    if (o == t->v + n)
        atomic_store(&t->n, n + 1);
    atomic_store(&o->deed, deed + 1);
    const int rc = begin(t, m, o);
    if (rc == -ESRCH || rc == -ENODEV)
        atomic_store(&o->deed, 0);
    return rc < 0 && rc != -ESRCH && rc != -ENODEV ? err_errno(e, -rc, "%s %s", chaos_deed_word((enum chaos_deed)deed),
                                                               deed == CHAOS_CUT ? m->targets->v[o->node].link : "")
                                                   : rc;
}

/* --- all of them */

/* Of each turn it runs for 1/by. */
static void take_turn(const struct chaos_table *t, struct chaos_open *o, int64_t now_ms)
{
    const int64_t runs_ms = (int64_t)(CHAOS_SLOW_MS / o->by) < 1 ? 1 : (int64_t)(CHAOS_SLOW_MS / o->by);
    const int64_t halts_ms = (int64_t)((double)runs_ms * (o->by - 1) + 0.5);
    if (o->halts) {
        go_on(t, o);
        o->halts = false;
    } else {
        o->halts = true;
        chaos_signal(&o->process, SIGSTOP);
    }
    o->turn_ms = now_ms + (o->halts ? halts_ms > 0 ? halts_ms : 1 : runs_ms);
}

int64_t chaos_table_keep(struct chaos_table *t, const struct chaos_means *m, int64_t now_ms)
{
    int64_t next_ms = INT64_MAX;
    for (struct chaos_open *o = t->v; o < t->v + atomic_load(&t->n); o++) {
        if (atomic_load(&o->deed) == 0)
            continue;
        if (o->until_ms <= now_ms) {
            end(t, m, o);
            continue;
        }
        if (is(o, CHAOS_SLOW) && o->turn_ms <= now_ms)
            take_turn(t, o, now_ms);
        next_ms = o->until_ms < next_ms ? o->until_ms : next_ms;
        next_ms = is(o, CHAOS_SLOW) && o->turn_ms < next_ms ? o->turn_ms : next_ms;
    }
    return next_ms;
}

void chaos_table_end(struct chaos_table *t, const struct chaos_means *m)
{
    for (struct chaos_open *o = t->v; o < t->v + atomic_load(&t->n); o++)
        if (atomic_load(&o->deed) != 0)
            end(t, m, o);
}
