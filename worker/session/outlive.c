/* Says which processes can outlive a round, and what of them is of use then. */
#include "worker/session/outlive.h"

#include <stddef.h>

#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "worker/config/config.h"
#include "worker/data/loader/sampler.h"
#include "worker/device/module/module.h"
#include "worker/session/session.h"
#include "worker/session/session_layout.h"

bool outlive_is_whole(const struct layout *l)
{
    return l->tensor == 1 && l->stages == 1 && (l->zero == 0 || l->data == 1);
}

/* NULL: no rank has what no other has. */
static const char *what_one_rank_has(const struct layout *l)
{
    if (outlive_is_whole(l))
        return NULL;
    if (l->zero > 0 && !l->seconds)
        return "with --zero a part of the state has one owner (--replicate-state 1 gives it a second one)";
    if (l->tensor > 1 && l->data == 1)
        return "no two ranks have the same part of the last layer (fewer ranks than twice a tensor group's, times the "
               "stages)";
    if (l->stages > 1 && l->data * l->tensor == 1)
        return "no two ranks have the same stage (fewer ranks than twice the stages)";
    return NULL;
}

bool outlive_waits(const struct session *s)
{
    return s->device->ops->async && s->layout.seconds && s->layout.stages == 1 && s->layout.tensor == 1;
}

bool outlive_settles(const struct session *s)
{
    const struct train_config *c = s->cfg;
    const bool tells = !s->device->ops->async || outlive_is_whole(&s->layout) || outlive_waits(s);
    return tells && !c->timeline && !c->mem_report && !c->evaluate && !c->auto_parallel;
}

bool outlive_can(const struct session *s, const char **why)
{
    const struct layout *l = &s->layout;
    *why = what_one_rank_has(l);
    if (!*why && s->device->ops->async && !outlive_is_whole(l) && !outlive_waits(s))
        *why = "on a GPU ranks that have a stage or a part of the last layer do not outlive one another";
    return !*why && outlive_settles(s);
}

int outlive_keeps(const struct session *s, int place, bool *keeps, struct err *e)
{
    const bool is_whole = outlive_is_whole(&s->layout), asked = s->cfg->memory_checkpoints > 0 && !s->cfg->evaluate;
    if (asked && s->device->ops->async && !is_whole)
        return err_set(e, ERR_USAGE, "--memory-checkpoints %g: on a GPU only where every rank has the whole state",
                       s->cfg->memory_checkpoints);
    *keeps = asked && (!is_whole || place == 0);
    return 0;
}

bool outlive_can_grow(const struct session *s)
{
    const struct train_config *c = s->cfg;
    const bool is_cut = train_config_zero(c) > 0, moves = c->replicate_state > 0;
    const bool is_alike = c->stages == 1 && !c->model_parallel && c->model_parallel_size <= 1;
    return is_alike && (!is_cut || moves) && !c->by_world && (enum sampler_kind)c->sampler == SAMPLER_GLOBAL;
}

static bool is_same_place(const struct layout *a, int rank, const struct layout *b, int other)
{
    const struct layout_place x = layout_place(a, rank), y = layout_place(b, other);
    return a->tensor == b->tensor && a->stages == b->stages && a->zero == b->zero && x.stage == y.stage &&
           x.tensor == y.tensor;
}

/* What is cut is cut for so many ranks, and differently for each; but for parameters all parts are of one size. */
static bool is_same_part(const struct layout *a, int rank, const struct layout *b, int other, bool has_state)
{
    const bool any = !has_state && a->zero < 3 && a->tensor == 1 && a->stages == 1;
    return a->data == b->data && a->nodes == b->nodes && (rank == other || any);
}

/* A context of a GPU cannot move to another one. */
static bool is_same_gpu(const struct session *s, const struct env_contract *env)
{
    const struct cuda_module *m = s->device->ops->async ? cuda_module(NULL) : NULL;
    struct gpu_choice now = s->gpu;
    struct err e;
    int was, is;
    now.local_rank = (int)env->local_rank;
    return !m || (gpu_choose(&s->gpu, m->count(NULL), &was, &e) == 0 &&
                  gpu_choose(&now, m->count(NULL), &is, &e) == 0 && was == is);
}

bool outlive_fits(const struct session *s, const struct env_contract *env, bool has_state)
{
    const struct ownership *held = former_held(s);
    const struct layout *was = &held->layout;
    const int rank = (int)env->rank;
    struct layout now;
    struct err e;
    if (session_plan_layout(s->cfg, (int)env->world_size, (int)env->group_world_size, &now, &e) < 0 ||
        layout_is_spare(&now, rank))
        return false;
    if (!is_same_place(was, held->rank, &now, rank) || !is_same_gpu(s, env))
        return false;
    if (has_state && former_can_move(s))
        return true;
    return now.zero == 0 || is_same_part(was, held->rank, &now, rank, has_state);
}
