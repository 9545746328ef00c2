/* Checks, loss and update rules that the ref and cpu devices share. */
#include "worker/device/host_common.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/err.h"
#include "worker/program/program.h"

#define REAL double
#include "worker/device/xent_parts.h"

#include "worker/device/loss_parts.h"

static bool reads_params(const struct op *op)
{
    return op->param[0] >= 0;
}

static bool writes_reduce(const struct op *op, bool training)
{
    return op_is(op->kind, OP_WRITES_METRICS) || op_writes_gradients(op->kind) ||
           (op->kind == OP_BN && training && !op->fixed);
}

static int check_group(const struct program *p, const struct plan_options *o, enum op_kind k, struct err *e)
{
    if (op_facts(k)->call && p->group > 1 && (!o->group || o->group->ranks != p->group))
        return err_set(e, -EINVAL, "operation '%s' is over a group of %d ranks, but the plan has one of %d", op_name(k),
                       p->group, o->group ? o->group->ranks : 1);
    return 0;
}

static int check_ops(const struct program *p, const struct plan_options *o, int first, int end, struct err *e)
{
    for (int i = first; i < end; i++) {
        const struct op *op = &p->ops[i];
        TRY(check_group(p, o, op->kind, e));
        if (reads_params(op) && !o->params)
            return err_set(e, -EINVAL, "operation %d (%s) has parameters, but the plan no arena", i, op_name(op->kind));
        if (writes_reduce(op, o->training) && !o->reduce)
            return err_set(e, -EINVAL, "operation %d (%s) writes sums, but the plan has no arena", i,
                           op_name(op->kind));
        if (op->kind == OP_BN && (!o->training || op->fixed) && !o->stats)
            return err_set(e, -EINVAL, "operation %d (bn) needs running statistics, but the plan has none", i);
    }
    return 0;
}

int host_plan_slice(const struct program *p, const struct plan_options *o, int *ret_first, int *ret_end, struct err *e)
{
    int limit = o->training ? p->nops : p->nfwd;
    int first = o->first_op, end = o->end_op;
    if (!first && !end)
        end = limit;
    if (first < 0 || end > limit || first >= end)
        return err_set(e, -EINVAL, "operations %d to %d of a program of %d", first, end, limit);
    if (o->batch < 1)
        return err_set(e, -EINVAL, "a plan for a batch of %d (expected at least 1)", o->batch);
    TRY(check_ops(p, o, first, end, e));
    *ret_first = first;
    *ret_end = end;
    return 0;
}

/* --- parts of a model */

int host_plan_ops(const struct program *p, const struct plan_options *o, struct host_ops *ret, struct err *e)
{
    const struct program_chunk *c = o->chunk;
    *ret = (struct host_ops){0};
    if (!c)
        return host_plan_slice(p, o, &ret->first, &ret->end, e);
    if (o->batch < 1)
        return err_set(e, -EINVAL, "a plan for a batch of %d (expected at least 1)", o->batch);
    TRY(check_ops(p, o, c->first, c->end, e));
    TRY(o->training ? check_ops(p, o, c->first_back, c->end_back, e) : 0);
    *ret = (struct host_ops){c->first, c->end, c->first_back, o->training ? c->end_back : c->first_back};
    return 0;
}

int host_boundary_in(const struct program_chunk *c, enum run_pass pass)
{
    return pass == RUN_BOTH ? -1 : pass == RUN_FORWARD ? c->in : c->d_out;
}

int host_boundary_out(const struct program_chunk *c, enum run_pass pass)
{
    return pass == RUN_BOTH ? -1 : pass == RUN_FORWARD ? c->out : c->d_in;
}

int host_run_ops(const struct host_ops *ops, const struct plan_options *o, const struct run_args *a, int *first,
                 int *end, struct err *e)
{
    const int sets = o->sets > 1 ? o->sets : 1;
    if ((o->chunk != NULL) != (a->pass != RUN_BOTH) || (a->pass == RUN_BACKWARD && !o->training))
        return err_set(e, -EINVAL, "pass %d of a plan of %s", (int)a->pass, o->chunk ? "a chunk" : "a whole program");
    if (a->set < 0 || a->set >= sets)
        return err_set(e, -EINVAL, "set %d of activations of a plan that has %d", a->set, sets);
    if (o->chunk && ((host_boundary_in(o->chunk, a->pass) >= 0 && !a->boundary.in) ||
                     (host_boundary_out(o->chunk, a->pass) >= 0 && !a->boundary.out && !a->again)))
        return err_set(e, -EINVAL, "a %s pass of a chunk without memory for its boundary",
                       a->pass == RUN_FORWARD ? "forward" : "backward");
    *first = a->pass == RUN_BACKWARD ? ops->first_back : ops->first;
    *end = a->pass == RUN_BACKWARD ? ops->end_back : ops->end;
    return 0;
}

