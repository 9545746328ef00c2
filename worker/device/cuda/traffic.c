/* Counts the bytes and the arithmetic that a step of a plan cannot do without. */
#include "worker/device/cuda/traffic.h"

#include "worker/device/cuda/plan.h"

static double count_of(const struct view4 *v)
{
    return (double)v->n * v->c * v->h * v->w;
}

static double bytes_of(const struct view4 *v)
{
    return count_of(v) * (double)dtype_size(v->type);
}

/* Rows or columns of an input that a filter touches: one that is narrower than its stride leaves some out. */
static double touched(int size, int filter, int stride, double out)
{
    return filter < stride && out * filter < size ? out * filter : size;
}

/* Queries, keys, values and the result; backward their gradients, too, and five products for two. */
static double attention_traffic(const struct cudnn_shape *s, bool backward, struct step_traffic *t)
{
    const double size = (double)dtype_size(s->type), rows = (double)s->n * s->h,
                 x = size * rows * (s->k + 2 * s->groups) * s->c, y = size * rows * s->k * s->c;
    *t = (struct step_traffic){.read = x + (backward ? 2 * y : 0), .written = backward ? x : y};
    return (backward ? 10.0 : 4.0) * rows * s->k * s->h * s->c / (s->causal ? 2 : 1);
}

static double product_traffic(const struct gpu_dnn *d, struct step_traffic *t)
{
    const struct cudnn_shape *s = &d->shape;
    const double size = (double)dtype_size(s->type), oh = (s->h + 2 * s->pad[0] - s->r) / s->stride[0] + 1,
                 ow = (s->w + 2 * s->pad[1] - s->s) / s->stride[1] + 1;
    const double x = size * s->n * s->c * s->h * s->w, y = size * s->n * s->k * oh * ow,
                 depth = s->groups > 1 ? s->c / s->groups : s->c, w = size * s->k * depth * s->r * s->s,
                 seen =
                     size * s->n * s->c * touched(s->h, s->r, s->stride[0], oh) * touched(s->w, s->s, s->stride[1], ow);
    if (cudnn_pattern_attention(d->pattern))
        return attention_traffic(s, d->pattern != DNN_SDPA, t);
    switch (d->pattern) {
    case DNN_DGRAD:
        *t = (struct step_traffic){.read = y + w, .written = x};
        break;
    case DNN_DGRAD_DRELU_BN: /* the convolution's own input, too, for the ReLU and the sums */
        *t = (struct step_traffic){.read = y + w + x, .written = x};
        break;
    case DNN_WGRAD:
    case DNN_SBR_WGRAD:
        *t = (struct step_traffic){.read = seen + y, .written = w};
        break;
    default:
        *t = (struct step_traffic){.read = seen + w, .written = y};
        break;
    }
    return 2.0 * s->n * s->k * oh * ow * depth * s->r * s->s;
}

static void gemm_traffic(const struct gpu_gemm *m, struct step_traffic *t)
{
    const double in = (double)dtype_size(m->in), out = (double)dtype_size(m->out), rows = (double)m->m,
                 columns = (double)m->n, depth = (double)m->k;
    t->read = in * depth * (rows + columns) + (m->add ? out * rows * columns : 0);
    t->written = out * rows * columns;
    t->flop = 2 * rows * columns * depth;
}

static double one(const void *p, double bytes)
{
    return p ? bytes : 0;
}

static double gradient_bytes(const struct k_bn_gradient *g, const struct view4 *v)
{
    struct view4 dy = g->index ? g->pooled : *v;
    if (g->mean)
        dy.h = dy.w = 1;
    return bytes_of(&dy) + one(g->dy2, bytes_of(&dy)) + one(g->index, count_of(&dy)) +
           (g->mask ? (double)kernel_mask(v) : one(g->y, bytes_of(v)));
}

