/* Convolutions become oneDNN kernels.
 *
 * A tensor has the layout that its producer likes best; a reader is asked first for a kernel that takes it as it is,
 * and only where oneDNN has none but slow reference code is the tensor copied into another layout. Backward kernels are
 * asked for the layouts of their forward kernel first, so gradients lie as their tensors do. Where these are NHWC, a
 * product of matrices may take the place of a backward kernel (product.h). */
#include <errno.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/half.h"

/* Tensors are those of the forward op, the window is the op's own. */
static struct dnn_shape shape_of(const struct cpu_plan *pl, const struct op *op)
{
    const struct op *fwd = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct tensor *x = &pl->p->tensors[fwd->in[0]], *y = &pl->p->tensors[fwd->out];
    struct dnn_shape s = {.bias = op->param[1] >= 0,
                          .training = pl->o.training,
                          .n = pl->o.batch,
                          .c = x->c,
                          .h = x->h,
                          .w = x->w,
                          .k = y->c,
                          .oh = y->h,
                          .ow = y->w,
                          .kh = op->kh,
                          .kw = op->kw,
                          .sh = op->sh,
                          .sw = op->sw,
                          .ph = op->ph,
                          .pw = op->pw,
                          .src_type = store_type(pl->store),
                          .dst_type = store_type(pl->store)};
    return s;
}

/* The first of some pairs of layouts for which oneDNN has a fast kernel, or else the first that works at all. A
 * prescribed format is taken as it is. */
static int choose(struct cpu_plan *pl, const struct dnn_shape *s, enum dnn_dir dir, int src, int dst,
                  const struct dnn_kernel *fwd, struct dnn_kernel **ret, struct err *e)
{
    int lanes = pl->cpu->lanes;
    const int pairs[][2] = {
        {src, dst}, {LAYOUT_ANY, LAYOUT_ANY}, {lanes, lanes}, {LAYOUT_PLAIN, lanes}, {LAYOUT_PLAIN, LAYOUT_PLAIN}};
    struct dnn_kernel *slow = NULL, *k;
    struct err why = {0};
    int n = pl->o.format != MEMORY_AUTO ? 1 : (int)(sizeof(pairs) / sizeof(pairs[0])), rc = 0;
    for (int i = 0; i < n; i++) {
        rc = dnn_kernel_create(pl->cpu->dnn, s, dir, pairs[i][0], pairs[i][1], fwd, &k, &why);
        if (rc == -ENOTSUP)
            continue;
        if (rc < 0)
            break;
        if (!dnn_reference(k)) {
            dnn_kernel_destroy(slow);
            *ret = k;
            return 0;
        }
        if (slow)
            dnn_kernel_destroy(k);
        else
            slow = k;
    }
    if (!slow)
        return err_set(e, rc, "operation 'conv': %s", why.text);
    *ret = slow;
    return 0;
}

/* Kernel of the forward op at index f, made now if the slice begins behind it. */
static int forward_kernel(struct cpu_plan *pl, int f, struct dnn_kernel **ret, struct err *e)
{
    const struct op *op = &pl->p->ops[f];
    if (!pl->forward[f]) {
        struct dnn_shape s = shape_of(pl, op);
        const struct value *x = &pl->values[op->in[0]];
        int block = x->buffer == NO_BUFFER ? cpu_plan_format(pl, op->in[0]) : x->layout.b;
        if (op->out == pl->p->logits)
            s.dst_type = DT_F32;
        struct dnn_kernel *k;
        TRY(choose(pl, &s, DNN_FORWARD, block, cpu_plan_format(pl, op->out), NULL, &k, e));
        TRY(cpu_plan_kernel(pl, k, e));
        pl->forward[f] = k;
    }
    *ret = pl->forward[f];
    return 0;
}

static bool takes_product(const struct cpu_plan *pl, const struct dnn_shape *s, enum dnn_dir dir,
                          const struct dnn_kernel *fwd)
{
    return dnn_block(fwd, DNN_SRC) == s->c && dnn_block(fwd, DNN_DST) == s->k && product_pays(s, dir, pl->cpu->amx);
}

/* product: wanted, and whether it is one. */
static int backward_kernel(struct cpu_plan *pl, const struct dnn_shape *s, enum dnn_dir dir, bool *product,
                           const struct dnn_kernel *fwd, struct dnn_kernel **ret, struct err *e)
{
    struct err why = {0};
    if (*product) {
        const int rc = dnn_product_create(pl->cpu->dnn, s, dir, ret, &why);
        *product = rc == 0 && !dnn_reference(*ret);
        if (rc == 0 && !*product)
            dnn_kernel_destroy(*ret);
        if (rc < 0 && rc != -ENOTSUP)
            return err_set(e, rc, "operation 'conv': %s", why.text);
    }
    if (!*product)
        TRY(choose(pl, s, dir, dnn_block(fwd, DNN_SRC), dnn_block(fwd, DNN_DST), fwd, ret, e));
    return cpu_plan_kernel(pl, *ret, e);
}

int cpu_plan_conv_source_block(struct cpu_plan *pl, int f, struct err *e)
{
    struct dnn_kernel *k;
    TRY(forward_kernel(pl, f, &k, e));
    return dnn_block(k, DNN_SRC);
}

