/* Reports changes of jobs to the watcher (jobs_watch.h). */
#include "rendezvousd/jobs/jobs_watch.h"

#include <string.h>

#include "common/job/exitcode.h"
#include "rendezvousd/jobs/jobs_impl.h"

void jobs_watch(struct jobs *j, const struct jobs_watcher *w)
{
    j->watcher = *w;
}

static int add_slots(void *arg, const struct rdzv_member *m)
{
    *(int *)arg += m->member ? m->slots : 0;
    return 0;
}

/* Find the END that its members get, the same for all. */
static void find_end(const struct leader *l, struct jobs_facts *f)
{
    const enum rdzv_state state = rdzv_state(leader_machine(l));
    f->exit_code = state == RDZV_SUCCEEDED ? EXIT_OK : state == RDZV_DRAINED ? EXIT_REQUEUE : EXIT_FAIL;
    for (const struct leader_member *m = leader_members(l); m; m = m->hh.next)
        if (m->has_news && m->news.kind == RDZV_NEWS_END) {
            f->exit_code = m->news.exit_code;
            f->cause = m->news.cause.text[0] ? &m->news.cause : NULL;
            return;
        }
}

void job_watch_(struct job *job)
{
    const struct jobs_watcher *w = &job->jobs->watcher;
    const struct leader *l = job->reign.leader;
    struct rdzv *machine = leader_machine(l);
    if (!w->changed || !machine)
        return;
    const struct rdzv_config *c = leader_config(l);
    const struct leader_history *h = leader_history(l);
    struct job_seen now = {.state = (int)rdzv_state(machine),
                           .round = rdzv_round(machine),
                           .nodes = rdzv_nodes(machine),
                           .restarts = rdzv_restarts(machine)};
    strncpy(now.instance, leader_instance(l), sizeof now.instance - 1);
    if (memcmp(&now, &job->seen, sizeof now) == 0)
        return;
    if (now.round != job->seen.round || now.state != job->seen.state) {
        job->world_size = 0;
        rdzv_members(machine, add_slots, &job->world_size);
    }
    job->seen = now;
    struct jobs_facts f = {.run = leader_run(l),
                           .instance = leader_instance(l),
                           .principal = leader_principal(l),
                           .state = rdzv_state_name(rdzv_state(machine)),
                           .over = leader_is_over(l),
                           .round = now.round,
                           .nodes = now.nodes,
                           .min_nodes = c->min_nodes,
                           .max_nodes = c->max_nodes,
                           .restarts = now.restarts,
                           .max_restarts = c->max_restarts,
                           .world_size = job->world_size,
                           .age_ms = job->jobs->o.now() - h->started_ms};
    if (h->restart_count)
        f.restart = &h->restarts[(h->restart_count - 1) % LEADER_RESTARTS];
    if (f.over)
        find_end(l, &f);
    w->changed(w->arg, &f);
}