static void bn_traffic(const struct step *s, struct step_traffic *t)
{
    switch (s->kernel) {
    case KERNEL_BN_STATS:
        t->read = bytes_of(&s->args.as_KERNEL_BN_STATS.v);
        break;
    case KERNEL_BN_APPLY: {
        const struct k_bn_apply *a = &s->args.as_KERNEL_BN_APPLY;
        t->read = bytes_of(&a->v) + one(a->add, bytes_of(&a->v));
        t->written = bytes_of(&a->v) + one(a->mask, (double)kernel_mask(&a->v));
    } break;
    case KERNEL_BN_MEAN: {
        const struct k_bn_apply *a = &s->args.as_KERNEL_BN_MEAN.a;
        t->read = bytes_of(&a->v) + one(a->add, bytes_of(&a->v));
        t->written = bytes_of(&a->v) / (a->v.h * a->v.w) + one(a->mask, (double)kernel_mask(&a->v));
    } break;
    case KERNEL_BN_POOL: {
        const struct k_bn_pool *a = &s->args.as_KERNEL_BN_POOL;
        t->read = bytes_of(&a->x);
        t->written = bytes_of(&a->y) + one(a->index, count_of(&a->y));
    } break;
    case KERNEL_BN_BWD_SUMS: {
        const struct k_bn_bwd_sums *a = &s->args.as_KERNEL_BN_BWD_SUMS;
        const double b = bytes_of(&a->v);
        t->read = (a->x == a->g.dy ? 0 : b) + one(a->x2, b) + gradient_bytes(&a->g, &a->v);
        t->written = one(a->dz, b);
    } break;
    case KERNEL_BN_BWD_APPLY: {
        const struct k_bn_bwd_apply *a = &s->args.as_KERNEL_BN_BWD_APPLY;
        const double b = bytes_of(&a->v);
        t->read = b + one(a->twin.x, b) + gradient_bytes(&a->g, &a->v);
        t->written = b + one(a->twin.x, b);
    } break;
    default: /* a few values a channel */
        break;
    }
}

static void unpack_traffic(const struct cuda_plan *pl, const struct step *s, struct step_traffic *t)
{
    if (s != pl->steps[pl->unpacks])
        return;
    t->nodes = 1;
    for (int i = 0; i < s->table_at + s->entries; i++) {
        const struct k_tensor *x = &pl->host_table[i];
        const double n = (double)x->k * x->padded_c * x->rs;
        t->read += n * (double)dtype_size(x->type);
        t->written += n * sizeof(float);
    }
}

static void pool_traffic(const struct step *s, struct step_traffic *t)
{
    const struct k_pool *a = &s->args.as_KERNEL_MAXPOOL; /* a union: all four are alike */
    const double x = bytes_of(&a->x), y = bytes_of(&a->y) + one(a->index, count_of(&a->y));
    const bool forward = s->kernel == KERNEL_MAXPOOL || s->kernel == KERNEL_AVGPOOL;
    t->read = forward ? x : y;
    t->written = forward ? y : x;
}

static void part_traffic(const struct step *s, struct step_traffic *t)
{
    const struct k_xent_part *a = &s->args.as_KERNEL_XENT_TOP; /* a union: all are alike */
    const double n = (double)a->n * a->k;
    t->read = n * sizeof(float);
    t->written = s->kernel == KERNEL_XENT_PARTS_BWD ? n * (double)dtype_size(a->grad_type) : 0;
}

/* Logits are read once more for their gradients, from the cache. */
static void tokens_traffic(const struct step *s, struct step_traffic *t)
{
    switch (s->kernel) {
    case KERNEL_EMBED: {
        const struct k_embed *a = &s->args.as_KERNEL_EMBED;
        const double n = (double)a->rows * a->c;
        t->read = n * sizeof(float);
        t->written = n * (double)dtype_size(a->type);
    } break;
    case KERNEL_EMBED_BWD: { /* as if no token came twice */
        const struct k_embed_bwd *a = &s->args.as_KERNEL_EMBED_BWD;
        const double n = (double)a->rows * a->c;
        t->read = n * ((double)dtype_size(a->type) + sizeof(float));
        t->written = n * sizeof(float);
    } break;
    case KERNEL_ROPE: {
        const struct k_rope *a = &s->args.as_KERNEL_ROPE;
        t->read = t->written = (double)a->rows * a->heads * a->d * (double)dtype_size(a->type);
    } break;
    default: {
        const struct k_xent *a = &s->args.as_KERNEL_XENT;
        const double n = (double)a->n * a->classes;
        t->read = n * sizeof(float);
        t->written = a->dlogits ? n * (double)dtype_size(a->grad_type) : 0;
    } break;
    }
}

static void columns_traffic(const struct step *s, struct step_traffic *t)
{
    const struct k_columns *a = &s->args.as_KERNEL_SLICE;
    const double part = (double)a->rows * (double)a->part, all = (double)a->rows * (double)a->whole;
    t->read = part * (double)dtype_size(a->from);
    t->written = (s->kernel == KERNEL_PAD ? all : part) * (double)dtype_size(a->to);
}

