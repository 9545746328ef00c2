/* The backward list and the arenas.
 *
 * The forward list is walked backwards; each op turns the gradient of its output into ops for the gradients of its
 * parameters (first: they travel over the network) and of its inputs. A tensor with several readers gets a contribution
 * from each; they are summed by OP_ADD as they come, and since all readers stand behind the producer, the sum is
 * complete when the walk reaches the producer. The gradient of OP_ADD's output *is* the gradient of both inputs: the
 * same tensor id, no op. Gradients that lead to no trained parameter and to no free tensor (those of the images) are
 * never made: the walk ends above the lowest layer that is trained. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/program/builder.h"

struct walk {
    struct builder *b;
    int *grad;    /* per forward tensor: id of its gradient so far, -1 if none yet */
    int *readers; /* per forward tensor: contributions still to be expected in all */
    int *parts;   /* per forward tensor: contributions made so far */
    bool *wanted; /* per forward tensor: leads to a trained parameter or a free tensor */
};

/* A new gradient tensor shaped like t: "d name", or "d name #k" if it is one of several parts. */
static int gradient_tensor(struct walk *w, int t, int part)
{
    struct tensor of = w->b->p.tensors[t];
    char name[sizeof of.name + 32];
    if (part)
        snprintf(name, sizeof name, "d %s #%d", of.name, part);
    else
        snprintf(name, sizeof name, "d %s", of.name);
    int g = builder_tensor(w->b, name, of.c, of.h, of.w, true);
    if (g >= 0) {
        w->b->p.tensors[g].ranks = of.ranks;
        w->b->p.tensors[g].whole = of.whole;
    }
    return g;
}

/* Gradient g is one contribution to tensor t. */
static void contribute(struct walk *w, int t, int g)
{
    w->parts[t]++;
    if (w->grad[t] < 0) {
        w->grad[t] = g;
        return;
    }
    bool last = w->parts[t] == w->readers[t];
    int sum = gradient_tensor(w, t, last ? 0 : 2 * w->parts[t]);
    struct op *op = builder_op(w->b, OP_ADD);
    if (!op)
        return;
    op->in[0] = w->grad[t];
    op->in[1] = g;
    op->out = sum;
    w->grad[t] = sum;
}

/* No gradients of frozen parameters: op loses those that it would but write. A backward op without any that others
 * have, too, becomes that one. Does it write a gradient at all? */
static bool leave_out_frozen(const struct program *p, struct op *op)
{
    const char *role = op_facts(op->kind)->params;
    bool gives = false;
    for (int k = 0; role[k]; k++)
        gives |= program_gives(p, op, k);
    if (op->kind == OP_SCALE_BWD && !gives) /* dx = dy * [0] */
        *op = (struct op){.kind = OP_SCALE,
                          .in = {op->in[1], -1},
                          .param = {op->param[0], -1, -1, -1},
                          .fwd = op->fwd,
                          .groups = op->groups};
    else if (op_facts(op->kind)->work == WORK_PARAM && gives && !program_gives(p, op, 0))
        *op = (struct op){.kind = OP_BIAS_BWD,
                          .in = {op->in[1], -1},
                          .param = {op->param[1], -1, -1, -1},
                          .fwd = op->fwd,
                          .groups = 1};
    else
        for (int k = 0; role[k]; k++)
            if (role[k] == 'g' && !program_gives(p, op, k))
                op->param[k] = -1;
    return gives;
}

/* Append the backward op `kind` of forward op f with inputs a and b. Where x >= 0 it makes a contribution to x's
 * gradient. */
static void emit(struct walk *w, int f, enum op_kind kind, int a, int b, int x)
{
    struct op one = w->b->p.ops[f]; /* its window, parameters and the like */
    one.kind = kind;
    one.fwd = f;
    one.in[0] = a;
    one.in[1] = b;
    const bool gives = leave_out_frozen(&w->b->p, &one), wanted = x >= 0 && w->wanted[x];
    if (!gives && !wanted)
        return;
    one.out = wanted ? gradient_tensor(w, x, w->readers[x] > 1 ? 2 * w->parts[x] + 1 : 0) : -1;
    struct op *op = builder_op(w->b, kind);
    if (!op)
        return;
    *op = one;
    if (one.out >= 0)
        contribute(w, x, one.out);
}

/* The tensor that `of` stands for at forward op op, whose result has the gradient dy. */
static int operand(const struct walk *w, const struct op *op, int dy, enum op_operand of)
{
    switch (of) {
    case OF_X:
        return op->in[0];
    case OF_SECOND:
        return op->in[1];
    case OF_Y:
        return op->out;
    case OF_DY:
        return dy;
    case OF_LOGITS:
        return w->b->p.logits;
    case OF_NONE:
        break;
    }
    return -1;
}

