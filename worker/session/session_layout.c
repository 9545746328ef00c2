/* Plans the layout of a run, and opens its communicators. */
#include "worker/session/session_layout.h"

#include <stdio.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/env_contract.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/device/module/module.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/group_calls.h"
#include "worker/parallel/groups.h"
#include "worker/program/program.h"
#include "worker/session/hold.h"
#include "worker/session/outlive.h"
#include "worker/session/session.h"
#include "worker/session/stop.h"

static void tell_useless(const struct session *s)
{
    const struct train_config *c = s->cfg;
    if (s->layout.tensor == 1 && s->leads && (c->model_parallel || c->model_parallel_size > 1) &&
        c->model_parallel_dim == MODEL_PARALLEL_NONE)
        log_warn("layout", "--model-parallel-dim is not given: the last layer is whole on every rank");
}

int session_plan_layout(const struct train_config *cfg, int world, int nodes, struct layout *ret, struct err *e)
{
    TRY(layout_plan(ret, world, train_config_tensor(cfg, world), (int)cfg->stages, train_config_zero(cfg), e));
    ret->seconds = cfg->replicate_state > 0;
    ret->nodes = nodes < 1 ? 1 : nodes;
    return 0;
}

int session_open_layout(struct session *s, int world, struct err *e)
{
    TRY(session_plan_layout(s->cfg, world, s->nodes, &s->layout, e));
    s->batch = layout_group(&s->layout, LAYOUT_BATCH, s->rank);
    s->pipeline = train_config_pipeline(s->cfg);
    s->leads = s->rank == layout_writer(&s->layout);
    tell_useless(s);
    return 0;
}

/* A GPU is open, so its module is loaded; NULL where it was built without NCCL. */
static const struct comm_ops *nccl_of(void)
{
    const struct cuda_module *m = cuda_module(NULL);
    return m ? m->nccl : NULL;
}

int session_open_comm(struct session *s, const struct env_contract *env, struct err *e)
{
    struct comm_options o = {.rank = s->rank,
                             .world = layout_members(&s->layout),
                             .name = "world",
                             .timeout_ms = (int64_t)(s->cfg->comm_timeout * 1000),
                             .cancel_fd = hold_fd()};
    if (!s->meet.store) /* else they have met, to plan */
        TRY(meet_open(&s->meet, env, o.timeout_ms, e));
    hold_watch(s->meet.store, NULL);
    o.store = s->meet.store;
    o.device = s->device;
    o.shares_device = s->cfg->oversubscribe;
    if (s->device->ops->async) {
        o.nccl = nccl_of();
        s->device->ops->async->tear(s->device, false);
    }
    TRY(comm_open(&s->comm, s->cfg->comm, &o, e));
    hold_watch(NULL, s->comm);
    stop_ranks_have_met();
    static const enum dtype wire[] = {[ALLREDUCE_FP32] = DT_F32, [ALLREDUCE_FP16] = DT_F16, [ALLREDUCE_BF16] = DT_BF16};
    const enum allreduce by = train_config_allreduce(s->cfg);
    const int node = env->group_rank < 0 ? 0 : (int)env->group_rank;
    TRY(groups_open(s->groups, s->comm, &s->own, &o, s->cfg->by_node == REDUCE_HIERARCHICAL ? node : -1, e));
    TRY(groups_open_edges(s->edges, s->groups[LAYOUT_STAGES], s->pipeline.chunks > 1, &o, e));
    if (s->layout.tensor > 1)
        group_calls(&s->group, s->groups[LAYOUT_TENSOR]);
    struct ddp_options d = {.sync_bn = s->cfg->sync_bn,
                            .device = s->device,
                            .wire = by == ALLREDUCE_FP32 ? s->state.real : wire[by],
                            .waits = outlive_waits(s)};
    const struct program *p = s->program;
    return ddp_create(&s->ddp, s->groups, &s->own, s->state.reduce, p->n_reduce - p->n_train, s->state.real, &d, e);
}

/* What op makes; the fused head of a vocabulary makes no tensor. */
static const char *made_by(const struct program *p, int op)
{
    return p->ops[op].out < 0 ? "head" : p->tensors[p->ops[op].out].name;
}

/* "conv1 to layer2.1.relu": the layers of a part of the model. */
static int part_text(const struct session *s, int part, char *out, size_t cap)
{
    const struct program *p = s->whole;
    const int parts = s->pipeline.stages * s->pipeline.chunks;
    const int first = part ? s->cuts[part - 1] : 0;
    int last = part < parts - 1 ? s->cuts[part] - 1 : p->nfwd - 1;
    while (p->logits >= 0 && (p->ops[last].out < 0 || (part == parts - 1 && p->ops[last].out != p->logits)))
        last--;
    return snprintf(out, cap, "%s to %s", made_by(p, first), made_by(p, last));
}

char *session_stage_text(const struct session *s, int stage, char *out, size_t cap)
{
    size_t at = 0;
    for (int k = 0; k < s->pipeline.chunks && at < cap; k++) {
        at += (size_t)snprintf(out + at, cap - at, "%s", k ? "; " : "");
        if (at < cap)
            at += (size_t)part_text(s, pipeline_part(&s->pipeline, stage, k), out + at, cap - at);
    }
    return out;
}

static void print_stages(const struct session *s)
{
    static const char *const names[] = {PIPELINE_KINDS(CHOICE_NAME)};
    const struct pipeline *p = &s->pipeline;
    char text[STAGE_TEXT_MAX];
    fprintf(stderr, "pipeline: %d stages of %d rank%s, %d micro-batches, %s%s\n", p->stages, s->batch.count,
            s->batch.count == 1 ? "" : "s", s->parts, names[p->kind], s->cfg->recompute ? ", recomputing" : "");
    for (int i = 0; i < p->stages; i++)
        fprintf(stderr, "stage %d: %s\n", i, session_stage_text(s, i, text, sizeof text));
}

/* Are there layers of positions whose sums are over the tensor group? */
static bool shares_blocks(const struct program *p)
{
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].kind == OP_LINEAR && p->ops[i].each && p->params[p->ops[i].param[0]].sharded)
            return true;
    return false;
}

void session_layout_banner(const struct session *s)
{
    if (s->layout.stages > 1)
        print_stages(s);
    static const char *const last[] = {[MODEL_PARALLEL_FEATURES] = "the last layer, split over features",
                                       [MODEL_PARALLEL_CLASSES] = "the last layer, split over classes",
                                       [MODEL_PARALLEL_LAST] = "the last layer, split over classes",
                                       [MODEL_PARALLEL_BLOCKS] = ""};
    const char *text = last[s->cfg->model_parallel_dim];
    if (s->layout.tensor > 1 && *text && s->whole->input.rows == INPUT_TOKENS)
        text = "the vocabulary";
    if (s->layout.tensor > 1)
        fprintf(stderr, "layout: groups of %d ranks that share %s%s%s: %d; spare ranks: %d\n", s->layout.tensor,
                shares_blocks(s->whole) ? "blocks" : "", shares_blocks(s->whole) && *text ? " and " : "", text,
                s->layout.data, s->layout.world - layout_members(&s->layout));
}
