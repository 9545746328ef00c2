/* A stage is made, and comes to an end: lanes to its neighbours, plans of its chunks, memory of messages. */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage_impl.h"
#include "worker/program/program.h"

static const enum comm_channel channels[WAYS] = {[FORWARD] = COMM_STATISTICS, [BACKWARD] = COMM_GRADIENTS};

static size_t bytes_of(const struct stage_options *o, int tensor)
{
    const struct tensor *t = tensor >= 0 ? &o->program->tensors[tensor] : NULL;
    const enum dtype type = device_boundary_type(&o->plan, o->device->ops->real);
    return t ? (size_t)o->plan.batch * (size_t)t->c * (size_t)t->h * (size_t)t->w * dtype_size(type) : 0;
}

static bool forecast(const struct stage *g)
{
    return !g->o.comm;
}

static int take(const struct stage *g, size_t bytes, struct mail *m, struct err *e)
{
    return mail_open(m, g->o.device, forecast(g) ? 0 : bytes, e);
}

static int open_inbox(const struct stage *g, struct inbox *b, int n, size_t bytes, struct err *e)
{
    b->n = n;
    b->bytes = bytes;
    b->mail = calloc((size_t)n, sizeof *b->mail);
    if (!b->mail)
        return err_errno(e, ENOMEM, "messages of a stage");
    for (int i = 0; i < n; i++)
        TRY(take(g, bytes, &b->mail[i], e));
    return 0;
}

/* Activations come from the stage before and go to the one behind, gradients of them the other way. */
static int open_lane(struct stage *g, int way, bool in, struct err *e)
{
    const struct stage_options *o = &g->o;
    const int stages = o->order.stages, back = in == (way == FORWARD);
    const int peer = (o->index + (back ? stages - 1 : 1)) % stages;
    const bool ring = o->order.chunks > 1, none = !ring && (back ? o->index == 0 : o->index == stages - 1);
    struct comm *edge = back ? o->before : o->behind;
    if (forecast(g) || none || (way == BACKWARD && !o->plan.training))
        return 0;
    return lane_open(in ? &g->from[way] : &g->to[way], edge ? edge : o->comm, channels[way],
                     edge ? 1 - edge->rank : peer, o->device, e);
}

static int open_needs(const struct stage *g, struct chunk *c, struct plan_options *p, struct err *e)
{
    const struct stage_options *o = &g->o;
    if (!ownership_gathers(o->own))
        return 0;
    TRY(residency_create(&c->needs[FORWARD], o->own, o->ddp, o->device, p->params, e));
    p->needs = residency_needs(c->needs[FORWARD]);
    if (!p->training)
        return 0;
    TRY(residency_create(&c->needs[BACKWARD], o->own, o->ddp, o->device, p->params, e));
    p->needs_back = residency_needs(c->needs[BACKWARD]);
    return 0;
}

/* Room for what is asked for ahead of its use. */
static int inbox_size(const struct stage *g, int chunk, int way)
{
    const struct stage_options *o = &g->o;
    const bool kept = way == FORWARD && o->recompute;
    const int live = kept ? pipeline_live(&o->order, o->index, chunk) + 1 : AHEAD,
              asked = pipeline_asked(&o->order, o->index, g->asks, g->nasks, chunk, way == BACKWARD, kept);
    return asked > live ? asked : live;
}

