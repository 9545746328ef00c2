#include "worker/parallel/stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/mail.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/residency.h"
#include "worker/program/program.h"

enum { FORWARD, BACKWARD, WAYS };
enum { AHEAD = STAGE_MESSAGES_OUT }; /* messages of a way that have memory of their own */

static const enum comm_channel channels[WAYS] = {[FORWARD] = COMM_STATISTICS, [BACKWARD] = COMM_GRADIENTS};

/* What comes in for a chunk, either way: micro-batch m at m % n. */
struct inbox {
    struct mail *mail;
    int n;
    int open; /* micro-batches below: their memory may be used again */
    size_t bytes;
};

struct chunk {
    struct plan *plan;
    struct residency *needs[WAYS]; /* of its parameters, where these come and go; else NULL */
    int sets;
    struct inbox in[WAYS];
    size_t out_bytes[WAYS];
    int holds; /* recompute: the micro-batch whose activations are there; -1: none */
};

struct stage {
    struct stage_options o;
    const struct stage_watch *watch; /* NULL: nobody */
    struct chunk *chunks;            /* (o.order.chunks) */
    struct lane from[WAYS], to[WAYS];
    struct mail out[WAYS][AHEAD];
    size_t out_most[WAYS]; /* bytes of each */
    int turn[WAYS];
    int posted[WAYS]; /* actions below: what they receive has been asked for */
    int32_t *labels;  /* of the step, where they come from another stage */
    float *weights;
    size_t rows;
};

/* --- opening */

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

static int open_chunk(struct stage *g, int k, struct err *e)
{
    const struct stage_options *o = &g->o;
    const struct program_chunk *of = &o->program->chunks[k];
    const int live = o->plan.training ? pipeline_live(&o->order, o->index, k) : 1;
    struct chunk *c = &g->chunks[k];
    struct plan_options p = o->plan;
    c->holds = -1;
    c->sets = o->recompute ? 1 : live;
    c->out_bytes[FORWARD] = bytes_of(o, of->out);
    c->out_bytes[BACKWARD] = o->plan.training ? bytes_of(o, of->d_in) : 0;
    p.chunk = of;
    p.sets = c->sets;
    p.first_op = p.end_op = 0;
    for (int w = 0; w < WAYS; w++)
        g->out_most[w] = c->out_bytes[w] > g->out_most[w] ? c->out_bytes[w] : g->out_most[w];
    TRY(open_inbox(g, &c->in[FORWARD], o->recompute ? live + 1 : AHEAD, bytes_of(o, of->in), e));
    TRY(open_inbox(g, &c->in[BACKWARD], AHEAD, o->plan.training ? bytes_of(o, of->d_out) : 0, e));
    TRY(open_needs(g, c, &p, e));
    return o->device->ops->plan(o->device, o->program, &p, &c->plan, e);
}

static int open_all(struct stage *g, struct err *e)
{
    const struct stage_options *o = &g->o;
    if (!g->chunks)
        return err_errno(e, ENOMEM, "a stage of %d chunks", o->order.chunks);
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
    free(g->labels);
    free(g->weights);
    free(g);
}

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

static int hand_on(const struct stage *g, const void *data, size_t bytes, struct err *e)
{
    struct comm *c = g->o.comm;
    return c->ops->send(c, channel_of_labels(g), data, bytes, g->o.index + 1, NULL, e);
}

static int take_rows(struct stage *g, size_t n, struct err *e)
{
    struct comm *c = g->o.comm;
    if (g->rows < n) {
        free(g->labels);
        free(g->weights);
        g->labels = malloc(n * sizeof *g->labels);
        g->weights = malloc(n * sizeof *g->weights);
        g->rows = g->labels && g->weights ? n : 0;
    }
    if (g->rows < n)
        return err_errno(e, ENOMEM, "labels of %zu samples", n);
    const enum comm_channel ch = channel_of_labels(g);
    TRY(comm_recv(c, ch, g->labels, n * sizeof *g->labels, g->o.index - 1, NULL, e));
    return comm_recv(c, ch, g->weights, n * sizeof *g->weights, g->o.index - 1, NULL, e);
}

int stage_share_batch(struct stage *g, struct batch *b, size_t n, struct err *e)
{
    if (g->o.index > 0) {
        TRY(take_rows(g, n, e));
        *b = (struct batch){.labels = g->labels, .weights = g->weights};
    }
    if (g->o.index == g->o.order.stages - 1)
        return 0;
    TRY(hand_on(g, b->labels, n * sizeof *b->labels, e));
    return hand_on(g, b->weights, n * sizeof *b->weights, e);
}

/* --- messages */

static int way_of(const struct pipeline_action *a)
{
    return a->backward ? BACKWARD : FORWARD;
}

static struct mail *mail_of(const struct stage *g, const struct pipeline_action *a)
{
    struct inbox *b = &g->chunks[a->chunk].in[way_of(a)];
    return &b->mail[a->micro_batch % b->n];
}

static int ask_for(struct stage *g, const struct pipeline_action *a, struct err *e)
{
    return mail_ask(&g->from[way_of(a)], mail_of(g, a), g->chunks[a->chunk].in[way_of(a)].bytes, e);
}

