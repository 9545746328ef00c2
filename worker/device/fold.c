/* Computes a model's first convolution as one that tensor cores can feed on. */
#include "worker/device/fold.h"

#include "worker/program/program.h"

/* The convolution, where it and its weight gradient alone read tensor t; else -1. */
static int only_conv(const struct program *p, int t)
{
    int conv = -1;
    for (int i = 0; i < p->nops; i++) {
        const struct op *op = &p->ops[i];
        const bool reads = op->in[0] == t || op->in[1] == t;
        if (reads && op->kind == OP_CONV && conv < 0)
            conv = i;
        else if (reads && (op->kind != OP_CONV_BWD_PARAM || op->fwd != conv))
            return -1;
        else if (op->kind == OP_CONV_BWD_DATA && op->fwd == conv)
            return -1;
    }
    return conv;
}

static bool has_form(int filter, int stride, int size)
{
    return filter > 2 && filter % 2 == 1 && stride == 2 && size % 2 == 0;
}

static void fold_side(struct fold *f, int side, int filter, int pad, int size)
{
    f->size[side] = size / 2 + pad;
    f->filter[side] = (filter + 1) / 2;
    f->before[side] = (pad + 1) / 2;
    f->skip[side] = pad % 2;
    f->whole[side] = filter;
}

struct fold fold_find(const struct program *p)
{
    struct fold f = {.conv = -1};
    if (p->nops == 0 || p->ops[0].kind != OP_INPUT)
        return f;
    const int conv = only_conv(p, p->ops[0].out);
    if (conv < 0)
        return f;
    const struct op *op = &p->ops[conv];
    if (!has_form(op->kh, op->sh, p->input.height) || !has_form(op->kw, op->sw, p->input.width))
        return f;
    f.conv = conv;
    fold_side(&f, 0, op->kh, op->ph, p->input.height);
    fold_side(&f, 1, op->kw, op->pw, p->input.width);
    return f;
}

struct fold_window fold_window(const struct fold *f, const struct program *p, int op)
{
    const struct op *o = &p->ops[op];
    if (f->conv >= 0 && (op == f->conv || o->fwd == f->conv))
        return (struct fold_window){.filter = {f->filter[0], f->filter[1]}, .stride = {1, 1}};
    return (struct fold_window){.filter = {o->kh, o->kw}, .stride = {o->sh, o->sw}, .pad = {o->ph, o->pw}};
}

void fold_place(const struct fold *f, int *c, int *h, int *w)
{
    *c += (*h % 2 * 2 + *w % 2) * FOLD_CHANNELS;
    *h = *h / 2 + f->before[0];
    *w = *w / 2 + f->before[1];
}
