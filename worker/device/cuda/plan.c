/* Making a plan; plan.h says how the pieces fit. */
#include "worker/device/cuda/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "worker/device/half.h"
#include "worker/device/host_common.h"

/* Gradients are unpacked and announced in groups of neighbours, at least so many elements: a megabyte, the first bucket
 * of data parallelism. */
#define GROUP_ELEMENTS (1u << 18)

int cuda_plan_buffer(struct cuda_plan *pl, size_t bytes, bool keep, struct err *e)
{
    TRY(ARRAY_GROW(pl->buffers, pl->cap_buffers, (size_t)pl->nbuffers + 1, "buffers of a plan", e));
    pl->buffers[pl->nbuffers] =
        (struct live_buffer){.bytes = bytes, .first = -1, .last = -1, .keep = keep || pl->o.keep_all};
    return pl->nbuffers++;
}

int cuda_plan_step(struct cuda_plan *pl, enum step_kind kind, const char *label, int op, struct step **ret,
                   struct err *e)
{
    TRY(ARRAY_GROW(pl->steps, pl->cap_steps, (size_t)pl->nsteps + 1, "steps of a plan", e));
    struct step *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a step");
    s->kind = kind;
    s->label = label;
    s->op = op;
    pl->steps[pl->nsteps++] = *ret = s;
    return 0;
}

/* Pointers to be filled in later are kept as addresses of members of steps, which do not move. */
static int patch(struct cuda_plan *pl, int buffer, size_t offset, const void *pointer_to_pointer, struct err *e)
{
    TRY(ARRAY_GROW(pl->patches, pl->cap_patches, (size_t)pl->npatches + 1, "patches of a plan", e));
    pl->patches[pl->npatches++] =
        (struct patch){.buffer = buffer, .offset = offset, .pointer = (void **)(uintptr_t)pointer_to_pointer};
    return 0;
}

void cuda_plan_need_sums(struct cuda_plan *pl, size_t doubles, size_t counters)
{
    pl->partial_doubles = doubles > pl->partial_doubles ? doubles : pl->partial_doubles;
    pl->counters = counters > pl->counters ? counters : pl->counters;
}

void cuda_plan_need_partial(struct cuda_plan *pl, const struct view4 *v)
{
    cuda_plan_need_sums(pl, kernel_partial(v), kernel_counters(v));
}

