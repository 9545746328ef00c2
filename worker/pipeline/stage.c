/* A stage at work: what comes in from its neighbours, what it makes of it, what it sends on. */
#include "worker/pipeline/stage.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ddp.h"
#include "worker/pipeline/stage_impl.h"
#include "worker/program/program.h"

void stage_set_watch(struct stage *g, const struct stage_watch *w)
{
    g->watch = w;
}

/* --- labels and weights */

/* Of the host's memory, which other channels do not carry where there is a device's. */
static enum comm_channel channel_of_labels(const struct stage *g)
{
    return g->o.device->ops->async ? COMM_CONTROL : COMM_STATISTICS;
}

static int make_room(struct stage *g, size_t bytes, struct err *e)
{
    if (g->room < bytes) {
        free(g->rows);
        g->rows = malloc(bytes);
        g->room = g->rows ? bytes : 0;
    }
    return g->room < bytes ? err_errno(e, ENOMEM, "labels of samples, %zu bytes", bytes) : 0;
}

int stage_share_batch(struct stage *g, struct batch *b, size_t n, struct err *e)
{
    struct comm *c = g->o.comm;
    const enum comm_channel ch = channel_of_labels(g);
    const int index = g->o.index;
    const size_t nlabels = n * input_row_labels(&g->o.program->input),
                 mixes = g->o.plan.mixes ? n * sizeof(struct batch_mix) : 0,
                 bytes = nlabels * sizeof(int32_t) + n * (sizeof(float) + sizeof(uint32_t)) + mixes;
    TRY(make_room(g, bytes, e));
    int32_t *const labels = g->rows; /* then n weights, numbers of samples, mixes: one message for all */
    float *const weights = (float *)g->rows + nlabels;
    uint32_t *const samples = (uint32_t *)g->rows + nlabels + n;
    struct batch_mix *const mix = mixes ? (struct batch_mix *)(void *)(samples + n) : NULL;
    if (index > 0) {
        TRY(comm_recv(c, ch, g->rows, bytes, index - 1, NULL, e));
        *b = (struct batch){.labels = labels, .weights = weights, .samples = samples, .mix = mix};
    } else {
        memcpy(labels, b->labels, nlabels * sizeof *labels);
        memcpy(weights, b->weights, n * sizeof *weights);
        if (b->samples)
            memcpy(samples, b->samples, n * sizeof *samples);
        else
            memset(samples, 0xff, n * sizeof *samples); /* BATCH_PADDING */
        if (mixes && b->mix)
            memcpy(mix, b->mix, mixes);
        else if (mixes)
            memset(mix, 0, mixes);
    }
    return index < g->o.order.stages - 1 ? c->ops->send(c, ch, g->rows, bytes, index + 1, NULL, e) : 0;
}

/* --- messages */

static struct mail *mail_of(const struct stage *g, const struct pipeline_action *a)
{
    struct inbox *b = &g->chunks[a->chunk].in[way_of(a)];
    return &b->mail[a->micro_batch % b->n];
}

static int ask_for(struct stage *g, const struct pipeline_action *a, struct err *e)
{
    return mail_ask(&g->from[way_of(a)], mail_of(g, a), g->chunks[a->chunk].in[way_of(a)].bytes, e);
}

/* Begin to receive what is asked for before action `now` (pipeline.h); where the host carries messages, all that there
 * is memory for. */
static int ask_ahead(struct stage *g, int now, struct err *e)
{
    for (; g->asked < g->nasks; g->asked++) {
        const struct pipeline_ask *k = &g->asks[g->asked];
        const struct pipeline_action a = pipeline_action(&g->o.order, g->o.index, k->action);
        const struct inbox *b = &g->chunks[a.chunk].in[way_of(&a)];
        const bool fits = a.micro_batch < b->open + b->n;
        if (k->before > now && (!fits || lane_enqueues(&g->from[way_of(&a)])))
            return 0;
        assert(fits);
        TRY(ask_for(g, &a, e));
    }
    return 0;
}

/* Memory for a result; what was sent from it before has gone. NULL: the result stays here. */
static int take_out(struct stage *g, const struct pipeline_action *a, struct mail **ret, struct err *e)
{
    *ret = NULL;
    if (a->to < 0)
        return 0;
    const int way = way_of(a);
    struct mail *m = &g->out[way][g->turn[way]];
    g->turn[way] = (g->turn[way] + 1) % AHEAD;
    TRY(mail_room(&g->to[way], m, e));
    *ret = m;
    return 0;
}

