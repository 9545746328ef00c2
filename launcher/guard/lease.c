/* Kills workers whose lease is over, if their agent does not (lease.h). */
#include "launcher/guard/lease.h"

#include "common/base/clock.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/patience.h"
#include "launcher/guard/stuck.h"
#include "launcher/guard/tree.h"
#include "launcher/stdio/console.h"

int lease_keep(struct lease *s, const struct guardian_link *l)
{
    const int64_t until = atomic_load(l->lease_ms);
    const int64_t left = until + s->late_ms - clock_ms();
    if (!until || left > 0) {
        s->lapsed = false;
        return until ? (int)(left < INT32_MAX ? left : INT32_MAX) : -1;
    }
    char agent[STUCK_TEXT_MAX];
    const int64_t turned = atomic_load(&l->board->turned_ms);
    stuck_text(s->agent, l, agent); /* as it is while it stands still */
    const int killed = tree_kill_below(s->agent);
    cgroup_kill_at(l->cgroup_dir);
    if (killed > 0 && !s->lapsed) {
        s->lapsed = true;
        /* print it unless the agent is killing them itself, which may take time, or this lapse was reported already */
        if (turned < until && atomic_exchange(&l->board->lapsed_ms, until) != until)
            console_try("crun: its %s has stood still for %lld ms: the workers were ended, because another round may "
                        "begin (--rdzv-conf keep_alive_interval, keep_alive_max_attempt)\n",
                        agent, (long long)(turned ? clock_ms() - turned : 0));
    }
    return s->lapsed ? TREE_RESCAN_MS * 10 : s->late_ms;
}