int cuda_plan_use(struct cuda_plan *pl, int buffer, size_t offset, const void *pointer_to_pointer, struct err *e)
{
    if (buffer == NO_BUFFER)
        return 0;
    struct live_buffer *b = &pl->buffers[buffer];
    const int now = pl->nsteps - 1;
    b->first = b->first < 0 ? now : b->first;
    b->last = now;
    return patch(pl, buffer, offset, pointer_to_pointer, e);
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Which of its buffers a part lies in, and behind how many vectors there, and how many sums. */
struct bn_place {
    int *buffer;
    int vectors, sums;
};

static struct bn_place bn_place_of(struct bn_state *b, enum bn_part part)
{
    if (part < BN_SCALE)
        return (struct bn_place){&b->kept, (int)part, 0};
    if (part <= BN_SUMS)
        return (struct bn_place){&b->forward, (int)part - BN_SCALE, 0};
    const int behind = (int)part - BN_UNREAD_A, vectors = BN_BWD_SUMS - BN_UNREAD_A;
    return (struct bn_place){&b->backward, behind < vectors ? behind : vectors,
                             behind < vectors ? 0 : behind - vectors};
}

int cuda_plan_use_bn(struct cuda_plan *pl, int bn, enum bn_part part, const void *pointer_to_pointer, struct err *e)
{
    struct bn_state *b = &pl->bns[bn];
    const size_t vector = aligned((size_t)b->c * sizeof(float)),
                 sums = aligned((2 * (size_t)b->c + 1) * sizeof(double));
    const struct bn_place at = bn_place_of(b, part);
    if (*at.buffer == NO_BUFFER) {
        const size_t bytes = at.buffer == &b->kept      ? BN_SCALE * vector
                             : at.buffer == &b->forward ? (BN_SUMS - BN_SCALE) * vector + sums
                                                        : (BN_BWD_SUMS - BN_UNREAD_A) * vector + 2 * sums;
        TRY(*at.buffer = cuda_plan_buffer(pl, bytes, false, e));
    }
    return cuda_plan_use(pl, *at.buffer, (size_t)at.vectors * vector + (size_t)at.sums * sums, pointer_to_pointer, e);
}

/* Sums over ranks and what the loss is made of stay wide (half.h). */
static enum dtype value_type(const struct cuda_plan *pl, int t)
{
    return pl->type == DT_F32 || !half_tensor(pl->p, &pl->o, t) ? DT_F32 : pl->type;
}

struct view4 cuda_plan_view(const struct cuda_plan *pl, int t)
{
    const struct tensor *x = &pl->p->tensors[t];
    const bool image = pl->p->ops[0].kind == OP_INPUT && pl->p->ops[0].out == t;
    const bool folded = image && pl->fold.conv >= 0;
    return (struct view4){.n = pl->o.batch * x->ranks,
                          .c = image ? pl->image_channels : x->c,
                          .h = folded ? pl->fold.size[0] : x->h,
                          .w = folded ? pl->fold.size[1] : x->w,
                          .nhwc = pl->nhwc,
                          .type = pl->types[t]};
}

size_t cuda_plan_elements(const struct cuda_plan *pl, int t)
{
    const struct view4 v = cuda_plan_view(pl, t);
    return (size_t)v.n * (size_t)v.c * (size_t)v.h * (size_t)v.w;
}

int cuda_plan_value(struct cuda_plan *pl, int t, struct err *e)
{
    if (pl->value[t] != NO_BUFFER)
        return pl->value[t];
    const int b = cuda_plan_buffer(pl, cuda_plan_elements(pl, t) * dtype_size(pl->types[t]), false, e);
    TRY(b);
    return pl->value[t] = b;
}

/* --- weights */

/* The form of a parameter's copy. What is no weight of a product stays fp32 and flat: batch norm, biases and such are
 * computed in it. */
static struct k_tensor form_of(const struct cuda_plan *pl, const struct op *op, int param)
{
    const struct param *q = &pl->p->params[param];
    if (!op_is_product(op->kind) || param != op->param[0])
        return (struct k_tensor){.k = (int)q->count, .c = 1, .rs = 1, .padded_c = 1, .type = DT_F32};
    const struct op *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct view4 x = cuda_plan_view(pl, f->in[0]);
    const int k = (int)q->shape[0];
    const int rs = q->ndim == 4 ? (int)(q->shape[2] * q->shape[3]) : f->each ? 1 : x.h * x.w;
    const int c = (int)(q->count / (size_t)k) / rs;
    struct k_tensor t = {
        .k = k, .c = c, .rs = rs, .padded_c = f->groups > 1 ? c : x.c, .krsc = pl->nhwc, .type = pl->product};
    if (pl->fold.conv >= 0 && f == &pl->p->ops[pl->fold.conv]) {
        const struct fold *d = &pl->fold;
        t.rs = d->filter[0] * d->filter[1];
        t.fold = (struct k_fold){
            .r = d->whole[0], .s = d->whole[1], .columns = d->filter[1], .skip_r = d->skip[0], .skip_s = d->skip[1]};
    }
    return t;
}

size_t cuda_plan_form_elements(const struct k_tensor *t)
{
    return (size_t)t->k * (size_t)t->padded_c * (size_t)t->rs;
}

/* KERNEL_PACK counts in 32 bits where it can neither copy in order nor row by row. */
static int fits_pack(const struct k_tensor *t, const char *name, struct err *e)
{
    const bool alike = (t->rs == 1 || !t->krsc) && t->c == t->padded_c && !t->fold.r;
    const bool by_rows = t->krsc && !t->fold.r && (int64_t)t->c * t->rs <= PACK_ROW_MAX;
    const size_t n = cuda_plan_form_elements(t);
    if (alike || by_rows || n <= INT32_MAX)
        return 0;
    return err_set(e, -ENOTSUP,
                   "%s has %zu elements on a GPU (expected at most %d, or rows of %d and --memory-format nhwc)", name,
                   n, INT32_MAX, PACK_ROW_MAX);
}

static int copy_as(struct cuda_plan *pl, int op, int param, struct k_tensor form, struct err *e)
{
    struct weight *w = &pl->weights[param];
    TRY(fits_pack(&form, pl->p->params[param].name, e));
    if (pl->o.needs)
        return reads_copy(pl, op, param, &form, e);
    w->form = form;
    const int b = cuda_plan_buffer(pl, cuda_plan_form_elements(&w->form) * dtype_size(w->form.type), true, e);
    TRY(b);
    return w->copy = b;
}

int cuda_plan_weight_copy(struct cuda_plan *pl, int op, int param, struct err *e)
{
    return pl->weights[param].copy != NO_BUFFER ? pl->weights[param].copy
                                                : copy_as(pl, op, param, form_of(pl, &pl->p->ops[op], param), e);
}

int cuda_plan_vector_copy(struct cuda_plan *pl, int op, int param, enum dtype type, struct err *e)
{
    struct k_tensor form = form_of(pl, &pl->p->ops[op], param);
    form.type = type;
    return pl->weights[param].copy != NO_BUFFER ? pl->weights[param].copy : copy_as(pl, op, param, form, e);
}

int cuda_plan_weight_gradient(struct cuda_plan *pl, int op, int param, enum dtype type, struct err *e)
{
    struct weight *w = &pl->weights[param];
    struct k_tensor form = form_of(pl, &pl->p->ops[op], param);
    form.type = type;
    const int b = cuda_plan_buffer(pl, cuda_plan_form_elements(&form) * dtype_size(type), false, e);
    TRY(b);
    w->gradient_form = form;
    return w->gradient = b;
}

/* The gradients that are pending: the table's next entries. */
static int add_entries(struct cuda_plan *pl, struct err *e)
{
    for (int i = 0; i < pl->npending; i++) {
        const int param = pl->pending[i];
        const struct weight *w = &pl->weights[param];
        if (w->gradient == NO_BUFFER) /* it is in the arena */
            continue;
        TRY(ARRAY_GROW(pl->host_table, pl->cap_table, (size_t)pl->ntable + 1, "gradients of a plan", e));
        pl->host_table[pl->ntable] = w->gradient_form;
        pl->host_table[pl->ntable].arena = pl->reduce + pl->p->params[param].offset;
        pl->host_table[pl->ntable].copy = (void *)(intptr_t)w->gradient; /* a buffer's number until cuda_plan_place() */
        pl->ntable++;
    }
    return 0;
}

int cuda_plan_flush(struct cuda_plan *pl, int op, struct err *e)
{
    struct step *s;
    if (pl->npending == 0)
        return 0;
    TRY(cuda_plan_step(pl, STEP_KERNEL, "unpack gradients", op, &s, e));
    s->kernel = KERNEL_UNPACK;
    s->table_at = pl->ntable;
    TRY(add_entries(pl, e));
    s->entries = pl->ntable - s->table_at;
    pl->unpacks = pl->nsteps - 1;
    TRY(cuda_plan_step(pl, STEP_READY, "ready", op, &s, e));
    s->first = pl->pending_first;
    s->end = pl->pending_end;
    pl->npending = 0;
    return 0;
}

int cuda_plan_gradients_ready(struct cuda_plan *pl, int op, struct err *e)
{
    const struct op *o = &pl->p->ops[op];
    struct plan_range r;
    if (program_gradients(pl->p, o, &r)) {
        pl->pending_first = pl->npending ? pl->pending_first : r.first;
        pl->pending_end = r.end;
        for (int k = 0; k < 2 && o->param[k] >= 0; k++)
            pl->pending[pl->npending++] = o->param[k];
    }
    return pl->npending > 0 && pl->pending_end - pl->pending_first >= GROUP_ELEMENTS ? cuda_plan_flush(pl, op, e) : 0;
}

/* --- creating */

static int allocate_tables(struct cuda_plan *pl, struct err *e)
{
    const size_t nops = (size_t)pl->p->nops, nt = (size_t)pl->p->ntensors, np = (size_t)pl->p->nparams;
    pl->fused = calloc(nops + 1, sizeof *pl->fused);
    pl->readers = calloc(nt + 1, sizeof *pl->readers);
    pl->value = calloc(nt + 1, sizeof *pl->value);
    pl->operand = calloc(nt + 1, sizeof *pl->operand);
    pl->types = calloc(nt + 1, sizeof *pl->types);
    pl->bns = calloc(nops + 1, sizeof *pl->bns);
    pl->index_buffer = calloc(nops + 1, sizeof *pl->index_buffer);
    pl->weights = calloc(np + 1, sizeof *pl->weights);
    pl->pending = calloc(np + 1, sizeof *pl->pending);
    pl->variants = calloc((size_t)cuda_plan_variants(pl), sizeof *pl->variants);
    if (!pl->fused || !pl->readers || !pl->value || !pl->operand || !pl->types || !pl->bns || !pl->index_buffer ||
        !pl->weights || !pl->pending || !pl->variants)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    for (size_t t = 0; t < nt; t++)
        pl->value[t] = pl->operand[t] = NO_BUFFER;
    for (size_t t = 0; t < nt; t++)
        pl->types[t] = value_type(pl, (int)t);
    for (size_t i = 0; i < nops; i++) {
        pl->index_buffer[i] = NO_BUFFER;
        pl->bns[i] =
            (struct bn_state){.params = NO_BUFFER, .kept = NO_BUFFER, .forward = NO_BUFFER, .backward = NO_BUFFER};
    }
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (pl->p->ops[i].kind == OP_BN)
            pl->bns[i].c = pl->p->tensors[pl->p->ops[i].in[0]].c;
    for (size_t i = 0; i < np; i++)
        pl->weights[i].copy = pl->weights[i].gradient = NO_BUFFER;
    return 0;
}

static void keep_results(struct cuda_plan *pl)
{
    for (int t = 0; t < pl->p->ntensors; t++)
        if (pl->value[t] != NO_BUFFER && fuse_outlives(pl->p, pl->first_op, pl->end_op, pl->readers, t))
            pl->buffers[pl->value[t]].keep = true;
}

/* Has the program ops that want the channels of a position side by side? */
static bool works_by_positions(const struct program *p)
{
    for (int i = 0; i < p->nops; i++)
        if (op_is(p->ops[i].kind, OP_OF_POSITIONS) || p->ops[i].groups > 1 || p->ops[i].each)
            return true;
    return false;
}

static bool has_links(const struct program *p)
{
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].kind == OP_ACT || p->ops[i].kind == OP_ACT_BWD || p->ops[i].kind == OP_MUL)
            return true;
    return false;
}