/* What works on rows of channels. */
static void rows_traffic(const struct step *s, struct step_traffic *t)
{
    switch (s->kernel) {
    case KERNEL_ROW_NORM:
    case KERNEL_ROW_NORM_BWD: {
        const struct k_row_norm *a = &s->args.as_KERNEL_ROW_NORM;
        const double b = (double)a->rows * a->c * (double)dtype_size(a->type);
        t->read = b + (s->kernel == KERNEL_ROW_NORM ? 0 : b);
        t->written = one(a->y, b);
    } break;
    case KERNEL_CHAIN: {
        const struct k_chain *a = &s->args.as_KERNEL_CHAIN;
        const double b = (double)a->n * (double)dtype_size(a->type);
        t->read = t->written = b;
        for (int k = 0; k < a->nlinks; k++)
            t->read += one(a->links[k].with, b);
    } break;
    case KERNEL_SCALE_BWD: {
        const struct k_scale_bwd *a = &s->args.as_KERNEL_SCALE_BWD;
        t->read = 2 * bytes_of(&a->v);
        t->written = one(a->dx, bytes_of(&a->v));
    } break;
    case KERNEL_SEQUENCE: {
        const struct k_sequence *a = &s->args.as_KERNEL_SEQUENCE;
        const double position = (double)a->n * a->c * (double)dtype_size(a->type);
        t->read = position * (a->from < a->to ? a->from : a->to);
        t->written = position * a->to;
    } break;
    case KERNEL_GROUP_CONV:
    case KERNEL_GROUP_CONV_DATA:
    case KERNEL_GROUP_CONV_WEIGHT: {
        const struct k_group_conv *a = &s->args.as_KERNEL_GROUP_CONV;
        const double size = (double)dtype_size(a->type), x = size * a->n * a->c * a->h * a->w,
                     y = size * a->n * a->k * a->oh * a->ow;
        t->read = s->kernel == KERNEL_GROUP_CONV ? x : s->kernel == KERNEL_GROUP_CONV_DATA ? y : x + y;
        t->written = s->kernel == KERNEL_GROUP_CONV ? y : s->kernel == KERNEL_GROUP_CONV_DATA ? x : 0;
        t->flop_fp32 = 2.0 * a->n * a->k * a->oh * a->ow * (a->c / a->groups) * a->r * a->s;
    } break;
    case KERNEL_ATTENTION:
    case KERNEL_ATTENTION_BWD_QUERIES:
    case KERNEL_ATTENTION_BWD_KEYS: {
        const struct k_attention *a = &s->args.as_KERNEL_ATTENTION;
        const double size = (double)dtype_size(a->type), rows = (double)a->n * a->t,
                     x = size * rows * (a->heads + 2 * a->kv_heads) * a->d, y = size * rows * a->heads * a->d,
                     products = s->kernel == KERNEL_ATTENTION               ? 4
                                : s->kernel == KERNEL_ATTENTION_BWD_QUERIES ? 6
                                                                            : 8;
        t->read = x + (s->kernel == KERNEL_ATTENTION ? 0 : s->kernel == KERNEL_ATTENTION_BWD_QUERIES ? 2 * y : y);
        t->written = s->kernel == KERNEL_ATTENTION ? y : s->kernel == KERNEL_ATTENTION_BWD_QUERIES ? y : x - y;
        t->flop_fp32 = products * rows * a->heads * a->t * a->d / (a->causal ? 2 : 1);
    } break;
    default: {
        const struct k_table_gradient *a = &s->args.as_KERNEL_TABLE_GRADIENT;
        t->read = (double)a->n * a->rows * a->c * (double)dtype_size(a->type);
    } break;
    }
}

