/* Cuts a program into parts of about equal cost, for the stages of a pipeline. */
#include "worker/program/stages.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/program/builder.h"

/* --- where */

/* The last forward op that reads tensor t; -1: none does. Logits are read once more by the gradient of a loss over
 * parts, in the backward list. */
static int last_reader(const struct program *p, int t)
{
    for (int i = p->nfwd - 1; i >= 0; i--)
        if (p->ops[i].in[0] == t || p->ops[i].in[1] == t)
            return i;
    return -1;
}

/* How many tensors are made before op `at` and read by it or behind it; *ret: the last of them. */
static int crossing(const struct program *p, int at, int *ret)
{
    int n = 0;
    for (int i = 0; i < at; i++)
        if (p->ops[i].out >= 0 && last_reader(p, p->ops[i].out) >= at) {
            *ret = p->ops[i].out;
            n++;
        }
    return n;
}

/* The op that makes the logits, or a part of them. */
static int logits_op(const struct program *p)
{
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].out == p->logits)
            return i;
    return p->nfwd;
}

int stages_places(const struct program *whole, int *places)
{
    int n = 0;
    bool learns = false;
    const int end = logits_op(whole);
    for (int at = 1; at <= end && at < whole->nfwd; at++) {
        int t = -1;
        learns |= whole->ops[at - 1].param[0] >= 0;
        if (learns && crossing(whole, at, &t) == 1 && whole->tensors[t].ranks == 1)
            places[n++] = at;
    }
    return n;
}

/* --- by cost */

enum { OPERATIONS_A_VALUE = 25 }; /* that a processor does in the time in which it reads or writes one value */

/* What a tensor group splits counts as an even part: the same on all its ranks. */
static double channels_of(const struct program *p, int t)
{
    const struct tensor *x = &p->tensors[t];
    return (double)x->whole * x->ranks / (x->whole == x->c ? 1 : p->group);
}

static double values_of(const struct program *p, int t)
{
    return t < 0 ? 0 : channels_of(p, t) * p->tensors[t].h * p->tensors[t].w;
}

static double elements_of(const struct program *p, int param)
{
    const struct param *q = &p->params[param];
    double n = 1;
    for (int d = 0; d < q->ndim; d++)
        n *= q->sharded && d == q->shard_dim ? (double)q->shard_whole / p->group : (double)q->shape[d];
    return n;
}

double stages_cost(const struct program *whole, int op)
{
    const struct op *o = &whole->ops[op];
    const double y = o->out >= 0 ? (double)whole->tensors[o->out].h * whole->tensors[o->out].w : 0;
    if (o->kind == OP_HEAD)
        return 2 * elements_of(whole, o->param[0]) * values_of(whole, o->in[0]) / whole->tensors[o->in[0]].c;
    if (op_facts(o->kind)->work == WORK_FORWARD)
        return 2 * elements_of(whole, o->param[0]) * y * whole->tensors[o->out].ranks;
    if (o->kind == OP_ATTENTION)
        return 4 * y * y * channels_of(whole, o->out);
    if (op_facts(o->kind)->work == WORK_SMALL)
        return 0; /* and of parts that may differ in size */
    return OPERATIONS_A_VALUE * (values_of(whole, o->in[0]) + values_of(whole, o->in[1]) + values_of(whole, o->out));
}

struct costs {
    const int *at;  /* (n + 2): where parts may begin, and the end */
    double *before; /* (n + 2): of all that is before */
};

/* most[k * n + j]: the dearest of k + 1 parts of what is before place j, at best; from[]: where the last one begins. */
static void divide(const struct costs *c, int places, int parts, double *most, int *from)
{
    const int n = places + 2;
    for (int k = 0; k < parts; k++)
        for (int j = 1; j < n; j++) {
            double best = k ? INFINITY : c->before[j];
            for (int i = k; k && i < j; i++) {
                const double last = c->before[j] - c->before[i], rest = most[(k - 1) * n + i],
                             both = last > rest ? last : rest;
                if (both < best) {
                    best = both;
                    from[k * n + j] = i;
                }
            }
            most[k * n + j] = best;
        }
}

static int too_many(const struct program *p, int parts, int places, struct err *e)
{
    return err_set(e, -EINVAL, "%s has places for %d parts at most (expected at least %d, stages times chunks)",
                   p->arch, places + 1, parts);
}