/* Zeros among the channels of images are for who multiplies them with weights. */
static bool pads_images(const struct cuda_plan *pl)
{
    for (int i = 1; i < pl->p->nops && pl->p->ops[0].kind == OP_INPUT; i++) {
        const struct op *op = &pl->p->ops[i];
        const bool reads = op->in[0] == pl->p->ops[0].out || op->in[1] == pl->p->ops[0].out;
        if (reads && (op_is(op->kind, OP_OF_POSITIONS) || op->groups > 1 || emit_is_chained(pl, op->kind)))
            return false;
    }
    return true;
}

/* Convolutions want channels in groups (padded with zeros): 4 halves, 8 bfloats (decision 0007). */
static int channels_of_input(const struct cuda_plan *pl)
{
    const int c = pl->p->input.channels, group = !pl->nhwc || !pads_images(pl) ? 1 : pl->product == DT_BF16 ? 8 : 4;
    return pl->fold.conv >= 0 ? FOLD_PIXEL : (c + group - 1) / group * group;
}

/* For tensor cores' halves, where one plan has the images and their convolution; KERNEL_INPUT counts in 32 bits. */
static struct fold find_fold(const struct cuda_plan *pl)
{
    const struct fold none = {.conv = -1}, f = fold_find(pl->p);
    const struct program_chunk *c = pl->o.chunk;
    if (f.conv < 0 || pl->p->ops[f.conv].groups > 1 || pl->product == DT_F32 || !pl->nhwc ||
        (c && (c->first > 0 || c->end <= f.conv)))
        return none;
    return 2.0 * pl->o.batch * f.size[0] * f.size[1] < INT32_MAX ? f : none;
}