static int send_out(struct stage *g, const struct pipeline_action *a, struct mail *m, struct err *e)
{
    const int way = way_of(a);
    return m ? mail_send(&g->to[way], m, g->chunks[a->chunk].out_bytes[way], e) : 0;
}

/* --- actions */

struct doing {
    const struct run_args *all;
    bool training;
    int index; /* of the action in its step */
    struct pipeline_action a;
    const void *in;
    void *out;
};

static struct run_args args_of(const struct stage *g, const struct doing *d)
{
    const struct chunk *c = &g->chunks[d->a.chunk];
    struct run_args r = *d->all;
    r.batch = batch_at(&d->all->batch, &g->o.program->input,
                       (size_t)d->a.micro_batch * (size_t)(g->o.plan.batch + g->o.plan.others));
    r.pass = d->a.backward ? RUN_BACKWARD : RUN_FORWARD;
    r.set = d->a.micro_batch % c->sets;
    r.accumulate = d->a.micro_batch > 0;
    r.boundary = (struct run_boundary){d->in, d->out};
    r.hooks = d->training ? ddp_idle_hooks(g->o.ddp) : NULL;
    return r;
}

static int run(const struct stage *g, const struct run_args *r, int chunk, struct err *e)
{
    return g->o.device->ops->run(g->chunks[chunk].plan, r, e);
}

static int go_forward(struct stage *g, const struct doing *d, struct err *e)
{
    const struct run_args r = args_of(g, d);
    g->chunks[d->a.chunk].holds = d->a.micro_batch;
    return run(g, &r, d->a.chunk, e);
}

/* Activations of this micro-batch, where others have taken their place. */
static int go_again(struct stage *g, const struct doing *d, struct err *e)
{
    struct pipeline_action a = d->a;
    struct doing f = *d;
    a.backward = false;
    f.a = a;
    f.in = mail_of(g, &a)->memory;
    f.out = NULL;
    struct run_args r = args_of(g, &f);
    r.again = true;
    g->chunks[a.chunk].holds = a.micro_batch;
    return run(g, &r, a.chunk, e);
}

/* The last micro-batch's gradients are reduced as they become final; where nobody has room for all, each one's are. */
static int go_backward(struct stage *g, const struct doing *d, struct err *e)
{
    const struct chunk *c = &g->chunks[d->a.chunk];
    const bool last = d->a.micro_batch == g->o.order.micro_batches - 1, each = ddp_each_part(g->o.ddp);
    if (g->o.recompute && c->holds != d->a.micro_batch && goes_back(g, d->a.chunk))
        TRY(go_again(g, d, e));
    struct run_args r = args_of(g, d);
    if (each || (last && d->a.chunk == g->o.order.chunks - 1)) {
        ddp_hold_tail(g->o.ddp, !last);
        ddp_begin(g->o.ddp, true);
    }
    if (each) { /* a head makes its metrics on the way back */
        r.accumulate = false;
        r.add_metrics = d->a.micro_batch > 0;
    }
    if (each || last)
        r.hooks = ddp_hooks(g->o.ddp);
    struct run_hooks walked;
    if (r.hooks && g->o.order.chunks > 1) { /* several runs reduce buckets of one step: a graph takes those of one */
        walked = *r.hooks;
        walked.on_host = true;
        r.hooks = &walked;
    }
    TRY(run(g, &r, d->a.chunk, e));
    if (!each || last)
        return 0;
    TRY(ddp_wait(g->o.ddp, e));
    return ddp_keep(g->o.ddp, d->a.micro_batch == 0, false, e);
}

/* What came in for a micro-batch that way is not needed any more. */
static int free_mail(struct stage *g, const struct pipeline_action *a, int way, struct err *e)
{
    struct inbox *in = &g->chunks[a->chunk].in[way];
    in->open = a->micro_batch + 1;
    return in->bytes && g->from[way].comm ? mail_used(&g->from[way], &in->mail[a->micro_batch % in->n], e) : 0;
}

/* That of a forward pass lives on where it will be run again. */
static int give_back(struct stage *g, const struct pipeline_action *a, struct err *e)
{
    if (a->backward)
        TRY(free_mail(g, a, BACKWARD, e));
    return a->backward == g->o.recompute ? free_mail(g, a, FORWARD, e) : 0;
}

