/* Predicts operations and transfers of machines that are not here from published figures. */
#include "worker/planner/hardware.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/device/fuse.h"
#include "worker/device/half.h"
#include "worker/model/model.h"
#include "worker/planner/network.h"
#include "worker/planner/op_times_impl.h"
#include "worker/planner/rank_step.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"

#define INSIDE_TRIP 5e-6 /* seconds, of a call between GPUs of a node */

enum { FITTED_SIZE = 224, FITTED_CLASSES = 1000, UPDATE_BYTES = 20 }; /* SGD: weight, gradient, moment; back two */

struct row {
    const char *name, *text;
    double fp32, half, memory;
    int sms, gpus;
    double link;
    int channels;
    double network, trip;
    enum hardware_id like;
    double rate;
    int batch;
    enum dtype dtype;
};

static const struct row rows[] = {
#define X(id, ...) [id] = {__VA_ARGS__},
#include "worker/planner/hardware.def"
#undef X
};

/* --- an operation at the peaks */

static double bytes_of(const struct op_load *l, int tensor)
{
    if (tensor < 0)
        return 0;
    const struct tensor *t = &l->program->tensors[tensor];
    return (double)l->plan->batch * t->ranks * t->c * t->h * t->w * (half_tensor(l->program, l->plan, tensor) ? 2 : 4);
}

static double flop_of(const struct op_load *l, int op)
{
    const struct op *o = &l->program->ops[op];
    const double forward = l->plan->batch * stages_cost(l->program, o->fwd >= 0 ? o->fwd : op);
    switch (o->kind) {
    case OP_ATTENTION:
        return forward;
    case OP_ATTENTION_BWD: /* four products, and that of queries and keys again */
        return 2.5 * forward;
    case OP_HEAD_BWD:
        return 2 * forward;
    default:
        return op_is_product(o->kind) ? forward : 0;
    }
}

/* Batch norm looks at its input, and backward at both of its inputs, a second time once it knows the statistics. */
static double traffic_of(const struct op_load *l, const struct fused *f, int op)
{
    const struct op *o = &l->program->ops[op], *along;
    double n = bytes_of(l, o->in[0]) + bytes_of(l, o->in[1]);
    if (f->bn >= 0)
        n = 2 * bytes_of(l, l->program->ops[f->bn].in[0]) + bytes_of(l, f->other);
    else if (o->kind == OP_BN)
        n *= 2;
    else if (o->kind == OP_BN_BWD) {
        n *= 2;
        if (f->relu_bwd >= 0) {
            along = &l->program->ops[f->relu_bwd];
            n += bytes_of(l, along->in[0]) + (f->store_dz ? bytes_of(l, along->out) : 0);
        }
        n += f->add_bwd >= 0 ? bytes_of(l, o->in[1]) : 0;
    }
    if (op_is_product(o->kind))
        n += (double)l->program->params[o->param[0]].count * (half_weight(l->program, l->plan, o->param[0]) ? 2 : 4);
    return n + bytes_of(l, o->out);
}

static double seconds_of(const struct hardware *h, const struct op_load *l, const struct fused *f, int op)
{
    const double peak = half_compute(l->plan) ? h->half : h->fp32;
    const double products = flop_of(l, op) / peak, memory = traffic_of(l, f, op) / h->memory;
    return f->skip ? 0 : (products > memory ? products : memory) / h->efficiency;
}

/* --- a program */

/* seconds: of each operation. -ENOMEM. */
static int all_seconds(const struct hardware *h, const struct op_load *l, double *seconds, struct err *e)
{
    const struct program *p = l->program;
    int *readers = calloc((size_t)p->ntensors + 1, sizeof *readers);
    struct fused *fused = calloc((size_t)p->nops + 1, sizeof *fused);
    if (readers && fused) {
        fuse_readers(p, true, readers);
        fuse_ops(p, 0, p->nops, readers, false, fused);
        for (int i = 0; i < p->nops; i++)
            seconds[i] = seconds_of(h, l, &fused[i], i);
    }
    const bool made = readers && fused;
    free(readers);
    free(fused);
    return made ? 0 : err_errno(e, ENOMEM, "times of %d operations", p->nops);
}