/* Metrics are sums of what follows; what the step sets later starts at 0. */
int cuda_plan_emit_clear(struct cuda_plan *pl, struct err *e)
{
    struct step *s;
    if (!pl->reduce)
        return 0;
    TRY(cuda_plan_step(pl, STEP_FILL, "clear metrics", pl->first_op, &s, e));
    s->at = pl->reduce + pl->p->n_train + pl->p->n_stats;
    s->n = METRIC_N * sizeof(float);
    return 0;
}

/* O1: a gradient of what a product wrote is a half, too, whoever computes it. */
static int emit_round(struct cuda_plan *pl, int i, struct err *e)
{
    const int t = pl->p->ops[i].out;
    struct step *s;
    if (t < 0 || pl->value[t] == NO_BUFFER || pl->type == pl->product || !half_tensor(pl->p, &pl->o, t))
        return 0;
    TRY(cuda_plan_step(pl, STEP_KERNEL, "round", i, &s, e));
    s->kernel = KERNEL_ROUND;
    s->args.as_KERNEL_ROUND = (struct k_round){.n = cuda_plan_elements(pl, t), .to = pl->product};
    return cuda_plan_use(pl, pl->value[t], 0, &s->args.as_KERNEL_ROUND.x, e);
}

static int emit(struct cuda_plan *pl, int i, struct err *e)
{
    TRY(emit_op(pl, i, e));
    const enum op_kind k = pl->p->ops[i].kind;
    return op_is_product(k) || emit_is_chained(pl, k) ? 0 : emit_round(pl, i, e); /* those round themselves */
}