static void reverse_op(struct walk *w, int f)
{
    const struct op op = w->b->p.ops[f]; /* a copy: the list moves as it grows */
    const struct op_facts *facts = op_facts(op.kind);
    const struct op_backward *back = facts->back;
    const int y = op.out, dy = y >= 0 ? w->grad[y] : -1;
    if (y >= 0 && !w->wanted[y])
        return;
    if (y >= 0 && dy < 0 && back->to != OF_LOGITS) /* inside of the loss, which has a gradient of its own */
        return;
    if (!back->kind && !facts->passes)
        builder_fail(w->b, "'%s' has no derivative", y >= 0 ? w->b->p.tensors[y].name : facts->name);
    for (; back->kind; back++)
        emit(w, f, back->kind, operand(w, &op, dy, back->a), operand(w, &op, dy, back->b),
             operand(w, &op, dy, back->to));
    for (int i = 0; i < facts->passes; i++)
        if (w->wanted[op.in[i]])
            contribute(w, op.in[i], dy);
}

/* Does op only look at the logits before the loss ends? Their gradient does not come through its result. */
static bool looks_at_logits(const struct program *p, const struct op *op)
{
    const struct op_facts *facts = op_facts(op->kind);
    return op->in[0] == p->logits && !facts->back->kind && !facts->passes;
}

/* Is tensor t what the program, or a part of a model that it has, is there to make? */
static bool is_result(const struct program *p, int t, int last)
{
    bool is = (p->nchunks == 0 || p->logits >= 0) && t == last; /* what a loss over parts leaves */
    for (int c = 0; c < p->nchunks; c++)
        is |= p->chunks[c].out == t;
    return is;
}

static bool is_trained(const struct program *p, int param)
{
    return param >= 0 && p->params[param].role == PARAM_TRAIN && !p->params[param].frozen;
}

static bool learns(const struct program *p, const struct op *op)
{
    return is_trained(p, op->param[0]) || is_trained(p, op->param[1]);
}

/* Who is wanted, how often each tensor is read, and whether every result is used. */
static int survey(struct walk *w, int nfwd, int last)
{
    struct program *p = &w->b->p;
    bool *made = calloc((size_t)p->ntensors + 1, sizeof *made);
    if (!made)
        return err_set(&w->b->err, -ENOMEM, "no memory to differentiate a program");
    for (int i = 0; i < nfwd; i++)
        if (p->ops[i].out >= 0)
            made[p->ops[i].out] = true;
    for (int t = 0; t < p->ntensors; t++)
        w->wanted[t] = !made[t];
    free(made);
    for (int c = 0; c < p->nchunks; c++)
        if (p->chunks[c].in >= 0)
            w->wanted[p->chunks[c].in] = p->chunks[c].learns_before;
    for (int i = 0; i < nfwd; i++) {
        const struct op *op = &p->ops[i];
        bool wanted = learns(p, op);
        for (int k = 0; k < 2 && op->in[k] >= 0; k++) {
            w->readers[op->in[k]] += k > 0 || !looks_at_logits(p, op);
            wanted |= w->wanted[op->in[k]];
        }
        if (op->out >= 0)
            w->wanted[op->out] = wanted;
        if (op_facts(op->kind)->back->to == OF_LOGITS)
            w->readers[p->logits]++;
    }
    for (int t = 0; t < p->ntensors; t++)
        if (!w->readers[t] && !is_result(p, t, last))
            builder_fail(w->b, "nobody reads tensor '%s'", p->tensors[t].name);
    return w->b->err.code;
}

/* Forward ops [first, end), the last one first. */
static void reverse_ops(struct walk *w, int first, int end)
{
    for (int f = end - 1; f >= first && !w->b->err.code; f--)
        reverse_op(w, f);
}

/* Parts of a model, the last one first: each begins at the gradient of what it makes, which the caller fills. */
static void reverse_chunks(struct walk *w)
{
    struct program *p = &w->b->p;
    for (int k = p->nchunks - 1; k >= 0; k--) {
        struct program_chunk *c = &p->chunks[k];
        c->d_out = c->out >= 0 && w->wanted[c->out] ? w->grad[c->out] = gradient_tensor(w, c->out, 0) : -1;
        c->first_back = p->nops;
        reverse_ops(w, c->first, c->end);
        c->end_back = p->nops;
        c->d_in = c->in >= 0 ? w->grad[c->in] : -1;
    }
}