bool host_left_to_backward(const struct program *p, const struct host_ops *ops, const struct op *head)
{
    const int i = (int)(head - p->ops);
    const bool chunk = ops->end_back > ops->first_back;
    for (int k = chunk ? ops->first_back : i; k < (chunk ? ops->end_back : ops->end); k++)
        if (p->ops[k].kind == OP_HEAD_BWD && p->ops[k].fwd == i)
            return true;
    return false;
}

static int check_labels(const struct program *p, const struct batch *b, int n, struct err *e)
{
    const size_t per = input_row_labels(&p->input), rows = (size_t)n * per;
    const int least = p->input.rows == INPUT_TOKENS ? -1 : 0;
    for (size_t r = 0; r < rows; r++)
        if (b->weights[r / per] != 0 && (b->labels[r] < least || b->labels[r] >= p->classes))
            return err_set(e, -EINVAL, "sample %zu of the batch has label %d (expected %d to %d)", r / per,
                           b->labels[r], least, p->classes - 1);
    return 0;
}

/* Of padding, too: they are read. */
static int check_tokens(const struct program *p, const struct batch *b, int n, struct err *e)
{
    const int32_t *tokens = b->rows;
    const size_t length = (size_t)p->input.length;
    for (size_t i = 0; i < (size_t)n * length; i++)
        if (tokens[i] < 0 || tokens[i] >= p->input.vocabulary)
            return err_set(e, -EINVAL, "sample %zu of the batch has token %d (expected 0 to %d)", i / length, tokens[i],
                           p->input.vocabulary - 1);
    return 0;
}

static bool is_box(const struct batch_box *b, const struct input *in)
{
    return b->x0 >= 0 && b->x0 <= b->x1 && b->x1 <= in->width && b->y0 >= 0 && b->y0 <= b->y1 && b->y1 <= in->height;
}

/* Of a row that is mixed, or is there to be. */
static int check_mix(const struct program *p, const struct plan_options *o, const struct batch *b, int row,
                     struct err *e)
{
    const struct batch_mix *m = &b->mix[row];
    const int64_t other = (int64_t)row + m->partner, rows = (int64_t)o->batch + o->others;
    const bool mixed = m->partner != 0;
    if (other < 0 || other >= rows || (mixed && !(m->keep >= 0 && m->keep <= 1)))
        return err_set(e, -EINVAL, "sample %d of the batch keeps %g of itself, and has the rest of row %lld of %lld",
                       row, (double)m->keep, (long long)other, (long long)rows);
    if (!(m->share >= 0 && m->share <= 1) || (m->share > 0 && (m->second < 0 || m->second >= p->classes)))
        return err_set(e, -EINVAL, "sample %d of the batch has %g of label %d (expected 0 to %d)", row,
                       (double)m->share, m->second, p->classes - 1);
    if (!is_box(&m->erase, &p->input) || (mixed && !is_box(&m->box, &p->input)))
        return err_set(e, -EINVAL, "sample %d of the batch has a box beyond its %d x %d pixels", row, p->input.width,
                       p->input.height);
    return 0;
}

static int check_mixes(const struct program *p, const struct plan_options *o, const struct batch *b, struct err *e)
{
    if (!o->mixes || p->input.rows == INPUT_TOKENS)
        return err_set(e, -EINVAL, "a batch that is mixed, for a plan that mixes nothing");
    for (int i = 0; i < o->batch + o->others; i++)
        TRY(check_mix(p, o, b, i, e));
    return 0;
}

int host_check_batch(const struct program *p, int first_op, int end_op, const struct plan_options *o,
                     const struct batch *b, struct err *e)
{
    const int n = o->batch;
    const bool training = o->training;
    bool rows = false, labels = false, samples = false;
    for (int i = first_op; i < end_op; i++) {
        rows |= op_is(p->ops[i].kind, OP_READS_INPUT);
        labels |= op_is(p->ops[i].kind, OP_READS_LABELS);
        samples |= training && op_is(p->ops[i].kind, OP_DRAWS);
    }
    if (!b->weights || (rows && !b->rows) || (labels && !b->labels) || (samples && !b->samples))
        return err_set(e, -EINVAL, "the batch has no %s",
                       !b->weights            ? "weights"
                       : rows && !b->rows     ? "rows"
                       : labels && !b->labels ? "labels"
                                              : "numbers of samples");
    for (int i = 0; i < n; i++)
        if (b->weights[i] != 0 && b->weights[i] != 1)
            return err_set(e, -EINVAL, "sample %d of the batch has weight %g (expected 0 or 1)", i,
                           (double)b->weights[i]);
    TRY(rows && p->input.rows == INPUT_TOKENS ? check_tokens(p, b, n, e) : 0);
    TRY(b->mix ? check_mixes(p, o, b, e) : 0);
    return labels ? check_labels(p, b, n, e) : 0;
}

