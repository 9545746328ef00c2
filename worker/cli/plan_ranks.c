/* Makes this process some ranks of a planned run, so that operations and links can be measured. */
#include "worker/cli/plan_ranks.h"

#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "worker/meet/ranks.h"
#include "worker/meet/spawn.h"
#include "worker/planner/here.h"

static int ranks_here(const struct plan_ranks *r)
{
    if (r->hardware >= 0)
        return 1;
    const int measure = planner_measures(r->cfg, r->local_world);
    return r->local_world > 1 && measure < 2 ? 2 : measure;
}

int plan_ranks_start(struct plan_ranks *r, int *ret_code, struct err *e)
{
    const struct ranks here = {.asked = true, .procs = ranks_here(r), .nodes = 1};
    r->rank = 0;
    if (here.procs > 1)
        TRY(spawn_ranks(here.procs, &r->rank, ret_code, e));
    if (r->rank >= 0)
        ranks_enter(&here, r->rank);
    return 0;
}

static int plan_all(struct plan_ranks *r, struct planner *p, struct err *e)
{
    r->chosen = *r->cfg;
    r->network = *planner_network(p);
    if (!r->cfg->auto_parallel)
        return planner_predict(p, r->cfg, &r->step, e);
    TRY(planner_choose(p, r->cfg->memory_limit, &r->choice, e));
    const struct planner_row *row = &r->choice.rows[r->choice.chosen];
    plans_apply(&row->plan, r->cfg, &r->chosen);
    r->step = row->as;
    return 0;
}

static int plan_elsewhere(struct plan_ranks *r, struct err *e)
{
    const struct planner_options o = {
        .cfg = r->cfg, .world = r->world, .local_world = r->local_world, .hardware = r->hardware};
    struct planner *p;
    TRY(planner_open(&p, &o, e));
    r->machine = *planner_hardware(p);
    int rc = plan_all(r, p, e);
    planner_close(p);
    return rc;
}

int plan_ranks_measure(struct plan_ranks *r, struct err *e)
{
    struct env_contract env = {0};
    struct here h;
    if (r->hardware >= 0)
        return plan_elsewhere(r, e);
    TRY(env_contract_read(&env, e));
    TRY(here_open(&h, r->cfg, &env, r->world, r->local_world, e));
    int rc = plan_all(r, h.planner, e);
    here_close(&h, rc < 0, NULL);
    return rc;
}

void plan_ranks_finish(struct plan_ranks *r)
{
    planner_choice_free(&r->choice);
}