/* out_tensor: what the kernel writes, or -1 where another step writes it. */
static int dnn_step(struct cpu_plan *pl, int i, struct dnn_kernel *k, int src, int weights, int dst, int out_tensor,
                    const char *label, struct err *e)
{
    struct step *s;
    TRY(cpu_plan_step(pl, cpu_step_dnn, label, i, &s, e));
    s->kernel = k;
    TRY(cpu_plan_use_kernel(pl, src, k, DNN_SRC, e));
    TRY(cpu_plan_use_kernel(pl, weights, k, DNN_WEIGHTS, e));
    TRY(cpu_plan_use_kernel(pl, dst, k, DNN_DST, e));
    if (out_tensor >= 0 && store_rounds(pl->values[out_tensor].store)) {
        s->count = layout_count(&pl->values[out_tensor].layout);
        TRY(cpu_plan_use(pl, pl->values[out_tensor].buffer, &s->out, e));
    }
    return 0;
}

int cpu_plan_emit_conv(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct dnn_kernel *k;
    TRY(forward_kernel(pl, i, &k, e));
    TRY(cpu_plan_value(pl, op->in[0], dnn_block(k, DNN_SRC), e));
    int x = cpu_plan_operand(pl, i, op->in[0], dnn_block(k, DNN_SRC), e);
    TRY(x);
    TRY(cpu_plan_value(pl, op->out, dnn_block(k, DNN_DST), e));
    int w = cpu_plan_weights(pl, k, op->param[0], i, e);
    TRY(w);
    TRY(dnn_step(pl, i, k, x, w, pl->values[op->out].buffer, op->out, "conv", e));
    if (op->param[1] < 0)
        return 0;
    TRY(cpu_plan_read_param(pl, op->param[1], e));
    return dnn_bind(k, DNN_BIAS, pl->params + pl->p->params[op->param[1]].offset, e);
}

int cpu_plan_emit_conv_bwd_data(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct dnn_kernel *fwd, *k;
    TRY(forward_kernel(pl, op->fwd, &fwd, e));
    struct dnn_shape s = shape_of(pl, op);
    bool product = takes_product(pl, &s, DNN_BWD_DATA, fwd);
    TRY(backward_kernel(pl, &s, DNN_BWD_DATA, &product, fwd, &k, e));
    const bool spread = product && !product_is_whole(&s);
    TRY(cpu_plan_value(pl, op->in[0], dnn_block(k, DNN_DST), e));
    int dy = cpu_plan_operand(pl, i, op->in[0], dnn_block(k, DNN_DST), e);
    TRY(dy);
    TRY(cpu_plan_value(pl, op->out, dnn_block(k, DNN_SRC), e));
    int w = cpu_plan_weights(pl, k, op->param[0], i, e);
    TRY(w);
    const int dx = spread ? cpu_plan_buffer(pl, dnn_bytes(k, DNN_SRC), e) : pl->values[op->out].buffer;
    TRY(dx);
    TRY(dnn_step(pl, i, k, dx, w, dy, spread ? -1 : op->out, "conv_bwd_data", e));
    return spread ? cpu_plan_spread(pl, i, &s, dx, e) : 0;
}

int cpu_plan_emit_conv_bwd_param(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct dnn_kernel *fwd, *k, *set, *add;
    struct step *st;
    TRY(forward_kernel(pl, op->fwd, &fwd, e));
    struct dnn_shape s = shape_of(pl, op);
    bool product = takes_product(pl, &s, DNN_BWD_WEIGHTS, fwd);
    TRY(backward_kernel(pl, &s, DNN_BWD_WEIGHTS, &product, fwd, &k, e));
    TRY(dnn_weights_reorder_create(pl->cpu->dnn, k, true, false, &set, e));
    TRY(cpu_plan_kernel(pl, set, e));
    TRY(dnn_weights_reorder_create(pl->cpu->dnn, k, true, true, &add, e));
    TRY(cpu_plan_kernel(pl, add, e));
    TRY(cpu_plan_value(pl, op->in[0], dnn_block(k, DNN_SRC), e));
    TRY(cpu_plan_value(pl, op->in[1], dnn_block(k, DNN_DST), e));
    int x = cpu_plan_operand(pl, i, op->in[0], dnn_block(k, DNN_SRC), e);
    TRY(x);
    int dy = cpu_plan_operand(pl, i, op->in[1], dnn_block(k, DNN_DST), e);
    TRY(dy);
    if (product)
        TRY(x = cpu_plan_unfolded(pl, i, &s, x, e));
    int dw = cpu_plan_buffer(pl, dnn_bytes(k, DNN_WEIGHTS), e);
    TRY(dw);
    TRY(cpu_plan_step(pl, cpu_step_param_gradient, "conv_bwd_param", i, &st, e));
    st->kernel = k;
    st->reorder = set;
    st->reorder_add = add;
    TRY(cpu_plan_use_kernel(pl, x, k, DNN_SRC, e));
    TRY(cpu_plan_use_kernel(pl, dy, k, DNN_DST, e));
    TRY(cpu_plan_use_kernel(pl, dw, k, DNN_WEIGHTS, e));
    if (half_gradients(&pl->o, op)) {
        st->count = dnn_bytes(k, DNN_WEIGHTS) / sizeof(float);
        TRY(cpu_plan_use(pl, dw, &st->out, e));
    }
    TRY(cpu_plan_use_kernel(pl, dw, set, DNN_SRC, e));
    TRY(cpu_plan_use_kernel(pl, dw, add, DNN_SRC, e));
    float *arena = pl->reduce + pl->p->params[op->param[0]].offset;
    TRY(dnn_bind(set, DNN_DST, arena, e));
    TRY(dnn_bind(add, DNN_DST, arena, e));
    if (op->param[1] >= 0) {
        int db = cpu_plan_buffer(pl, dnn_bytes(k, DNN_BIAS), e);
        TRY(db);
        TRY(cpu_plan_use_kernel(pl, db, k, DNN_BIAS, e));
        TRY(cpu_plan_use(pl, db, &st->bias, e));
    }
    return 0;
}