int stages_cut(const struct program *whole, int parts, int *cuts, struct err *e)
{
    int *at = calloc((size_t)whole->nfwd + 2, sizeof *at), rc = 0;
    const int places = at ? stages_places(whole, at + 1) : 0, n = places + 2;
    double *before = calloc((size_t)n, sizeof *before), *most = calloc((size_t)(n * parts), sizeof *most);
    int *from = calloc((size_t)(n * parts), sizeof *from);
    if (!at || !before || !most || !from)
        rc = err_set(e, -ENOMEM, "no memory to cut a model");
    else if (places + 1 < parts)
        rc = too_many(whole, parts, places, e);
    if (rc == 0) {
        at[n - 1] = whole->nfwd;
        for (int i = 1; i < n; i++) {
            before[i] = before[i - 1];
            for (int k = at[i - 1]; k < at[i]; k++)
                before[i] += stages_cost(whole, k);
        }
        divide(&(struct costs){at, before}, places, parts, most, from);
        for (int k = parts - 1, j = n - 1; k > 0; k--) {
            j = from[k * n + j];
            cuts[k - 1] = at[j];
        }
    }
    free(at);
    free(before);
    free(most);
    free(from);
    return rc;
}

/* --- by name */

/* Is this tensor the layer `name`, or in it? */
static bool in_layer(const char *tensor, const char *name, size_t n)
{
    return strncmp(tensor, name, n) == 0 && (tensor[n] == '\0' || tensor[n] == '.');
}

/* The first op of a layer; -1: there is none. */
static int find_layer(const struct program *p, const char *name, size_t n)
{
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].out >= 0 && in_layer(p->tensors[p->ops[i].out].name, name, n))
            return i;
    return -1;
}

/* Where the model may be cut, as the names of tensors that the parts would begin with. */
static void list_places(const struct program *p, const int *places, int n, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%s", i ? ", " : "", p->tensors[p->ops[places[i]].out].name);
}

static bool among(const int *v, int n, int x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return true;
    return false;
}

static int cut_before(const struct program *p, const char *name, size_t n, const int *places, int nplaces, int *ret,
                      struct err *e)
{
    char possible[300];
    int t = -1;
    const int op = find_layer(p, name, n);
    if (op >= 0 && among(places, nplaces, op)) {
        *ret = op;
        return 0;
    }
    list_places(p, places, nplaces, possible, sizeof possible);
    if (n == 0)
        return err_set(e, -EINVAL,
                       "--stage-cut: an empty name (expected layers with commas between them; possible: %s)", possible);
    if (op < 0)
        return err_set(e, -EINVAL, "--stage-cut: %s has no layer '%.*s' (possible: %s)", p->arch, (int)n, name,
                       possible);
    return err_set(e, -EINVAL, "--stage-cut: %s cannot be cut before '%.*s', where %d tensors are open (possible: %s)",
                   p->arch, (int)n, name, crossing(p, op, &t), possible);
}

int stages_cut_at(const struct program *whole, const char *names, int parts, int *cuts, struct err *e)
{
    int *places = calloc((size_t)whole->nfwd + 1, sizeof *places), rc = 0, k = 0;
    if (!places)
        return err_set(e, -ENOMEM, "no memory to cut a model");
    const int n = stages_places(whole, places);
    for (const char *at = names; rc == 0 && at; k++) {
        const char *comma = strchr(at, ',');
        const size_t length = comma ? (size_t)(comma - at) : strlen(at);
        if (k == parts - 1)
            rc = err_set(e, -EINVAL, "--stage-cut %s: %d parts take %d names (stages times chunks, less one)", names,
                         parts, parts - 1);
        else
            rc = cut_before(whole, at, length, places, n, &cuts[k], e);
        if (rc == 0 && k > 0 && cuts[k] <= cuts[k - 1])
            rc = err_set(e, -EINVAL, "--stage-cut %s: '%.*s' does not come after the one before it", names, (int)length,
                         at);
        at = comma ? comma + 1 : NULL;
    }
    free(places);
    if (rc == 0 && k != parts - 1)
        rc = err_set(e, -EINVAL, "--stage-cut %s: %d parts take %d names (stages times chunks, less one)", names, parts,
                     parts - 1);
    return rc;
}

/* --- a stage's program */

static bool learns(const struct program *p, int first, int end)
{
    for (int i = first; i < end; i++)
        for (int k = 0; k < 2; k++) {
            const struct param *q = p->ops[i].param[k] < 0 ? NULL : &p->params[p->ops[i].param[k]];
            if (q && !q->frozen)
                return true;
        }
    return false;
}

int stages_first_trained(const struct program *whole, const int *cuts, int parts)
{
    int first = 0;
    while (first < parts && !learns(whole, 0, first < parts - 1 ? cuts[first] : whole->nfwd))
        first++;
    return first;
}

static int part_of(const int *cuts, int parts, int op)
{
    int part = 0;
    while (part < parts - 1 && op >= cuts[part])
        part++;
    return part;
}