/* Begin to receive what the next actions need, as far as there is memory, in the order in which it is sent. */
static int ask_ahead(struct stage *g, int way, struct err *e)
{
    for (int *i = &g->posted[way]; *i < pipeline_actions(&g->o.order); ++*i) {
        const struct pipeline_action a = pipeline_action(&g->o.order, g->o.index, *i);
        const struct inbox *b = &g->chunks[a.chunk].in[way];
        if (way_of(&a) != way || a.from < 0)
            continue;
        if (a.micro_batch >= b->open + b->n)
            return 0;
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

/* The rows of a micro-batch. */
static struct batch rows_of(const struct stage *g, const struct batch *all, int micro_batch)
{
    const struct program *p = g->o.program;
    const size_t first = (size_t)micro_batch * (size_t)g->o.plan.batch,
                 image = (size_t)p->channels * (size_t)p->height * (size_t)p->width;
    return (struct batch){.images = all->images ? all->images + first * image : NULL,
                          .labels = all->labels + first,
                          .weights = all->weights + first,
                          .locked = all->locked};
}

struct doing {
    const struct run_args *all;
    bool training;
    struct pipeline_action a;
    const void *in;
    void *out;
};

static struct run_args args_of(const struct stage *g, const struct doing *d)
{
    const struct chunk *c = &g->chunks[d->a.chunk];
    struct run_args r = *d->all;
    r.batch = rows_of(g, &d->all->batch, d->a.micro_batch);
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
    if (g->o.recompute && c->holds != d->a.micro_batch)
        TRY(go_again(g, d, e));
    struct run_args r = args_of(g, d);
    if (each || (last && d->a.chunk == g->o.order.chunks - 1)) {
        ddp_hold_tail(g->o.ddp, !last);
        ddp_begin(g->o.ddp, true);
    }
    if (each)
        r.accumulate = false;
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

static int act(struct stage *g, struct doing *d, struct err *e)
{
    struct mail *out;
    const int64_t began = clock_ns();
    for (int w = 0; w < WAYS; w++)
        TRY(ask_ahead(g, w, e));
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
    for (int w = 0; w < WAYS; w++) {
        g->posted[w] = 0;
        for (int k = 0; k < g->o.order.chunks; k++)
            g->chunks[k].in[w].open = 0;
    }
    for (int k = 0; k < g->o.order.chunks; k++)
        g->chunks[k].holds = -1;
}

int stage_train(struct stage *g, const struct run_args *all, struct err *e)
{
    begin(g);
    for (int i = 0; i < pipeline_actions(&g->o.order); i++) {
        struct doing now = {.all = all, .training = true, .a = pipeline_action(&g->o.order, g->o.index, i)};
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

/* --- numbers */

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

static void add_plan(const struct plan *pl, struct plan_memory *to)
{
    struct plan_memory m = {0};
    if (pl->ops->plan_memory)
        pl->ops->plan_memory(pl, &m);
    to->activations += m.activations;
    to->weights += m.weights;
    to->workspace += m.workspace;
}

void stage_memory(const struct stage *g, struct plan_memory *ret)
{
    *ret = (struct plan_memory){0};
    for (int k = 0; k < g->o.order.chunks; k++) {
        add_plan(g->chunks[k].plan, ret);
        for (int w = 0; w < WAYS; w++)
            ret->activations += g->chunks[k].in[w].bytes * (size_t)g->chunks[k].in[w].n;
    }
    for (int w = 0; w < WAYS; w++)
        ret->activations += AHEAD * g->out_most[w];
}

size_t stage_gathered(const struct stage *g)
{
    size_t most = 0;
    for (int k = 0; k < g->o.order.chunks; k++)
        for (int w = 0; w < WAYS; w++) {
            const struct residency *r = g->chunks[k].needs[w];
            most = r && residency_peak(r) > most ? residency_peak(r) : most;
        }
    return most;
}

const struct residency *stage_needs(const struct stage *g, int chunk, bool backward)
{
    return g->chunks[chunk].needs[backward ? BACKWARD : FORWARD];
}

size_t stage_message(const struct stage *g, int chunk, bool backward)
{
    return g->chunks[chunk].out_bytes[backward ? BACKWARD : FORWARD];
}

static void each_gather(const struct residency *r, void (*gather)(void *ctx, int piece), void *ctx)
{
    int n = 0;
    const int *pieces = r ? residency_gathers(r, &n) : NULL;
    for (int i = 0; i < n; i++)
        gather(ctx, pieces[i]);
}

void stage_each_gather(const struct stage *g, void (*gather)(void *ctx, int piece), void *ctx)
{
    const struct pipeline *p = &g->o.order;
    int holds[PROGRAM_CHUNKS_MAX];
    memset(holds, -1, sizeof holds);
    for (int i = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, g->o.index, i);
        const struct chunk *c = &g->chunks[a.chunk];
        if (!a.backward || (g->o.recompute && holds[a.chunk] != a.micro_batch))
            each_gather(c->needs[FORWARD], gather, ctx);
        if (a.backward)
            each_gather(c->needs[BACKWARD], gather, ctx);
        holds[a.chunk] = a.micro_batch;
    }
}

struct stage_traffic stage_traffic(const struct stage *g)
{
    const struct pipeline *p = &g->o.order;
    struct stage_traffic t = {0};
    for (int i = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, g->o.index, i);
        t.messages += a.to >= 0;
        t.bytes += a.to >= 0 ? (int64_t)g->chunks[a.chunk].out_bytes[way_of(&a)] : 0;
    }
    if (g->o.index < p->stages - 1) { /* labels and weights */
        t.messages += 2;
        t.bytes += (int64_t)p->micro_batches * g->o.plan.batch * (int64_t)(sizeof(int32_t) + sizeof(float));
    }
    return t;
}
