/* The backward list and the arenas.
 *
 * The forward list is walked backwards; each op turns the gradient of its output into ops for the gradients of its
 * parameters (first: they travel over the network) and of its inputs. A tensor with several readers gets a contribution
 * from each; they are summed by OP_ADD as they come, and since all readers stand behind the producer, the sum is
 * complete when the walk reaches the producer. The gradient of OP_ADD's output *is* the gradient of both inputs: the
 * same tensor id, no op. Gradients that lead to no parameter and to no free tensor (those of the images) are never
 * made. */
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
    bool *wanted; /* per forward tensor: leads to a parameter or a free tensor */
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
    if (g >= 0)
        w->b->p.tensors[g].ranks = of.ranks;
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

/* Append the backward op `kind` of forward op f with inputs a and b. Where x >= 0 it makes a contribution to x's
 * gradient. */
static void emit(struct walk *w, int f, enum op_kind kind, int a, int b, int x)
{
    if (x >= 0 && !w->wanted[x] && !op_writes_gradients(kind))
        return;
    int out = -1;
    if (x >= 0 && w->wanted[x])
        out = gradient_tensor(w, x, w->readers[x] > 1 ? 2 * w->parts[x] + 1 : 0);
    struct op *op = builder_op(w->b, kind);
    if (!op)
        return;
    *op = w->b->p.ops[f]; /* its window, parameters and the like */
    op->kind = kind;
    op->fwd = f;
    op->in[0] = a;
    op->in[1] = b;
    op->out = out;
    if (out >= 0)
        contribute(w, x, out);
}

/* The tensor that `of` stands for at forward op op, whose result has the gradient dy. */
static int operand(const struct walk *w, const struct op *op, int dy, enum op_operand of)
{
    switch (of) {
    case OF_X:
        return op->in[0];
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
    for (int i = 0; i < nfwd; i++) {
        const struct op *op = &p->ops[i];
        bool wanted = op->param[0] >= 0;
        for (int k = 0; k < op_facts(op->kind)->inputs; k++) {
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
        c->d_out = c->out >= 0 ? w->grad[c->out] = gradient_tensor(w, c->out, 0) : -1;
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

/* Trainable parameters in the order in which their gradients are complete, statistics in forward order. */
static void lay_out(struct program *p)
{
    for (int i = p->nfwd; i < p->nops; i++) {
        const struct op *op = &p->ops[i];
        for (int k = 0; k < 2 && op_writes_gradients(op->kind); k++)
            if (op->param[k] >= 0) {
                p->params[op->param[k]].offset = p->n_train;
                p->n_train = program_param_end(p, &p->params[op->param[k]]);
            }
    }
    for (int i = 0; i < p->nparams; i++)
        if (p->params[i].role == PARAM_STAT) {
            p->params[i].offset = p->n_stats;
            p->n_stats = program_param_end(p, &p->params[i]);
        }
    p->n_reduce = p->n_train + p->n_stats + METRIC_N;
}

int program_differentiate(struct program *p, struct err *e)
{
    struct builder *b = builder_of(p);
    if (b->closed)
        builder_fail(b, "the program is differentiated twice");
    if (!p->nops)
        builder_fail(b, "the program has no operation");
    b->closed = true;
    if (b->err.code || walk_back(b) < 0) {
        if (e)
            *e = b->err;
        return b->err.code;
    }
    lay_out(p);
    return 0;
}
