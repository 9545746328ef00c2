#include "tests/worker/run/step_rig.h"

#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/group_calls.h"
#include "worker/parallel/groups.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/stages.h"

static int open_data(struct step_rig *r, const struct step_rig_options *o, struct err *e)
{
    const struct program *p = r->program;
    const struct layout_ranks batch = ownership_group(&r->own, LAYOUT_BATCH);
    const size_t images = (size_t)o->batch * (size_t)o->steps - (size_t)o->short_by;
    const struct dataset_options null = {.kind = DATASET_NULL,
                                         .num_labels = p->classes,
                                         .null_samples = images,
                                         .null_size = p->input.height,
                                         .length = p->input.length,
                                         .vocabulary = p->input.vocabulary};
    const struct loader_options l = {
        .sampler =
            {.n = images, .batch = (size_t)o->batch, .rank = batch.index, .world = batch.count, .parts = o->parts},
        .input = {.size = p->input.height, .channels = p->input.channels, .tokens = p->input.length},
        .threads = 1};
    TRY(dataset_open(&r->set, "null", &null, e));
    r->step.part = (int)sampler_part_rows(&l.sampler);
    r->step.parts = sampler_parts(&l.sampler);
    if (layout_place(&r->own.layout, r->comm->rank).stage > 0)
        return 0; /* the first stage loads */
    TRY(loader_create(&r->loader, r->set, &l, e));
    return loader_seek(r->loader, 0, 0, 1, e);
}

static struct plan_options plan_of(struct step_rig *r, const struct step_rig_options *o)
{
    const struct state *s = &r->state;
    const enum dtype half = o->precision.half == DT_BF16 ? DT_BF16 : DT_F16;
    const struct plan_needs *needs = r->needs ? residency_needs(r->needs) : NULL;
    if (r->groups[LAYOUT_TENSOR])
        group_calls(&r->group, r->groups[LAYOUT_TENSOR]);
    return (struct plan_options){.batch = r->step.part,
                                 .training = true,
                                 .compute = o->emulate || o->native ? half : s->real,
                                 .emulate = o->emulate,
                                 .half = o->precision.level == LEVEL_O1 ? HALF_OPERANDS : HALF_STORED,
                                 .params = s->params,
                                 .stats = s->stats,
                                 .reduce = s->reduce,
                                 .group = r->groups[LAYOUT_TENSOR] ? &r->group : NULL,
                                 .needs = needs && o->wrap ? o->wrap(needs) : needs};
}

static int open_plan(struct step_rig *r, const struct step_rig_options *o, struct err *e)
{
    struct state *s = &r->state;
    const struct plan_options p = plan_of(r, o);
    struct stage_options g = {.order = o->pipeline,
                              .index = layout_place(&r->own.layout, r->comm->rank).stage,
                              .comm = r->groups[LAYOUT_STAGES],
                              .before = r->edges[0],
                              .behind = r->edges[1],
                              .device = s->device,
                              .program = r->program,
                              .own = &r->own,
                              .ddp = r->ddp,
                              .plan = p,
                              .recompute = o->recompute};
    if (r->own.layout.stages == 1)
        return s->device->ops->plan(s->device, r->program, &p, &r->plan, e);
    g.order.micro_batches = r->step.parts;
    g.order.trains_from = r->trains_from;
    TRY(pipeline_check(&g.order, e));
    return stage_open(&r->stage, &g, e);
}

/* The stage of p, which has the model. */
static int open_program(struct step_rig *r, struct program *p, const struct layout *l, const struct step_rig_options *o,
                        struct err *e)
{
    int cuts[STAGES_PARTS_MAX];
    const int parts = l->stages * (o->pipeline.chunks > 1 ? o->pipeline.chunks : 1);
    r->program = p;
    if (l->stages == 1)
        return 0;
    r->whole = p;
    TRY(stages_cut(p, parts, cuts, e));
    r->trains_from = stages_first_trained(p, cuts, parts);
    return stages_program(&r->program, p, cuts, parts, l->stages, layout_place(l, r->comm->rank).stage, e);
}