/* While the stage before is at work there is time for what a pass begins with. */
static int prepare(const struct stage *g, const struct doing *d, struct err *e)
{
    const struct device_ops *ops = g->o.device->ops;
    return ops->prepare ? ops->prepare(g->chunks[d->a.chunk].plan, d->all->params_version, e) : 0;
}

static int act(struct stage *g, struct doing *d, struct err *e)
{
    struct mail *out;
    TRY(ask_ahead(g, d->index, e));
    if (d->a.from >= 0)
        TRY(prepare(g, d, e));
    const int64_t began = clock_ns();
    if (d->a.from >= 0) {
        struct mail *in = mail_of(g, &d->a);
        TRY(mail_await(&g->from[way_of(&d->a)], in, e));
        d->in = in->memory;
    }
    TRY(take_out(g, &d->a, &out, e));
    d->out = out ? out->memory : NULL;
    const int64_t start = clock_ns();
    TRY((d->a.backward ? go_backward : go_forward)(g, d, e));
    if (g->watch)
        g->watch->did(g->watch->ctx, &d->a, start - began, start, clock_ns());
    TRY(give_back(g, &d->a, e));
    return send_out(g, &d->a, out, e);
}

static void begin(struct stage *g)
{
    g->asked = 0;
    for (int w = 0; w < WAYS; w++)
        for (int k = 0; k < g->o.order.chunks; k++)
            g->chunks[k].in[w].open = 0;
    for (int k = 0; k < g->o.order.chunks; k++)
        g->chunks[k].holds = -1;
}

int stage_train(struct stage *g, const struct run_args *all, struct err *e)
{
    begin(g);
    for (int i = 0; i < pipeline_actions(&g->o.order); i++) {
        struct doing now = {.all = all, .training = true, .index = i, .a = pipeline_action(&g->o.order, g->o.index, i)};
        if (act(g, &now, e) < 0)
            return err_wrap(e, "stage %d, %s of micro-batch %d", g->o.index, now.a.backward ? "backward" : "forward",
                            now.a.micro_batch);
    }
    return 0;
}

int stage_evaluate(struct stage *g, const struct run_args *batch, struct err *e)
{
    const struct pipeline p = g->o.order;
    for (int k = 0; k < p.chunks; k++) {
        const int part = pipeline_part(&p, g->o.index, k);
        struct mail *out;
        struct doing d = {.all = batch,
                          .a = {.chunk = k,
                                .from = part > 0 ? (part - 1) % p.stages : -1,
                                .to = part < p.stages * p.chunks - 1 ? (part + 1) % p.stages : -1}};
        if (d.a.from >= 0) {
            TRY(ask_for(g, &d.a, e));
            TRY(mail_await(&g->from[FORWARD], mail_of(g, &d.a), e));
            d.in = mail_of(g, &d.a)->memory;
        }
        TRY(take_out(g, &d.a, &out, e));
        d.out = out ? out->memory : NULL;
        TRY(go_forward(g, &d, e));
        TRY(give_back(g, &d.a, e));
        TRY(send_out(g, &d.a, out, e));
    }
    return 0;
}

/* --- metrics */

int stage_sum_metrics(struct stage *g, float *metrics, struct err *e)
{
    static const enum metric counted[] = {METRIC_LOSS, METRIC_TOP1, METRIC_TOP5, METRIC_COUNT};
    struct device *d = g->o.device;
    const struct device_async *a = d->ops->async;
    struct comm *c = g->o.comm;
    for (size_t i = 0; i < sizeof counted / sizeof *counted && g->o.index < g->o.order.stages - 1; i++)
        TRY(a->store(d, metrics + counted[i], 0, e));
    return c->ops->all_reduce(c, COMM_STATISTICS, metrics, METRIC_N, DT_F32, COMM_SUM, a->compute(d), e);
}

int stage_share_metrics(struct stage *g, double *m, struct err *e)
{
    static const enum metric counted[] = {METRIC_LOSS, METRIC_TOP1, METRIC_TOP5, METRIC_COUNT};
    struct comm *c = g->o.comm;
    for (size_t i = 0; i < sizeof counted / sizeof *counted && g->o.index < g->o.order.stages - 1; i++)
        m[counted[i]] = 0;
    return c->ops->all_reduce(c, COMM_CONTROL, m, METRIC_N, DT_F64, COMM_SUM, NULL, e);
}