int cuda_plan_emit(struct cuda_plan *pl, int first, int end, struct err *e)
{
    for (int i = first; i < end; i++)
        if (!pl->fused[i].skip)
            TRY(emit(pl, i, e));
    TRY(cuda_plan_flush(pl, end - 1, e));
    return 0;
}

/* Which ops ride along with others: of a chunk in each pass by itself, and ops of other chunks are nobody's. */
static void fuse_all(struct cuda_plan *pl)
{
    const struct host_ops *ops = &pl->ops;
    fuse_readers(pl->p, pl->o.training, pl->readers);
    fuse_ops(pl->p, pl->first_op, pl->end_op, pl->readers, pl->o.keep_all, pl->fused);
    if (!pl->o.chunk)
        return;
    fuse_ops(pl->p, pl->first_op, pl->end_op, pl->readers, true, pl->fused);
    for (int i = ops->end; i < ops->first_back; i++)
        pl->fused[i].skip = true;
    fuse_ops(pl->p, ops->first, ops->end, pl->readers, pl->o.keep_all, pl->fused);
    fuse_ops(pl->p, ops->first_back, ops->end_back, pl->readers, pl->o.keep_all, pl->fused);
}

/* Of what other fusions have left. */
static void chain_all(struct cuda_plan *pl)
{
    const struct host_ops *ops = &pl->ops;
    if (!pl->chains || pl->o.keep_all)
        return;
    fuse_chains(pl->p, &pl->o, ops->first, ops->end, pl->readers, pl->fused);
    if (pl->o.chunk && pl->o.training)
        fuse_chains(pl->p, &pl->o, ops->first_back, ops->end_back, pl->readers, pl->fused);
    emit_part_chains(pl);
}

static int emit_all(struct cuda_plan *pl, struct err *e)
{
    if (pl->o.chunk)
        return chunk_emit(pl, e);
    TRY(cuda_plan_emit_clear(pl, e));
    TRY(cuda_plan_emit(pl, pl->first_op, pl->end_op, e));
    pl->spans[RUN_BOTH].end = pl->nsteps;
    keep_results(pl);
    return 0;
}

static int build(struct cuda_plan *pl, struct err *e)
{
    TRY(allocate_tables(pl, e));
    fuse_all(pl);
    TRY(ladder_climb(pl, e));
    chain_all(pl);
    TRY(cuda_plan_fixed(pl, e));
    TRY(emit_all(pl, e));
    for (int i = 0; i < pl->p->nparams; i++) /* a rank that is alone unpacks them with the last group */
        if (pl->weights[i].gradient != NO_BUFFER)
            pl->buffers[pl->weights[i].gradient].last = pl->unpacks;
    return cuda_plan_place(pl, e);
}

static int check_type(const struct plan_options *o, struct err *e)
{
    const bool half = half_compute(o);
    if (half && o->half_bn)
        return err_set(e, -ENOTSUP, "the cuda device keeps batch norm in fp32 (--keep-batchnorm-fp32 True)");
    if (o->compute == DT_F32 || (half && !o->emulate))
        return 0;
    return err_set(e, -ENOTSUP, "the cuda device computes in F32, F16 or BF16, not in %s%s",
                   o->emulate ? "emulated " : "", dtype_name(o->compute));
}