struct batch batch_at(const struct batch *b, const struct input *in, size_t first)
{
    struct batch from = *b;
    from.rows = b->rows ? (const char *)b->rows + first * input_row_bytes(in) : NULL;
    from.labels = b->labels ? b->labels + first * input_row_labels(in) : NULL;
    from.weights = b->weights + first;
    from.samples = b->samples ? b->samples + first : NULL;
    from.mix = b->mix ? b->mix + first : NULL;
    return from;
}

double host_batch_count(const struct batch *b, int n)
{
    double count = 0;
    for (int i = 0; i < n; i++)
        count += (double)b->weights[i];
    return count;
}

double host_largest(const double *z, int n)
{
    double top = z[0];
    for (int j = 1; j < n; j++)
        top = z[j] > top ? z[j] : top;
    return top;
}

static void xent_of_row(const struct loss_rule *r, const double *z, int classes, struct host_target t, double smoothing,
                        double lse[LSE_N], double *metrics)
{
    const double label[LABEL_N] = {
        [LABEL_CLASS] = t.label, [LABEL_WEIGHT] = 1, [LABEL_SECOND] = t.second, [LABEL_SHARE] = t.share};
    double top[TOP_N], sums[SUMS_N];
    xent_top(z, classes, 0, label, host_largest(z, classes), top);
    xent_sums(z, classes, 0, top, sums);
    loss_sums(r, z, classes, 0, top, sums);
    loss_parts(r, sums, top, classes, smoothing, lse, metrics);
}

void host_xent(const struct loss_rule *r, const double *z, int classes, struct host_target t, double smoothing,
               double *metrics)
{
    double lse[LSE_N];
    xent_of_row(r, z, classes, t, smoothing, lse, metrics);
}

void host_xent_backward(const struct loss_rule *r, double *z, int classes, struct host_target t, double smoothing,
                        double scale)
{
    double lse[LSE_N];
    xent_of_row(r, z, classes, t, smoothing, lse, NULL);
    loss_row_gradient(r, z, classes, 0, lse, classes, smoothing, scale);
}

void host_turns(const struct program *p, const struct op *op, float *table)
{
    const struct tensor *x = &p->tensors[op->out];
    const size_t t = (size_t)x->h * (size_t)x->w, half = (size_t)(x->c / (op->heads + 2 * op->kv_heads)) / 2;
    for (size_t i = 0; i < t * half; i++) {
        const size_t j = i % half;
        const double angle = (double)(i / half) * pow(op->base, -(double)j / (double)half);
        float *row = table + i / half * 2 * half;
        row[j] = (float)cos(angle);
        row[j + half] = (float)sin(angle);
    }
}

int host_ask_room(const struct plan_options *o, size_t before, size_t bytes, struct err *e)
{
    return o->room && bytes >= HOST_LARGE ? o->room(o->room_ctx, before, bytes, e) : 0;
}

enum { HUGE_PAGE = 2 << 20 };

/* Not zeroed. */
static int take(size_t bytes, void **ret, size_t *ret_padded, struct err *e)
{
    const size_t align = bytes >= HOST_LARGE ? HUGE_PAGE : 64, padded = (bytes + align - 1) / align * align;
    void *p = padded < bytes ? NULL : aligned_alloc(align, padded ? padded : align);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for %zu bytes", bytes);
    if (align == HUGE_PAGE)
        (void)madvise(p, padded, MADV_HUGEPAGE); /* faster where the system has them, no different where not */
    *ret = p;
    *ret_padded = padded ? padded : align;
    return 0;
}

int host_alloc(size_t bytes, void **ret, struct err *e)
{
    size_t padded;
    TRY(take(bytes, ret, &padded, e));
    memset(*ret, 0, padded);
    return 0;
}

int host_alloc_as_used(size_t bytes, void **ret, struct err *e)
{
    size_t padded;
    TRY(take(bytes, ret, &padded, e));
    if (bytes < HOST_LARGE || madvise(*ret, padded, MADV_DONTNEED) != 0) /* locked pages cannot be given back */
        memset(*ret, 0, padded);
    return 0;
}

int host_reserve(size_t bytes, void **ret, struct err *e)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_errno(e, errno, "%zu bytes of address space", bytes);
    *ret = p;
    return 0;
}

void host_unreserve(void *p, size_t bytes)
{
    munmap(p, bytes ? bytes : 1);
}
