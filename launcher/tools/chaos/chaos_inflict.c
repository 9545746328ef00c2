/* Inflicts one part of a fault on its targets (chaos_inflict.h). */
#include "launcher/tools/chaos/chaos_inflict.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/tools/chaos/chaos_disk.h"
#include "launcher/tools/chaos/chaos_draw.h"
#include "launcher/tools/chaos/chaos_find.h"
#include "launcher/tools/chaos/chaos_means.h"
#include "launcher/tools/chaos/chaos_table.h"
#include "launcher/tools/chaos/chaos_target.h"

#define FREEZE_TURNS 100 /* turns until no process is born any more */

struct scene {
    const struct chaos_part *part;
    const struct chaos_means *means;
    struct chaos_table *table;
    char *outcome;
    size_t cap;
};

static struct chaos_open open_fault(const struct scene *s)
{
    return (struct chaos_open){
        .until_ms = clock_deadline(s->part->lasts_ms), .node = s->part->node, .fd = -1, .by = s->part->act->by};
}

/* --- processes */

/* deed: stop or slow. */
static int halt(const struct scene *s, enum chaos_deed deed, const struct chaos_process *p, struct err *e)
{
    struct chaos_open o = open_fault(s);
    o.process = *p;
    return chaos_table_begin(s->table, s->means, (int)deed, o, e);
}

static int one_signal(const struct scene *s, const struct chaos_process *p, struct err *e)
{
    const enum chaos_deed deed = s->part->act->deed;
    if (deed == CHAOS_STOP || deed == CHAOS_SLOW)
        return halt(s, deed, p, e);
    const int rc = chaos_signal(p, deed == CHAOS_KILL ? SIGKILL : SIGTERM);
    return rc < 0 && rc != -ESRCH ? err_errno(e, -rc, "process %d", (int)p->pid) : rc;
}

/* How many of them are still there. */
static int all_signals(const struct scene *s, const struct chaos_found *f, struct err *e)
{
    int met = 0;
    for (int i = 0; i < f->n; i++) {
        const int rc = one_signal(s, &f->v[i], e);
        if (rc < 0 && rc != -ESRCH)
            return rc;
        met += rc == 0;
    }
    return met;
}

static bool is_among(const struct chaos_found *f, const struct chaos_process *p)
{
    for (int i = 0; i < f->n; i++)
        if (f->v[i].pid == p->pid && f->v[i].started == p->started)
            return true;
    return false;
}

/* Stop those of f that are not stopped yet. Returns their number. */
static int halt_new(const struct scene *s, const struct chaos_found *f, struct chaos_found *halted, struct err *e)
{
    int met = 0;
    for (int i = 0; i < f->n; i++) {
        if (is_among(halted, &f->v[i]))
            continue;
        TRY(ARRAY_GROW(halted->v, halted->cap, (size_t)halted->n + 1, "processes", e));
        const int rc = halt(s, CHAOS_STOP, &f->v[i], e);
        if (rc < 0 && rc != -ESRCH)
            return rc;
        halted->v[halted->n++] = f->v[i];
        met += rc == 0;
    }
    return met;
}

/* Stop all processes of a node first, so that none acts on the end of another, and none is born meanwhile; then do
 * the fault. Each is in the table by then: if this process is killed, the watcher continues them. Returns the number
 * stopped. */
static int freeze(const struct scene *s, struct chaos_found *f, struct err *e)
{
    struct chaos_found halted = {0};
    int met = 0, rc = 0;
    for (int n = -1, turn = 0; n != f->n && turn < FREEZE_TURNS && rc == 0; turn++) {
        n = f->n;
        const int more = halt_new(s, f, &halted, e);
        met += more > 0 ? more : 0;
        rc = more < 0 ? more : chaos_find(s->means->targets, s->part, f, e);
    }
    free(halted.v);
    return rc < 0 ? rc : met;
}

static int strike(const struct scene *s, struct chaos_found *f, struct err *e)
{
    const struct chaos_act *a = s->part->act;
    TRY(chaos_find(s->means->targets, s->part, f, e));
    const bool at_once = a->role == CHAOS_NODE && (a->deed == CHAOS_KILL || a->deed == CHAOS_STOP) && f->n > 0;
    const int halted = at_once ? freeze(s, f, e) : 0;
    TRY(halted);
    const int met = at_once && a->deed == CHAOS_STOP ? halted : all_signals(s, f, e);
    if (met <= 0)
        return met;
    if (a->role == CHAOS_NODE)
        snprintf(s->outcome, s->cap, "%d processes of %d", met, (int)f->v[0].pid);
    else if (f->rank >= 0)
        snprintf(s->outcome, s->cap, "%d (rank %d of node %d)", (int)f->v[0].pid, f->rank, f->node);
    else
        snprintf(s->outcome, s->cap, "%d", (int)f->v[0].pid);
    return 1;
}

static int inflict_on_process(const struct scene *s, struct err *e)
{
    struct chaos_found f = {0};
    const int rc = strike(s, &f, e);
    free(f.v);
    return rc;
}

/* --- what is no process */

static int inflict_on_link(const struct scene *s, struct err *e)
{
    const int rc = chaos_table_begin(s->table, s->means, CHAOS_CUT, open_fault(s), e);
    snprintf(s->outcome, s->cap, "link %s", s->means->targets->v[s->part->node].link);
    return rc == -ENODEV ? 0 : rc < 0 ? rc : 1;
}

static int inflict_on_clock(const struct scene *s, struct err *e)
{
    snprintf(s->outcome, s->cap, "clock %s", s->means->targets->v[s->part->node].clock);
    TRY(chaos_table_begin(s->table, s->means, CHAOS_CLOCK, open_fault(s), e));
    return 1;
}

static int inflict_on_disk(const struct scene *s, struct err *e)
{
    const char *folder = s->means->targets->v[s->part->node].folder;
    struct chaos_open o = open_fault(s);
    int64_t bytes;
    if (s->part->act->deed == CHAOS_CORRUPT) {
        const int rc = chaos_disk_corrupt(folder, s->part->act->word, s->part->pick, s->outcome, s->cap, e);
        return rc == -ENOENT ? 0 : rc < 0 ? rc : 1;
    }
    TRY(chaos_disk_fill(folder, &o.fd, &bytes, e));
    const int rc = chaos_table_begin(s->table, s->means, CHAOS_FILL, o, e);
    if (rc < 0) {
        close(o.fd);
        return rc;
    }
    snprintf(s->outcome, s->cap, "%lld bytes of %s", (long long)bytes, folder);
    return 1;
}

int chaos_inflict(const struct chaos_part *part, const struct chaos_means *m, struct chaos_table *t, char *outcome,
                  size_t cap, struct err *e)
{
    const struct scene s = {part, m, t, outcome, cap};
    int rc;
    switch (part->act->deed) {
    case CHAOS_CUT:
        rc = inflict_on_link(&s, e);
        break;
    case CHAOS_CLOCK:
        rc = inflict_on_clock(&s, e);
        break;
    case CHAOS_FILL:
    case CHAOS_CORRUPT:
        rc = inflict_on_disk(&s, e);
        break;
    default:
        rc = inflict_on_process(&s, e);
        break;
    }
    if (rc == 0)
        snprintf(outcome, cap, "nobody");
    return rc;
}