static int open_chunk(struct stage *g, int k, struct err *e)
{
    const struct stage_options *o = &g->o;
    const struct program_chunk *of = &o->program->chunks[k];
    const int live = o->plan.training ? pipeline_live(&o->order, o->index, k) : 1;
    struct chunk *c = &g->chunks[k];
    struct plan_options p = o->plan;
    c->holds = -1;
    c->sets = o->recompute || !goes_back(g, k) ? 1 : live;
    c->out_bytes[FORWARD] = bytes_of(o, of->out);
    c->out_bytes[BACKWARD] = o->plan.training ? bytes_of(o, of->d_in) : 0;
    p.chunk = of;
    p.sets = c->sets;
    p.first_op = p.end_op = 0;
    for (int w = 0; w < WAYS; w++)
        g->out_most[w] = c->out_bytes[w] > g->out_most[w] ? c->out_bytes[w] : g->out_most[w];
    TRY(open_inbox(g, &c->in[FORWARD], inbox_size(g, k, FORWARD), bytes_of(o, of->in), e));
    TRY(open_inbox(g, &c->in[BACKWARD], inbox_size(g, k, BACKWARD), o->plan.training ? bytes_of(o, of->d_out) : 0, e));
    TRY(open_needs(g, c, &p, e));
    return o->device->ops->plan(o->device, o->program, &p, &c->plan, e);
}

static int open_asks(struct stage *g, struct err *e)
{
    const struct stage_options *o = &g->o;
    g->asks = calloc((size_t)pipeline_actions(&o->order), sizeof *g->asks);
    if (!g->asks)
        return err_errno(e, ENOMEM, "messages of a stage");
    TRY(g->nasks = pipeline_asks(&o->order, o->index, g->asks, e));
    return 0;
}

static int open_all(struct stage *g, struct err *e)
{
    const struct stage_options *o = &g->o;
    if (!g->chunks)
        return err_errno(e, ENOMEM, "a stage of %d chunks", o->order.chunks);
    if (o->plan.training)
        TRY(open_asks(g, e));
    for (int w = 0; w < WAYS; w++) {
        TRY(open_lane(g, w, true, e));
        TRY(open_lane(g, w, false, e));
    }
    for (int k = 0; k < o->order.chunks; k++)
        TRY(open_chunk(g, k, e));
    for (int w = 0; w < WAYS; w++)
        for (int i = 0; i < AHEAD; i++)
            TRY(take(g, g->out_most[w], &g->out[w][i], e));
    return 0;
}

int stage_open(struct stage **ret, const struct stage_options *o, struct err *e)
{
    struct stage *g = calloc(1, sizeof *g);
    if (!g)
        return err_errno(e, ENOMEM, "a stage");
    g->o = *o;
    g->chunks = calloc((size_t)o->order.chunks, sizeof *g->chunks);
    int rc = open_all(g, e);
    if (rc < 0) {
        stage_close(g);
        return rc;
    }
    *ret = g;
    return 0;
}

static void close_chunk(const struct stage *g, struct chunk *c)
{
    for (int w = 0; w < WAYS; w++) {
        for (int i = 0; c->in[w].mail && i < c->in[w].n; i++)
            mail_close(&c->in[w].mail[i], g->o.device);
        free(c->in[w].mail);
    }
    if (c->plan)
        g->o.device->ops->plan_close(c->plan);
    for (int w = 0; w < WAYS; w++)
        residency_destroy(c->needs[w]);
}

/* Nothing is on its way, and nothing that is enqueued reads or writes a message any more. */
static void settle_all(struct stage *g)
{
    for (int w = 0; w < WAYS; w++) {
        for (int i = 0; i < AHEAD; i++)
            mail_settle(&g->out[w][i]);
        for (int k = 0; g->chunks && k < g->o.order.chunks; k++)
            for (int i = 0; g->chunks[k].in[w].mail && i < g->chunks[k].in[w].n; i++)
                mail_settle(&g->chunks[k].in[w].mail[i]);
        lane_close(&g->from[w]);
        lane_close(&g->to[w]);
    }
    if (g->o.device->ops->async)
        (void)g->o.device->ops->sync(g->o.device, NULL);
}

void stage_close(struct stage *g)
{
    if (!g)
        return;
    settle_all(g);
    for (int w = 0; w < WAYS; w++)
        for (int i = 0; i < AHEAD; i++)
            mail_close(&g->out[w][i], g->o.device);
    for (int k = 0; g->chunks && k < g->o.order.chunks; k++)
        close_chunk(g, &g->chunks[k]);
    free(g->chunks);
    free(g->asks);
    free(g->rows);
    free(g);
}
