/* Lets the ranks that are here meet and plan over a communicator. */
#include "worker/planner/here.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/env_contract.h"

enum { LEAVE_MS = 10000 };

static int at_least_one(int64_t n)
{
    return n < 1 ? 1 : (int)n;
}

static int meet_others(struct here *h, const struct train_config *cfg, const struct env_contract *env, struct err *e)
{
    h->opened = (struct comm_options){.rank = (int)env->rank,
                                      .world = at_least_one(env->world_size),
                                      .name = "planning",
                                      .timeout_ms = (int64_t)(cfg->comm_timeout * 1000)};
    if (h->opened.world == 1)
        return 0;
    TRY(meet_open(&h->meet, env, h->opened.timeout_ms, e));
    h->opened.store = h->meet.store;
    /* what is measured lies in host memory, also of a run that wants nccl: whether it can be planned is said later */
    return comm_open(&h->comm, strcmp(cfg->comm, "nccl") == 0 ? "auto" : cfg->comm, &h->opened, e);
}

int here_open(struct here *h, const struct train_config *cfg, const struct env_contract *env, int world,
              int local_world, struct err *e)
{
    *h = (struct here){0};
    int rc = meet_others(h, cfg, env, e);
    if (rc == 0) {
        const struct planner_options o = {.cfg = cfg,
                                          .world = world,
                                          .local_world = local_world,
                                          .rank = (int)env->rank,
                                          .place = env_contract_place(env),
                                          .node = env->group_rank < 0 ? 0 : (int)env->group_rank,
                                          .comm = h->comm,
                                          .opened = &h->opened,
                                          .hardware = -1,
                                          .tells = env->rank == 0};
        rc = planner_open(&h->planner, &o, e);
    }
    if (rc < 0)
        here_close(h, true, NULL);
    return rc;
}

void here_close(struct here *h, bool failed, struct meet *keep)
{
    planner_close(h->planner);
    if (h->comm && failed)
        h->comm->ops->abort(h->comm);
    if (h->comm)
        h->comm->ops->close(h->comm);
    if (keep)
        *keep = h->meet;
    else
        meet_close(&h->meet, failed ? 0 : LEAVE_MS);
    *h = (struct here){0};
}

static int tell(const struct planner_choice *c, const struct train_config *cfg, struct err *e)
{
    char *table, options[200];
    TRY(planner_table(c, cfg->memory_limit, &table, e));
    fputs(table, stderr);
    free(table);
    const char *text = plans_options(&c->rows[c->chosen].plan, cfg, options, sizeof options);
    fprintf(stderr, "  as options: %s\n", *text ? text : "none");
    return 0;
}

int here_check(const struct train_config *cfg, bool predicts, struct err *e)
{
    struct network_link links[NETWORK_CALLS];
    if (!cfg->network)
        return 0;
    if (!predicts)
        return err_set(e, ERR_USAGE,
                       "--network %s: nothing is predicted here; --auto-parallel and trainer plan --step-time do that",
                       cfg->network);
    return network_parse(cfg->network, links, e) < 0 ? err_wrap(e, "--network") : 0;
}

int here_choose(const struct train_config *cfg, const struct env_contract *env, struct train_config *ret,
                struct meet *meet, struct err *e)
{
    struct here h;
    struct planner_choice c;
    if (env->rank < 0)
        return err_set(e, ERR_USAGE, "--auto-parallel: a run that is planned has no warm spares (--warm-spares)");
    TRY(here_open(&h, cfg, env, at_least_one(env->world_size), at_least_one(env->local_world_size), e));
    int rc = planner_choose(h.planner, cfg->memory_limit, &c, e);
    if (rc == 0) {
        plans_apply(&c.rows[c.chosen].plan, cfg, ret);
        rc = env->rank == 0 ? tell(&c, cfg, e) : 0;
        planner_choice_free(&c);
    }
    here_close(&h, rc < 0, rc < 0 ? NULL : meet);
    return rc;
}