static void kernel_traffic(const struct cuda_plan *pl, const struct step *s, struct step_traffic *t)
{
    if (s->gathers)
        return;
    t->nodes = 1;
    switch (s->kernel) {
    case KERNEL_INPUT: {
        const struct k_input *a = &s->args.as_KERNEL_INPUT;
        t->read = (double)a->y.n * a->channels * (a->fold.h ? (double)a->fold.h * a->fold.w : (double)a->y.h * a->y.w);
        t->written = bytes_of(&a->y);
    } break;
    case KERNEL_ADD:
    case KERNEL_RELU_BWD: {
        const struct k_eltwise *a = &s->args.as_KERNEL_ADD;
        const double b = (double)a->n * (double)dtype_size(a->type);
        t->read = b + one(a->b, b);
        t->written = b;
    } break;
    case KERNEL_MAXPOOL:
    case KERNEL_MAXPOOL_BWD:
    case KERNEL_AVGPOOL:
    case KERNEL_AVGPOOL_BWD:
        pool_traffic(s, t);
        break;
    case KERNEL_PACK:
        for (int i = s->table_at; i < s->table_at + s->entries; i++) {
            const double n = (double)cuda_plan_form_elements(&pl->copies[i].form);
            t->read += n * sizeof(float);
            t->written += n * (double)dtype_size(pl->copies[i].form.type);
        }
        break;
    case KERNEL_UNPACK:
        t->nodes = 0;
        unpack_traffic(pl, s, t);
        break;
    case KERNEL_CONVERT: {
        const struct k_convert *a = &s->args.as_KERNEL_CONVERT;
        t->read = (double)a->n * (double)dtype_size(a->from);
        t->written = (double)a->n * (double)dtype_size(a->to);
    } break;
    case KERNEL_SLICE:
    case KERNEL_PAD:
        columns_traffic(s, t);
        break;
    case KERNEL_ROWS: {
        const struct k_rows *a = &s->args.as_KERNEL_ROWS;
        const double rows = count_of(&a->v) * (double)dtype_size(a->rows);
        t->read = a->back ? bytes_of(&a->v) : rows;
        t->written = a->back ? rows : bytes_of(&a->v);
    } break;
    case KERNEL_XENT_TOP:
    case KERNEL_XENT_SUMS:
    case KERNEL_XENT_PARTS_BWD:
        part_traffic(s, t);
        break;
    case KERNEL_EMBED:
    case KERNEL_EMBED_BWD:
    case KERNEL_ROPE:
    case KERNEL_XENT:
        tokens_traffic(s, t);
        break;
    case KERNEL_ROW_NORM:
    case KERNEL_ROW_NORM_BWD:
    case KERNEL_CHAIN:
    case KERNEL_SCALE_BWD:
    case KERNEL_SEQUENCE:
    case KERNEL_TABLE_GRADIENT:
    case KERNEL_GROUP_CONV:
    case KERNEL_GROUP_CONV_DATA:
    case KERNEL_GROUP_CONV_WEIGHT:
    case KERNEL_ATTENTION:
    case KERNEL_ATTENTION_BWD_QUERIES:
    case KERNEL_ATTENTION_BWD_KEYS:
        rows_traffic(s, t);
        break;
    case KERNEL_ROUND:
        t->read = t->written = (double)s->args.as_KERNEL_ROUND.n * sizeof(float);
        break;
    default:
        bn_traffic(s, t);
        break;
    }
}

/* Of the terms that are computed, those that are the model's: the images' channels are padded, their convolution may be
 * folded (device/fold.h). */
static double share_of_model(const struct cuda_plan *pl, const struct step *s)
{
    const struct op *op = &pl->p->ops[s->op], *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    if (pl->p->ops[0].kind != OP_INPUT || f->in[0] != pl->p->ops[0].out)
        return 1;
    const struct fold_window w = fold_window(&pl->fold, pl->p, s->op);
    return (double)pl->p->input.channels * f->kh * f->kw / ((double)pl->image_channels * w.filter[0] * w.filter[1]);
}

void cuda_step_traffic(const struct cuda_plan *pl, const struct step *s, struct step_traffic *ret)
{
    *ret = (struct step_traffic){0};
    switch (s->kind) {
    case STEP_KERNEL:
        kernel_traffic(pl, s, ret);
        break;
    case STEP_DNN: {
        const double flop = product_traffic(&s->dnn, ret);
        ret->flop = flop * share_of_model(pl, s);
        ret->nodes = 1;
    } break;
    case STEP_GEMM:
        gemm_traffic(&s->gemm, ret);
        ret->nodes = 1;
        break;
    case STEP_FILL:
        ret->written = (double)s->n;
        ret->nodes = 1;
        break;
    case STEP_GROUP: /* what travels is read once, and written once */
        ret->read = ret->written = (double)s->group.n * (double)dtype_size(s->group.type);
        ret->nodes = 1;
        break;
    case STEP_ALL_SUM:
    case STEP_READY:
        break;
    }
}
