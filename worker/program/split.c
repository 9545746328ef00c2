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

/* x, with the rows of the whole group. */
static int all_rows(struct program *p, const char *name, int x)
{
    const bool has_them = x >= 0 && x < p->ntensors && p->tensors[x].ranks == p->group;
    return has_them ? x : program_gather(p, PART(name, "in"), x);
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

/* The loss over logits (ranks * N, k) of the classes from `first` on, of `classes` in all. */
static void loss_over_parts(struct program *p, int logits, int first, int classes)
{
    struct builder *b = builder_of(p);
    struct op *op = builder_produce(b, OP_LABELS, "labels", -1, -1, LABEL_N, 1, 1);
    const int labels = program_gather(p, "labels.all", op ? op->out : -1);
    if ((op = builder_produce(b, OP_XENT_TOP, "xent.top.part", logits, labels, TOP_N, 1, 1)))
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
    const double scale = 1 / sqrt((double)in.c); /* of the whole layer, as program_linear() has it */
    x = program_slice(p, PART(name, "part"), all_rows(p, name, x), (int)part.first, (int)part.n);
    const int weight =
        builder_param(b, name, "weight", PARAM_TRAIN, 2, (int64_t[]){classes, (int64_t)part.n}, INIT_UNIFORM, scale);
    const int bias = builder_param(b, name, "bias", PARAM_TRAIN, 1, (int64_t[]){classes}, INIT_UNIFORM, scale);
    struct op *op = builder_produce(b, OP_LINEAR, PART(name, "sums"), x, -1, classes, 1, 1);
    if (!op)
        return;
    mark_part(p, weight, 1, &part, in.c);
    op->param[0] = weight;
    x = program_scatter(p, PART(name, "sum"), op->out);
    op = builder_produce(b, OP_BIAS, name, x, -1, classes, 1, 1);
    if (!op)
        return;
    op->param[0] = bias;
    program_xent(p, op->out);
}

void program_classifier(struct program *p, const char *name, int x, int classes, const struct split *s)
{
    if (s->ranks > 1)
        program_set_group(p, s->ranks);
    if (s->ranks < 2 || s->kind == SPLIT_NONE)
        program_xent(p, program_linear(p, name, x, classes));
    else if (s->kind == SPLIT_CLASSES)
        split_over_classes(p, name, x, classes, s);
    else
        split_over_features(p, name, x, classes, s);
}