int hardware_times(const struct hardware *h, struct op_times *t, const struct op_load *l, struct err *e)
{
    double *seconds = calloc((size_t)l->program->nops + 1, sizeof *seconds);
    int rc = seconds ? all_seconds(h, l, seconds, e) : err_errno(e, ENOMEM, "times of operations");
    for (int i = 0; rc == 0 && i < l->program->nops; i++)
        op_times_put_op(t, l, i, seconds[i]);
    free(seconds);
    const double a_byte = 1 / (h->memory * h->efficiency);
    op_times_set(t, RANK_STEP_COPY, 2 * a_byte);
    op_times_set(t, RANK_STEP_PAGE, 0);
    op_times_set(t, RANK_STEP_UPDATE, UPDATE_BYTES * a_byte);
    return rc;
}

/* --- the efficiency */

/* Of a step of ResNet-50 on one GPU. */
static int step_seconds(const struct hardware *h, double *ret, struct err *e)
{
    const struct model_options o = {.arch = "resnet50",
                                    .classes = FITTED_CLASSES,
                                    .input = input_pictures(3, FITTED_SIZE, FITTED_SIZE, NULL, NULL)};
    const struct plan_options plan = {.batch = h->batch, .training = true, .compute = h->dtype};
    struct program *p;
    TRY(model_build(&p, &o, e));
    double *seconds = calloc((size_t)p->nops + 1, sizeof *seconds);
    int rc =
        seconds ? all_seconds(h, &(struct op_load){p, &plan}, seconds, e) : err_errno(e, ENOMEM, "times of operations");
    *ret = UPDATE_BYTES * (double)p->n_train / (h->memory * h->efficiency);
    for (int i = 0; rc == 0 && i < p->nops; i++)
        *ret += seconds[i];
    free(seconds);
    program_destroy(p);
    return rc;
}

static struct hardware at_peaks(const struct row *r)
{
    return (struct hardware){.name = r->name,
                             .text = r->text,
                             .fp32 = 1e12 * r->fp32,
                             .half = 1e12 * (r->half > 0 ? r->half : r->fp32),
                             .memory = 1e9 * r->memory,
                             .sms = r->sms,
                             .gpus = r->gpus,
                             .link = 1e9 * r->link,
                             .channels = r->channels,
                             .network = 1e9 / 8 * r->network,
                             .trip = 1e-6 * r->trip,
                             .efficiency = 1,
                             .rate = r->rate,
                             .batch = r->batch,
                             .dtype = r->dtype,
                             .fitted = r->text};
}

int hardware_gpus(enum hardware_id id)
{
    return rows[id].gpus;
}

int hardware_open(struct hardware *ret, enum hardware_id id, struct err *e)
{
    const struct hardware like = at_peaks(&rows[rows[id].like]);
    double seconds;
    TRY(step_seconds(&like, &seconds, e));
    *ret = at_peaks(&rows[id]);
    ret->efficiency = seconds * like.rate / like.batch;
    ret->rate = like.rate;
    ret->batch = like.batch;
    ret->dtype = like.dtype;
    ret->fitted = like.text;
    return 0;
}

/* --- links */

void hardware_network(const struct hardware *h, int threads, struct network *ret)
{
    const double cores = (double)threads * h->channels / h->sms;
    for (int c = 0; c < NETWORK_CALLS; c++) {
        const bool host = c == NETWORK_HAND_OVER || c == NETWORK_ASK; /* takes the GPU nothing */
        ret->inside[c] = (struct network_link){INSIDE_TRIP, 1 / (h->link * h->efficiency), cores};
        ret->between[c] = (struct network_link){h->trip, 1 / (h->network * h->efficiency), cores};
        if (host)
            ret->inside[c] = ret->between[c] = (struct network_link){0};
    }
    ret->known[0] = ret->known[1] = true;
    ret->halving = true;
}