struct copying {
    struct builder *to;
    const struct program *from;
    const int *cuts;
    int parts, stages;
    int *tensor, *param; /* of `from`: which of `to`; -1: none yet */
};

static int copy_tensor(struct copying *c, int t)
{
    if (t < 0 || c->tensor[t] >= 0)
        return t < 0 ? -1 : c->tensor[t];
    const struct tensor *x = &c->from->tensors[t];
    const int id = builder_tensor(c->to, x->name, x->c, x->h, x->w, false);
    if (id >= 0) {
        c->to->p.tensors[id].ranks = x->ranks;
        c->to->p.tensors[id].whole = x->whole;
    }
    return c->tensor[t] = id;
}

/* Do two stages have it? They are the first and the last one: nothing but an embedding and a head share a parameter. */
static bool is_tied(const struct copying *c, int param)
{
    int first = -1;
    for (int i = 0; i < c->from->nfwd; i++) {
        const int stage = part_of(c->cuts, c->parts, i) % c->stages;
        if (c->from->ops[i].param[0] != param)
            continue;
        if (first >= 0 && stage != first)
            return true;
        first = stage;
    }
    return false;
}

static int copy_param(struct copying *c, int i)
{
    if (i < 0 || c->param[i] >= 0)
        return i < 0 ? -1 : c->param[i];
    const struct param *q = &c->from->params[i];
    const int id = builder_add_param(c->to, q);
    if (id >= 0)
        c->to->p.params[id].tied = is_tied(c, i);
    return c->param[i] = id;
}

static void copy_op(struct copying *c, const struct op *from)
{
    struct op copy = *from;
    for (int k = 0; k < 2; k++)
        copy.in[k] = copy_tensor(c, from->in[k]);
    copy.out = copy_tensor(c, from->out);
    for (int k = 0; k < 4; k++)
        copy.param[k] = copy_param(c, from->param[k]);
    struct op *op = builder_op(c->to, from->kind);
    if (op)
        *op = copy;
}

/* Forward ops [first, end) become the next chunk. */
static void copy_part(struct copying *c, int first, int end)
{
    struct program *p = &c->to->p;
    struct program_chunk k = {
        .first = p->nops, .in = -1, .out = -1, .d_in = -1, .d_out = -1, .learns_before = learns(c->from, 0, first)};
    int in = -1, out = -1;
    if (first > 0 && crossing(c->from, first, &in) == 1)
        k.in = copy_tensor(c, in);
    for (int i = first; i < end; i++)
        copy_op(c, &c->from->ops[i]);
    if (end < c->from->nfwd && crossing(c->from, end, &out) == 1)
        k.out = copy_tensor(c, out);
    k.end = p->nops;
    p->chunks[p->nchunks++] = k;
}

static int copy_parts(struct copying *c, int stage)
{
    struct program *p = &c->to->p;
    const struct program *from = c->from;
    for (int i = stage; i < c->parts; i += c->stages)
        copy_part(c, i ? c->cuts[i - 1] : 0, i < c->parts - 1 ? c->cuts[i] : from->nfwd);
    p->group = from->group;
    p->classes = from->classes;
    p->align = from->align;
    if (from->logits >= 0)
        p->logits = c->tensor[from->logits];
    return c->to->err.code;
}

int stages_program(struct program **ret, const struct program *whole, const int *cuts, int parts, int stages, int stage,
                   struct err *e)
{
    assert(parts % stages == 0 && parts / stages <= PROGRAM_CHUNKS_MAX);
    struct program *p = program_create(whole->arch, whole->input);
    struct copying c = {.to = p ? builder_of(p) : NULL,
                        .from = whole,
                        .cuts = cuts,
                        .parts = parts,
                        .stages = stages,
                        .tensor = malloc(((size_t)whole->ntensors + 1) * sizeof(int)),
                        .param = malloc(((size_t)whole->nparams + 1) * sizeof(int))};
    int rc = p && c.tensor && c.param ? 0 : err_set(e, -ENOMEM, "no memory for a stage");
    if (rc == 0) {
        memset(c.tensor, -1, ((size_t)whole->ntensors + 1) * sizeof(int));
        memset(c.param, -1, ((size_t)whole->nparams + 1) * sizeof(int));
        (void)copy_parts(&c, stage); /* errors are kept */
        rc = program_differentiate(p, e);
    }
    free(c.tensor);
    free(c.param);
    if (rc < 0) {
        program_destroy(p);
        return err_wrap(e, "stage %d of %d", stage, stages);
    }
    *ret = p;
    return 0;
}