/* Is some of what op reads frozen, in a way that the kernels of its kind do not know? Those of convolutions and linear
 * layers have all gradients of an operation or none, all others have all. */
static bool freezes_badly(const struct program *p, const struct op *op)
{
    const int a = op->param[0], b = op->param[1];
    const bool one = a >= 0 && p->params[a].frozen, other = b >= 0 && p->params[b].frozen;
    if (op_is(op->kind, OP_OF_POSITIONS) || op->groups > 1 || op->each)
        return one || other;
    return op->fixed || (a >= 0 && b >= 0 && one != other);
}

static int check_ops(const struct cuda_plan *pl, struct err *e)
{
    for (int i = pl->first_op; i < pl->end_op; i++) {
        const struct op *op = &pl->p->ops[i], *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
        if (freezes_badly(pl->p, f))
            return err_set(e, -ENOTSUP,
                           "the cuda device freezes whole convolutions and linear layers, and no other operation, but "
                           "'%s' (%s) has frozen parameters: use --device cpu, or other patterns for --lr-mul",
                           pl->p->tensors[f->out].name, op_name(f->kind));
    }
    return 0;
}

static int plan_once(struct cuda_plan *pl, struct cuda *c, const struct program *p, const struct plan_options *o,
                     enum seams_allowed allowed, struct err *e)
{
    pl->allowed = allowed;
    pl->base.ops = c->base.ops;
    pl->cuda = c;
    pl->p = p;
    pl->o = *o;
    pl->params = o->params;
    pl->stats = o->stats;
    pl->reduce = o->reduce;
    pl->unpacks = -1;
    pl->product = o->compute;
    pl->type = half_compute(o) && o->half == HALF_OPERANDS ? DT_F32 : o->compute;
    pl->nhwc = o->format != MEMORY_NCHW || works_by_positions(p);
    pl->chains = works_by_positions(p) || has_links(p);
    pl->fold = find_fold(pl);
    pl->image_channels = channels_of_input(pl);
    TRY(host_plan_ops(p, o, &pl->ops, e));
    pl->first_op = pl->ops.first;
    pl->end_op = o->chunk && o->training ? pl->ops.end_back : pl->ops.end;
    TRY(check_type(o, e));
    TRY(check_ops(pl, e));
    return build(pl, e);
}

/* One plan as s->next says. *ret NULL: it is to be made once more. */
static int plan_next(struct cuda *c, const struct program *p, const struct plan_options *o, struct seams *s,
                     struct cuda_plan **ret, struct err *e)
{
    struct cuda_plan *pl = calloc(1, sizeof *pl);
    bool again = false;
    if (!pl)
        return err_set(e, -ENOMEM, "no memory for a plan");
    int rc = plan_once(pl, c, p, o, s->next, e);
    if (rc == 0)
        rc = seams_look(s, pl, &again, e);
    else if (pl->fell) /* each time from another fused graph, so this ends */
        again = true;
    else if (rc == -ENOMEM && s->next != SEAMS_ALL) { /* less fused takes more */
        seams_give_up(s);
        again = true;
    }
    if (rc == 0 && !again) {
        tune_tell(pl);
        *ret = pl;
        return 0;
    }
    cuda_plan_close(&pl->base);
    return again ? 0 : rc;
}

int cuda_plan_create(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                     struct err *e)
{
    struct cuda_plan *pl = NULL;
    struct seams s = {0};
    int rc = 0;
    while (rc == 0 && !pl)
        rc = plan_next((struct cuda *)d, p, o, &s, &pl, e);
    seams_finish(&s);
    if (rc == 0)
        *ret = &pl->base;
    return rc;
}

void cuda_plan_close(struct plan *plan)
{
    struct cuda_plan *pl = (struct cuda_plan *)plan;
    if (!pl)
        return;
    cuda_plan_release(pl);
    for (int i = 0; i < pl->nsteps; i++)
        free(pl->steps[i]);
    free(pl->steps);
    free(pl->patches);
    free(pl->buffers);
    free(pl->host_table);
    free(pl->fused);
    free(pl->rungs);
    free(pl->readers);
    free(pl->value);
    free(pl->operand);
    free(pl->types);
    free(pl->bns);
    free(pl->index_buffer);
    free(pl->weights);
    free(pl->pending);
    free(pl->of_set);
    free(pl->reads);
    free(pl->copies);
    free(pl->variants);
    free(pl);
}
