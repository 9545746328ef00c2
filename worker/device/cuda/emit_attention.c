/* Attention: cuDNN's graphs where it has them (halves, head sizes in eights), own kernels elsewhere. Forward keeps the
 * logarithms of the sums; backward makes the scores again from them. */
#include <errno.h>
#include <math.h>

#include "worker/device/cuda/plan.h"

enum { GRAPH_HEAD_STEP = 8, TILE = 64, REPEATS_FREELY = 92500 /* cuDNN, from then on without a large workspace */ };
#define BWD_WORKSPACE ((size_t)256 << 20) /* for the scores' gradients of some samples at a time */

static struct k_attention attention_of(const struct cuda_plan *pl, const struct op *op, enum dtype type)
{
    const struct view4 x = cuda_plan_view(pl, op->in[0]);
    const int d = x.c / (op->heads + 2 * op->kv_heads);
    return (struct k_attention){.n = x.n,
                                .t = x.h * x.w,
                                .heads = op->heads,
                                .kv_heads = op->kv_heads,
                                .d = d,
                                .scale = (float)(1 / sqrt((double)d)),
                                .causal = op->causal,
                                .type = type};
}

static struct cudnn_shape shape_of(const struct k_attention *a)
{
    return (struct cudnn_shape){.n = a->n,
                                .c = a->d,
                                .h = a->t,
                                .w = 1,
                                .k = a->heads,
                                .r = 1,
                                .s = 1,
                                .stride = {1, 1},
                                .type = a->type,
                                .nhwc = true,
                                .groups = a->kv_heads,
                                .causal = a->causal};
}

static enum cudnn_pattern backward_pattern(const struct cuda_plan *pl)
{
    return pl->cuda->options.fast_attention ? DNN_SDPA_BWD_FAST : DNN_SDPA_BWD;
}

/* So many samples at once that the gradients of their scores do not take too much. */
static int samples_at_once(const struct cuda_plan *pl, const struct k_attention *a)
{
    const size_t t = (size_t)(a->t + TILE - 1) / TILE * TILE, sample = (size_t)a->heads * t * t * 2;
    const size_t limit = pl->cuda->options.workspace_limit ? pl->cuda->options.workspace_limit : BWD_WORKSPACE;
    if (backward_pattern(pl) != DNN_SDPA_BWD || (pl->cuda->dnn && cudnn_version() >= REPEATS_FREELY))
        return a->n;
    const int most = sample < limit ? (int)(limit / sample) : 1, parts = (a->n + most - 1) / most;
    return (a->n + parts - 1) / parts;
}

static bool has_graph(const struct cuda_plan *pl, enum cudnn_pattern p, const struct k_attention *a, int n)
{
    struct cudnn_shape s = shape_of(a);
    struct cudnn_plan *plan;
    s.n = n;
    return n == 0 || !pl->cuda->dnn || cudnn_find(pl->cuda->dnn, p, &s, &plan, NULL) == 0;
}

/* Both passes go one way: what the forward graph leaves, the backward graph reads. */
static bool by_graph(const struct cuda_plan *pl, const struct k_attention *a)
{
    const int some = samples_at_once(pl, a);
    return a->type != DT_F32 && a->d % GRAPH_HEAD_STEP == 0 && a->d <= KERNEL_HEAD_MAX && !pl->o.keep_all &&
           pl->cuda->options.fused_patterns && has_graph(pl, DNN_SDPA, a, a->n) &&
           (!pl->o.training ||
            (has_graph(pl, backward_pattern(pl), a, some) && has_graph(pl, backward_pattern(pl), a, a->n % some)));
}

static int check_heads(const struct cuda_plan *pl, const struct op *op, const struct k_attention *a, struct err *e)
{
    if (a->d <= KERNEL_HEAD_MAX)
        return 0;
    return err_set(e, -ENOTSUP,
                   "the cuda device has no kernel for '%s' with heads of %d channels (expected at most %d)",
                   pl->p->tensors[op->out].name, a->d, KERNEL_HEAD_MAX);
}

static int graph_step(struct cuda_plan *pl, int i, enum cudnn_pattern p, const struct k_attention *a, int n,
                      struct step **ret, struct err *e)
{
    struct step *s;
    TRY(cuda_plan_step(pl, STEP_DNN, cudnn_pattern_name(p), i, &s, e));
    s->dnn.pattern = p;
    s->dnn.shape = shape_of(a);
    s->dnn.shape.n = n;
    if (pl->cuda->dnn)
        TRY(cudnn_find(pl->cuda->dnn, p, &s->dnn.shape, &s->dnn.plan, e));
    *ret = s;
    return 0;
}

int emit_attention(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct k_attention a = attention_of(pl, op, pl->types[op->out]);
    const int x = emit_as_type(pl, i, op->in[0], a.type, e),
              lse = cuda_plan_buffer(pl, (size_t)a.n * (size_t)a.heads * (size_t)a.t * sizeof(float), false, e);
    struct step *s;
    TRY(check_heads(pl, op, &a, e));
    TRY(x);
    TRY(lse);
    pl->index_buffer[i] = lse;
    if (by_graph(pl, &a)) {
        TRY(graph_step(pl, i, DNN_SDPA, &a, a.n, &s, e));
        TRY(cuda_plan_use(pl, x, 0, &s->dnn.slot[0], e));
        TRY(emit_use(pl, op->out, &s->dnn.slot[1], e));
        return cuda_plan_use(pl, lse, 0, &s->dnn.slot[2], e);
    }
    TRY(emit_kernel(pl, KERNEL_ATTENTION, op_name(op->kind), i, &s, e));
    struct k_attention *k = &s->args.as_KERNEL_ATTENTION;
    *k = a;
    TRY(cuda_plan_use(pl, x, 0, &k->x, e));
    TRY(cuda_plan_use(pl, lse, 0, &k->lse, e));
    return emit_use(pl, op->out, &k->out, e);
}