static int open_ownership(struct step_rig *r, const struct device *d, const struct comm *comm, const struct layout *l,
                          const struct step_rig_options *o, struct err *e)
{
    const struct ownership_options pieces = {.elem_bytes = dtype_size(d->ops->real),
                                             .bucket_bytes = o->bucket_bytes,
                                             .first_bucket_bytes = o->bucket_bytes / 8,
                                             .whole_gradients = o->pipeline.chunks > 1,
                                             .compact = d->ops->async != NULL};
    return ownership_init(&r->own, l, comm->rank, r->program, &pieces, e);
}

int step_rig_open(struct step_rig *r, struct device *d, struct program *p, struct comm *comm,
                  const struct step_rig_options *o, struct err *e)
{
    struct state_options so = {.seed = 1, .second = o->optimizer.rule >= UPDATE_ADAM, .ema = o->optimizer.ema > 0};
    struct state *s = &r->state;
    struct layout l;
    const struct comm_options co = {.name = "rig", .timeout_ms = 60000, .device = d};
    const bool lockstep = d->ops->async && o->seconds; /* outlive_waits() */
    *r = (struct step_rig){.optimizer = o->optimizer, .comm = comm};
    r->optimizer.bn_momentum = 0.1;
    TRY(layout_plan(&l, comm->world, o->tensor ? o->tensor : 1, o->pipeline.stages > 1 ? o->pipeline.stages : 1,
                    o->zero, e));
    l.seconds = o->seconds;
    TRY(open_program(r, p, &l, o, e));
    p = r->program;
    so.whole = r->whole;
    TRY(open_ownership(r, d, comm, &l, o, e));
    r->borrows_groups = o->groups;
    if (o->groups)
        memcpy(r->groups, o->groups, sizeof r->groups);
    else
        TRY(groups_open(r->groups, comm, &r->own, &co, -1, e));
    if (o->edges)
        memcpy(r->edges, o->edges, sizeof r->edges);
    else if (!o->groups)
        TRY(groups_open_edges(r->edges, r->groups[LAYOUT_STAGES], o->pipeline.chunks > 1, &co, e));
    TRY(state_init(s, d, p, &r->own, &so, e));
    s->loss_scale = o->precision.scale;
    TRY(open_data(r, o, e));
    TRY(ddp_create(&r->ddp, r->groups, &r->own, s->reduce, p->n_reduce - p->n_train, s->real,
                   &(struct ddp_options){.wire = s->real, .device = d, .sync_bn = o->sync_bn, .waits = lockstep}, e));
    if (l.stages == 1 && ownership_gathers(&r->own))
        TRY(residency_create(&r->needs, &r->own, r->ddp, d, s->params, e));
    TRY(open_plan(r, o, e));
    TRY(optimizer_slice(&r->optimizer, p, &r->own, e));
    r->step = (struct step){.state = s,
                            .loader = r->loader,
                            .plan = r->plan,
                            .stage = r->stage,
                            .ddp = r->ddp,
                            .optimizer = &r->optimizer,
                            .parts = r->step.parts,
                            .part = r->step.part,
                            .stride = r->step.part,
                            .smoothing = o->smoothing,
                            .precision = o->precision,
                            .grad_batch = (double)o->batch * (double)input_row_labels(&p->input),
                            .lockstep = lockstep,
                            .check = true};
    return 0;
}

void step_rig_close(struct step_rig *r)
{
    optimizer_finish(&r->optimizer);
    stage_close(r->stage);
    ddp_destroy(r->ddp);
    if (!r->borrows_groups) {
        groups_close_edges(r->edges);
        groups_close(r->groups, r->comm);
    }
    if (r->plan)
        r->state.device->ops->plan_close(r->plan);
    residency_destroy(r->needs);
    loader_destroy(r->loader);
    dataset_close(r->set);
    state_finish(&r->state);
    ownership_finish(&r->own);
    program_destroy(r->program);
    program_destroy(r->whole);
}
