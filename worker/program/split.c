/* Cuts the layers of a program for a rank of a tensor group. */
#include "worker/program/split.h"

#include <math.h>
#include <stdio.h>

#include "worker/program/builder.h"

struct split_part split_part(size_t n, int parts, int index)
{
    const size_t even = n / (size_t)parts, more = n % (size_t)parts, i = (size_t)index;
    return (struct split_part){.first = i * even + (i < more ? i : more), .n = even + (i < more)};
}

void program_set_group(struct program *p, int ranks)
{
    if (ranks < 1)
        builder_fail(builder_of(p), "a group of %d ranks", ranks);
    p->group = ranks;
}

int program_slice(struct program *p, const char *name, int x, int first, int n)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    if (first < 0 || n < 1 || n > in.c - first)
        return builder_fail(b, "'%s' takes channels %d to %d of %d", name, first, first + n, in.c);
    struct op *op = builder_produce(b, OP_SLICE, name, x, -1, n, in.h, in.w);
    if (!op)
        return -1;
    op->first = first;
    return op->out;
}

/* An op of the group that keeps the shape; rows of `to` ranks come from rows of `from`, 0: any. */
static int over_group(struct program *p, enum op_kind kind, const char *name, int x, int from, int to)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    if (from && in.ranks != from)
        return builder_fail(b, "'%s' reads the rows of %d ranks (expected %d)", name, in.ranks, from);
    struct op *op = builder_produce(b, kind, name, x, -1, in.c, in.h, in.w);
    if (!op)
        return -1;
    p->tensors[op->out].ranks = to ? to : in.ranks;
    return op->out;
}

int program_gather(struct program *p, const char *name, int x)
{
    return over_group(p, OP_GATHER, name, x, 1, p->group);
}

int program_scatter(struct program *p, const char *name, int x)
{
    return over_group(p, OP_SCATTER, name, x, p->group, 1);
}

int program_sum(struct program *p, const char *name, int x)
{
    return over_group(p, OP_SUM, name, x, 0, 0);
}

int program_max(struct program *p, const char *name, int x)
{
    return over_group(p, OP_MAX, name, x, 0, 0);
}

/* "<name>.<part>"; lives as long as the calling block. */
#define PART(name, part) part_name((char[96]){0}, name, part)
static const char *part_name(char *out, const char *name, const char *part)
{
    snprintf(out, 96, "%s.%s", name, part);
    return out;
}

/* x, with the rows of the whole group: gathered once for all that read them. */
static int all_rows(struct program *p, const char *name, int x)
{
    if (x >= 0 && x < p->ntensors && p->tensors[x].ranks == p->group)
        return x;
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].kind == OP_GATHER && p->ops[i].in[0] == x)
            return p->ops[i].out;
    return program_gather(p, PART(name, "in"), x);
}

/* Which indices of a dimension this rank has; an error where a rank would have none. */
static bool cut(struct builder *b, const struct split *s, const char *what, int n, struct split_part *ret)
{
    if (n < s->ranks)
        builder_fail(b, "%d %s cannot be split over %d ranks", n, what, s->ranks);
    *ret = split_part((size_t)n, s->ranks, s->index);
    return !b->err.code;
}

/* Parameter `param` is the part of a larger one. */
static void mark_part(struct program *p, int param, int dim, const struct split_part *part, int whole)
{
    if (param < 0)
        return;
    p->params[param].sharded = true;
    p->params[param].shard_dim = dim;
    p->params[param].shard_first = (int64_t)part->first;
    p->params[param].shard_whole = whole;
}

/* LABELS of the rows of the whole group. */
static int all_labels(struct program *p)
{
    struct builder *b = builder_of(p);
    const int positions = (int)input_row_labels(&p->input);
    const struct op *op = builder_produce(b, OP_LABELS, "labels", -1, -1, LABEL_N, positions, 1);
    return program_gather(p, "labels.all", op ? op->out : -1);
}

/* The loss over logits (ranks * N, k) of the classes from `first` on, of `classes` in all. */
static void loss_over_parts(struct program *p, int logits, int first, int classes)
{
    struct builder *b = builder_of(p);
    struct op *op = builder_produce(b, OP_XENT_TOP, "xent.top.part", logits, all_labels(p), TOP_N, 1, 1);
    if (op)
        op->first = first;
    const int top = program_max(p, "xent.top", op ? op->out : -1);
    if ((op = builder_produce(b, OP_XENT_SUMS, "xent.sums.part", logits, top, SUMS_N, 1, 1)))
        op->first = first;
    const int sums = program_sum(p, "xent.sums", op ? op->out : -1);
    if ((op = builder_produce(b, OP_XENT_PARTS, "xent.lse", sums, top, LSE_N, 1, 1)))
        op->first = first;
    p->logits = logits;
    p->classes = classes;
}

static void split_over_classes(struct program *p, const char *name, int x, int classes, const struct split *s)
{
    struct builder *b = builder_of(p);
    struct split_part part;
    if (!cut(b, s, "classes", classes, &part))
        return;
    x = all_rows(p, name, x);
    const int logits = program_linear(p, name, x, (int)part.n);
    mark_part(p, program_find_param(p, PART(name, "weight")), 0, &part, classes);
    mark_part(p, program_find_param(p, PART(name, "bias")), 0, &part, classes);
    loss_over_parts(p, logits, (int)part.first, classes);
}