static int walk_back(struct builder *b)
{
    struct program *p = &b->p;
    size_t n = (size_t)p->ntensors + 1;
    struct walk w = {.b = b,
                     .grad = malloc(n * sizeof(int)),
                     .readers = calloc(n, sizeof(int)),
                     .parts = calloc(n, sizeof(int)),
                     .wanted = calloc(n, sizeof(bool))};
    int nfwd = p->nops, last = p->ops[nfwd - 1].out;
    int root = p->logits >= 0 || p->nchunks ? -1 : last; /* a loss starts the gradients itself */
    int rc = -ENOMEM;
    if (!w.grad || !w.readers || !w.parts || !w.wanted) {
        err_set(&b->err, rc, "no memory to differentiate a program");
        goto out;
    }
    for (size_t t = 0; t < n; t++)
        w.grad[t] = -1;
    TRY_GOTO(rc, survey(&w, nfwd, last), out);
    if (root >= 0)
        w.grad[root] = gradient_tensor(&w, root, 0);
    if (p->nchunks)
        reverse_chunks(&w);
    else
        reverse_ops(&w, 0, nfwd);
    p->nfwd = nfwd;
    rc = b->err.code;
out:
    free(w.grad);
    free(w.readers);
    free(w.parts);
    free(w.wanted);
    return rc;
}

/* The next place in an arena that ends at `end`. */
static size_t place(const struct program *p, struct param *q, size_t end)
{
    q->offset = end;
    return program_param_end(p, q);
}

/* Does a forward op behind op i have parameter q, too? */
static bool has_place(const struct program *p, int i, int q)
{
    for (i++; i < p->nfwd; i++)
        if (p->ops[i].param[0] == q)
            return true;
    return false;
}

/* Behind the trained parameters; those of an operation side by side. */
static void lay_out_frozen(struct program *p)
{
    size_t end = p->n_train;
    for (int i = p->nfwd - 1; i >= 0; i--)
        for (int k = 0; k < 2; k++) {
            const int q = p->ops[i].param[k];
            if (q >= 0 && p->params[q].frozen && p->params[q].role == PARAM_TRAIN && !has_place(p, i, q))
                end = place(p, &p->params[q], end);
        }
    p->n_frozen = end - p->n_train;
}

static size_t lay_out_stats(struct program *p, bool frozen, size_t end)
{
    for (int i = 0; i < p->nparams; i++)
        if (p->params[i].role == PARAM_STAT && p->params[i].frozen == frozen)
            end = place(p, &p->params[i], end);
    return end;
}

/* Does op write a gradient of parameter q? */
static bool gives(const struct program *p, const struct op *op, int q)
{
    for (int k = 0; op_facts(op->kind)->params[k]; k++)
        if (op->param[k] == q && program_gives(p, op, k))
            return true;
    return false;
}

/* Gradients that two ops write: the first one begins them, the others add. */
static void find_shared(struct program *p)
{
    for (int i = p->nfwd; i < p->nops; i++)
        for (int j = p->nfwd; j < p->nops; j++)
            if (i != j && op_writes_gradients(p->ops[i].kind) && gives(p, &p->ops[i], p->ops[i].param[0]) &&
                gives(p, &p->ops[j], p->ops[i].param[0])) {
                p->ops[i].adds |= j < i;
                p->ops[i].more |= j > i;
            }
}

/* Trained parameters in the order in which their gradients are complete, statistics in forward order. */
static void lay_out(struct program *p)
{
    find_shared(p);
    for (int i = p->nfwd; i < p->nops; i++)
        for (int k = 0; op_facts(p->ops[i].kind)->params[k]; k++)
            if (program_gives(p, &p->ops[i], k) && !p->ops[i].more)
                p->n_train = place(p, &p->params[p->ops[i].param[k]], p->n_train);
    lay_out_frozen(p);
    p->n_stats = lay_out_stats(p, false, 0);
    p->n_fixed = lay_out_stats(p, true, p->n_stats) - p->n_stats;
    p->n_reduce = p->n_train + p->n_stats + METRIC_N;
}

/* Batch norms of which nothing is trained. */
static void fix_norms(struct program *p)
{
    for (int i = 0; i < p->nops; i++) {
        struct op *op = &p->ops[i];
        if (op->kind != OP_BN || learns(p, op))
            continue;
        op->fixed = true;
        p->params[op->param[2]].frozen = p->params[op->param[3]].frozen = true;
    }
}

int program_differentiate(struct program *p, struct err *e)
{
    struct builder *b = builder_of(p);
    if (b->closed)
        builder_fail(b, "the program is differentiated twice");
    if (!p->nops)
        builder_fail(b, "the program has no operation");
    b->closed = true;
    if (!b->err.code)
        fix_norms(p);
    if (b->err.code || walk_back(b) < 0) {
        if (e)
            *e = b->err;
        return b->err.code;
    }
    lay_out(p);
    return 0;
}