/* --- backward */

/* Buffers of a backward pass. */
struct parts {
    int x, y, dy, lse, delta, dx, sums;
};

static int use_all(struct cuda_plan *pl, struct k_attention *k, const struct parts *b, struct err *e)
{
    TRY(cuda_plan_use(pl, b->x, 0, &k->x, e));
    TRY(cuda_plan_use(pl, b->y, 0, &k->y, e));
    TRY(cuda_plan_use(pl, b->dy, 0, &k->dy, e));
    TRY(cuda_plan_use(pl, b->lse, 0, &k->lse, e));
    TRY(cuda_plan_use(pl, b->delta, 0, &k->delta, e));
    return cuda_plan_use(pl, b->dx, 0, &k->out, e);
}

static int emit_own_bwd(struct cuda_plan *pl, int i, const struct k_attention *a, const struct parts *b, struct err *e)
{
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_ATTENTION_BWD_QUERIES, "attention_bwd queries", i, &s, e));
    s->args.as_KERNEL_ATTENTION_BWD_QUERIES = *a;
    TRY(use_all(pl, &s->args.as_KERNEL_ATTENTION_BWD_QUERIES, b, e));
    TRY(emit_kernel(pl, KERNEL_ATTENTION_BWD_KEYS, "attention_bwd keys", i, &s, e));
    s->args.as_KERNEL_ATTENTION_BWD_KEYS = *a;
    return use_all(pl, &s->args.as_KERNEL_ATTENTION_BWD_KEYS, b, e);
}

/* Samples [first, first + n). */
static int emit_some(struct cuda_plan *pl, int i, const struct k_attention *a, const struct parts *b, int first, int n,
                     struct err *e)
{
    const size_t half = dtype_size(a->type), rows = (size_t)first * (size_t)a->t,
                 y = rows * (size_t)(a->heads * a->d) * half,
                 x = rows * (size_t)((a->heads + 2 * a->kv_heads) * a->d) * half,
                 stats = rows * (size_t)a->heads * sizeof(float), sums = stats * (size_t)a->d;
    struct step *s;
    TRY(graph_step(pl, i, backward_pattern(pl), a, n, &s, e));
    TRY(cuda_plan_use(pl, b->x, x, &s->dnn.slot[0], e));
    TRY(cuda_plan_use(pl, b->y, y, &s->dnn.slot[1], e));
    TRY(cuda_plan_use(pl, b->dy, y, &s->dnn.slot[2], e));
    TRY(cuda_plan_use(pl, b->lse, stats, &s->dnn.slot[3], e));
    TRY(cuda_plan_use(pl, b->delta, stats, &s->dnn.slot[4], e));
    TRY(cuda_plan_use(pl, b->dx, x, &s->dnn.slot[5], e));
    return cuda_plan_use(pl, b->sums, sums, &s->dnn.slot[6], e);
}

static int emit_graph_bwd(struct cuda_plan *pl, int i, const struct k_attention *a, struct parts *b, struct err *e)
{
    const int some = samples_at_once(pl, a);
    struct step *s;
    if (backward_pattern(pl) == DNN_SDPA_BWD_FAST) {
        const size_t bytes = (size_t)a->n * (size_t)a->t * (size_t)(a->heads * a->d) * sizeof(float);
        TRY(b->sums = cuda_plan_buffer(pl, bytes, false, e));
        TRY(cuda_plan_step(pl, STEP_FILL, "clear sums of queries", i, &s, e));
        s->n = bytes;
        s->always = true;
        TRY(cuda_plan_use(pl, b->sums, 0, &s->at, e));
    }
    for (int first = 0; first < a->n; first += some)
        TRY(emit_some(pl, i, a, b, first, a->n - first < some ? a->n - first : some, e));
    return 0;
}

int emit_attention_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i], *f = &pl->p->ops[op->fwd];
    const struct k_attention a = attention_of(pl, op, pl->types[op->out]);
    if (pl->index_buffer[op->fwd] == NO_BUFFER)
        return err_set(e, -ENOTSUP, "the slice holds the backward of an attention, but not its forward operation");
    struct parts b = {.x = emit_as_type(pl, i, op->in[0], a.type, e),
                      .y = emit_as_type(pl, i, f->out, a.type, e),
                      .dy = emit_as_type(pl, i, op->in[1], a.type, e),
                      .lse = pl->index_buffer[op->fwd],
                      .delta =
                          cuda_plan_buffer(pl, (size_t)a.n * (size_t)a.heads * (size_t)a.t * sizeof(float), false, e),
                      .dx = cuda_plan_value(pl, op->out, e),
                      .sums = NO_BUFFER};
    TRY(b.x);
    TRY(b.y);
    TRY(b.dy);
    TRY(b.delta);
    TRY(b.dx);
    return by_graph(pl, &a) ? emit_graph_bwd(pl, i, &a, &b, e) : emit_own_bwd(pl, i, &a, &b, e);
}
