/* Names the slots of a graph, and the convolution or product that it is about. */
#include "worker/device/cuda/graph.h"

enum { LARGEST = 1 << 24 };

static const enum role roles[DNN_PATTERN_COUNT][DNN_SLOTS_MAX] = {
    [DNN_CONV] = {ROLE_X, ROLE_FILTER, ROLE_Y},
    [DNN_CONV_STATS] = {ROLE_X, ROLE_FILTER, ROLE_Y, ROLE_SUM, ROLE_SQUARES},
    [DNN_SBR_CONV_STATS] = {ROLE_X, ROLE_SCALE, ROLE_SHIFT, ROLE_FILTER, ROLE_Y, ROLE_SUM, ROLE_SQUARES},
    [DNN_DGRAD] = {ROLE_Y, ROLE_FILTER, ROLE_X},
    [DNN_WGRAD] = {ROLE_X, ROLE_Y, ROLE_FILTER},
    [DNN_SBR_WGRAD] = {ROLE_X, ROLE_SCALE, ROLE_SHIFT, ROLE_Y, ROLE_FILTER},
    [DNN_DGRAD_DRELU_BN] = {ROLE_Y, ROLE_FILTER, ROLE_BEFORE, ROLE_MEAN, ROLE_INVSTD, ROLE_GAMMA, ROLE_BETA, ROLE_X,
                            ROLE_DSCALE, ROLE_DBIAS, ROLE_UNREAD, ROLE_UNREAD, ROLE_UNREAD},
    [DNN_PRODUCT] = {ROLE_X, ROLE_FILTER, ROLE_Y},
    [DNN_PRODUCT_DATA] = {ROLE_Y, ROLE_FILTER, ROLE_X},
    [DNN_PRODUCT_WEIGHT] = {ROLE_Y, ROLE_X, ROLE_FILTER},
    [DNN_SDPA] = {ROLE_QKV, ROLE_HEADS, ROLE_LSE},
    [DNN_SDPA_BWD] = {ROLE_QKV, ROLE_HEADS, ROLE_DHEADS, ROLE_LSE, ROLE_DELTA, ROLE_DQKV},
    [DNN_SDPA_BWD_FAST] = {ROLE_QKV, ROLE_HEADS, ROLE_DHEADS, ROLE_LSE, ROLE_DELTA, ROLE_DQKV, ROLE_DSUMS}};

enum role graph_role(enum cudnn_pattern p, int slot)
{
    return slot < DNN_SLOTS_MAX ? roles[p][slot] : ROLE_NONE;
}

int graph_slot(enum cudnn_pattern p, enum role r)
{
    for (int i = 0; i < DNN_SLOTS_MAX && roles[p][i]; i++)
        if (roles[p][i] == r)
            return i;
    return -1;
}

void *graph_at(const struct gpu_dnn *d, enum role r)
{
    const int i = graph_slot(d->pattern, r);
    return i < 0 ? NULL : d->slot[i];
}

bool graph_of_gemm(const struct gpu_gemm *m, struct gpu_dnn *ret)
{
    const enum cudnn_pattern p = m->trans_a ? DNN_PRODUCT_WEIGHT : m->trans_b ? DNN_PRODUCT : DNN_PRODUCT_DATA;
    const int64_t n = p == DNN_PRODUCT_WEIGHT ? m->k : m->m, c = p == DNN_PRODUCT ? m->k : m->n,
                  k = p == DNN_PRODUCT          ? m->n
                      : p == DNN_PRODUCT_WEIGHT ? m->m
                                                : m->k;
    if ((m->trans_a && m->trans_b) || m->alpha != 1 || m->epilogue != GEMM_PLAIN || m->a_row || m->c_row ||
        n >= LARGEST || c >= LARGEST || k >= LARGEST)
        return false;
    *ret = (struct gpu_dnn){.pattern = p,
                            .shape = {.n = (int)n,
                                      .c = (int)c,
                                      .h = 1,
                                      .w = 1,
                                      .k = (int)k,
                                      .r = 1,
                                      .s = 1,
                                      .stride = {1, 1},
                                      .type = m->in,
                                      .nhwc = true,
                                      .tf32 = m->tf32,
                                      .out = m->out,
                                      .add = m->add},
                            .plan = m->plan,
                            .slot = {(void *)(uintptr_t)m->a, (void *)(uintptr_t)m->b, m->c}};
    return true;
}

struct gpu_gemm graph_gemm(const struct gpu_dnn *d)
{
    const struct cudnn_shape *s = &d->shape;
    const bool weight = d->pattern == DNN_PRODUCT_WEIGHT, forward = d->pattern == DNN_PRODUCT;
    return (struct gpu_gemm){.in = s->type,
                             .out = s->out,
                             .tf32 = s->tf32,
                             .trans_a = weight,
                             .trans_b = forward,
                             .m = weight ? s->k : s->n,
                             .n = forward ? s->k : s->c,
                             .k = weight    ? s->n
                                  : forward ? s->c
                                            : s->k,
                             .a = d->slot[0],
                             .b = d->slot[1],
                             .c = d->slot[2],
                             .alpha = 1,
                             .add = s->add,
                             .plan = d->plan};
}