/* A layer of k outputs over x, this rank's part of `whole` features: sums over the group, of this rank's rows. */
static int sum_of_parts(struct program *p, const char *name, int x, int k, const struct split_part *part, int whole,
                        bool bias)
{
    struct builder *b = builder_of(p);
    struct tensor in;
    if (!builder_source(b, name, x, &in))
        return -1;
    const double scale = 1 / sqrt((double)whole); /* of the whole layer, as program_linear() has it */
    const int weight =
        builder_param(b, name, "weight", PARAM_TRAIN, 2, (int64_t[]){k, (int64_t)part->n}, INIT_UNIFORM, scale);
    const int add = bias ? builder_param(b, name, "bias", PARAM_TRAIN, 1, (int64_t[]){k}, INIT_UNIFORM, scale) : -1;
    struct op *op = builder_produce(b, OP_LINEAR, PART(name, "sums"), x, -1, k, in.h, in.w);
    if (!op)
        return -1;
    mark_part(p, weight, 1, part, whole);
    op->param[0] = weight;
    op->each = in.h * in.w > 1;
    x = program_scatter(p, bias ? PART(name, "sum") : name, op->out);
    if (!bias || !(op = builder_produce(b, OP_BIAS, name, x, -1, k, in.h, in.w)))
        return x;
    op->param[0] = add;
    return op->out;
}

static void split_over_features(struct program *p, const char *name, int x, int classes, const struct split *s)
{
    struct builder *b = builder_of(p);
    struct split_part part;
    struct tensor in;
    if (!builder_source(b, name, x, &in) || !cut(b, s, "features", in.c, &part))
        return;
    if (in.h * in.w != 1) {
        builder_fail(b, "'%s' reads maps of %d x %d (expected 1 x 1 where features are split)", name, in.h, in.w);
        return;
    }
    x = program_slice(p, PART(name, "part"), all_rows(p, name, x), (int)part.first, (int)part.n);
    program_xent(p, sum_of_parts(p, name, x, classes, &part, in.c, true));
}

int program_columns(struct program *p, const char *name, int x, int k, int heads, int kv_heads, bool bias,
                    const struct split *s)
{
    struct builder *b = builder_of(p);
    struct split_part part;
    const int all = heads + 2 * kv_heads, d = heads ? k / all : 0, group = heads ? heads / kv_heads : 0;
    if (heads && (heads % kv_heads || k % all))
        return builder_fail(b, "'%s' has %d outputs for %d heads of queries and %d of keys", name, k, heads, kv_heads);
    if (!cut(b, s, heads ? "heads of keys" : "channels", heads ? kv_heads : k, &part))
        return -1;
    const int64_t more = heads ? d * (int64_t)part.n : 0;
    const struct split_part lead = {heads ? part.first * (size_t)(group * d) : part.first,
                                    heads ? part.n * (size_t)(group * d) : part.n};
    const int first = p->nparams,
              y = program_linear_each(p, name, all_rows(p, name, x), (int)(lead.n + 2 * more), bias);
    for (int i = first; y >= 0 && i < p->nparams; i++) {
        mark_part(p, i, 0, &lead, k);
        p->params[i].shard_more = more;
        p->params[i].shard_at[0] = (int64_t)heads * d + (int64_t)part.first * d;
        p->params[i].shard_at[1] = p->params[i].shard_at[0] + (int64_t)kv_heads * d;
    }
    if (y >= 0)
        p->tensors[y].whole = k;
    return y;
}

int program_rows(struct program *p, const char *name, int x, int k, int whole, int units, bool bias,
                 const struct split *s)
{
    const struct split_part part = split_part((size_t)units, s->ranks, s->index);
    const size_t size = (size_t)(whole / units);
    return sum_of_parts(p, name, x, k, &(struct split_part){part.first * size, part.n * size}, whole, bias);
}

static bool is_whole(const struct split *s)
{
    return s->ranks < 2 || s->kind == SPLIT_NONE;
}

int program_embedding(struct program *p, const char *name, int tokens, int c, const struct split *s)
{
    struct split_part part;
    if (is_whole(s))
        return program_embed(p, name, tokens, c);
    if (!cut(builder_of(p), s, "tokens of a vocabulary", p->input.vocabulary, &part))
        return -1;
    struct op *op = builder_embed(builder_of(p), name, PART(name, "rows"), all_rows(p, name, tokens), (int)part.n, c);
    if (!op)
        return -1;
    op->first = (int)part.first;
    mark_part(p, op->param[0], 0, &part, p->input.vocabulary);
    return program_scatter(p, name, op->out);
}

bool program_vocabulary(struct program *p, const char *name, int x, int tied, const struct split *s)
{
    struct split_part part;
    if (is_whole(s))
        return program_head(p, name, x, tied, false);
    if (!cut(builder_of(p), s, "tokens of a vocabulary", p->input.vocabulary, &part))
        return false;
    const int labels = all_labels(p);
    struct op *op = builder_head(builder_of(p), name, all_rows(p, name, x), tied, (int)part.n, false);
    if (!op)
        return false;
    op->in[1] = labels;
    op->first = (int)part.first;
    mark_part(p, op->param[0], 0, &part, p->input.vocabulary);
    return !builder_of(p)->err.code;
}

void program_classifier(struct program *p, const char *name, int x, int classes, const struct split *s)
{
    if (s->ranks > 1)
        program_set_group(p, s->ranks);
    if (is_whole(s))
        program_xent(p, program_linear(p, name, x, classes));
    else if (s->kind == SPLIT_CLASSES)
        split_over_classes(p, name, x, classes, s);
    else
        split_over_features(p, name, x, classes, s);
}