static enum product_direction direction_of(enum cudnn_pattern p)
{
    switch (p) {
    case DNN_DGRAD:
    case DNN_DGRAD_DRELU_BN:
    case DNN_PRODUCT_DATA:
        return PRODUCT_DATA;
    case DNN_WGRAD:
    case DNN_SBR_WGRAD:
    case DNN_PRODUCT_WEIGHT:
        return PRODUCT_WEIGHT;
    default:
        return PRODUCT_FORWARD;
    }
}

static const enum role result_of[] = {
    [PRODUCT_FORWARD] = ROLE_Y, [PRODUCT_DATA] = ROLE_X, [PRODUCT_WEIGHT] = ROLE_FILTER};

enum role graph_result(enum cudnn_pattern p)
{
    if (cudnn_pattern_attention(p))
        return p == DNN_SDPA ? ROLE_HEADS : ROLE_DQKV;
    return result_of[direction_of(p)];
}

bool graph_is_result(enum cudnn_pattern p, enum role r)
{
    if (cudnn_pattern_attention(p))
        return r == graph_result(p) || r == (p == DNN_SDPA ? ROLE_LSE : ROLE_DELTA) || r == ROLE_DSUMS;
    return r == graph_result(p) || r == ROLE_SUM || r == ROLE_SQUARES || r == ROLE_DSCALE || r == ROLE_DBIAS ||
           r == ROLE_UNREAD;
}

struct k_product graph_product(const struct gpu_dnn *d)
{
    const struct cudnn_shape *s = &d->shape;
    struct k_product p = {.direction = direction_of(d->pattern),
                          .n = s->n,
                          .c = s->c,
                          .h = s->h,
                          .w = s->w,
                          .k = s->k,
                          .r = s->r,
                          .s = s->s,
                          .oh = (s->h + 2 * s->pad[0] - s->r) / s->stride[0] + 1,
                          .ow = (s->w + 2 * s->pad[1] - s->s) / s->stride[1] + 1,
                          .groups = s->groups > 1 ? s->groups : 1,
                          .stride = {s->stride[0], s->stride[1]},
                          .pad = {s->pad[0], s->pad[1]},
                          .type = s->type,
                          .nhwc = s->nhwc,
                          .tf32 = s->tf32 && s->type == DT_F32,
                          .x = graph_at(d, ROLE_X),
                          .filter = graph_at(d, ROLE_FILTER),
                          .y = graph_at(d, ROLE_Y),
                          .scale = graph_at(d, ROLE_SCALE),
                          .shift = graph_at(d, ROLE_SHIFT),
                          .before = graph_at(d, ROLE_BEFORE),
                          .out = cudnn_pattern_product(d->pattern) ? s->out : s->type};
    p.mean = graph_at(d, ROLE_MEAN);
    p.invstd = graph_at(d, ROLE_INVSTD);
    p.gamma = graph_at(d, ROLE_GAMMA);
    p.beta = graph_at(d, ROLE_BETA);
    return p;
}

int64_t graph_terms(const struct k_product *p)
{
    return p->direction == PRODUCT_FORWARD ? (int64_t)(p->c / p->groups) * p->r * p->s
           : p->direction == PRODUCT_DATA  ? (int64_t)(p->k / p->groups) * p->r * p->s
                                           : (int64_t)p->n * p->oh * p->ow;
}

size_t graph_elements(const struct k_product *p, enum role r)
{
    switch (r) {
    case ROLE_X:
    case ROLE_BEFORE:
        return (size_t)p->n * (size_t)p->c * (size_t)p->h * (size_t)p->w;
    case ROLE_Y:
        return (size_t)p->n * (size_t)p->k * (size_t)p->oh * (size_t)p->ow;
    case ROLE_FILTER:
        return (size_t)p->k * (size_t)(p->c / p->groups) * (size_t)p->r * (size_t)p->s;
    case ROLE_QKV:
    case ROLE_DQKV:
        return (size_t)p->n * (size_t)p->h * (size_t)(p->k + 2 * p->groups) * (size_t)p->c;
    case ROLE_HEADS:
    case ROLE_DHEADS:
    case ROLE_DSUMS:
        return (size_t)p->n * (size_t)p->h * (size_t)p->k * (size_t)p->c;
    case ROLE_LSE:
    case ROLE_DELTA:
        return (size_t)p->n * (size_t)p->h * (size_t)p->k;
    case ROLE_SUM:
    case ROLE_SQUARES:
        return (size_t)p->k;
    default:
        return (size_t)p->c;
    }
}

enum dtype graph_type(const struct k_product *p, enum role r)
{
    if (r == result_of[p->direction])
        return p->out;
    if (r == ROLE_QKV || r == ROLE_DQKV || r == ROLE_HEADS || r == ROLE_DHEADS)
        return p->type;
    return r == ROLE_X || r == ROLE_BEFORE || r == ROLE_Y || r == ROLE_FILTER || r == ROLE_SCALE || r == ROLE_SHIFT
               ? p->type
               : DT_F32;
}

const void *graph_main_result(const struct gpu_dnn *d, size_t *ret_n, enum dtype *ret_type)
{
    const struct k_product p = graph_product(d);
    *ret_n = graph_elements(&p, graph_result(d->pattern));
    *ret_type = p.out;
    return graph_at(d, graph_result(d->pattern));
}
