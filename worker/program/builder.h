/* What program.c and autodiff.c share; nobody else includes this. */
#ifndef CRUN_WORKER_PROGRAM_BUILDER_H
#define CRUN_WORKER_PROGRAM_BUILDER_H

#include "common/base/err.h"
#include "worker/program/program.h"

#define ARENA_ALIGN 16 /* elements: one cache line of f32 */

/* A program with what only its construction needs. The public struct is the first member. */
struct builder {
    struct program p;
    struct err err; /* the first building error; code 0 while there is none */
    bool closed;    /* differentiated: nothing can be added */
    size_t cap_ops, cap_tensors, cap_params;
};

static inline struct builder *builder_of(struct program *p)
{
    return (struct builder *)p;
}

/* Remember the first error only: later ones follow from it. Returns -1, an id that every building function takes
 * silently. */
int builder_fail(struct builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int builder_tensor(struct builder *b, const char *name, int c, int h, int w, bool gradient); /* id or -1 */

/* An op with every id unused; valid until the next op is added. NULL after an error. */
struct op *builder_op(struct builder *b, enum op_kind kind);

/* Parameter "<layer>.<suffix>" of ndim sizes; index or -1. */
int builder_param(struct builder *b, const char *layer, const char *suffix, enum param_role role, int ndim,
                  const int64_t *shape, enum param_init init, double init_scale);

/* A copy of q, which another program has; index or -1. */
int builder_add_param(struct builder *b, const struct param *q);

/* The shape of tensor x; false after an error or for an id that does not exist. A copy: the array moves as it grows. */
bool builder_source(struct builder *b, const char *name, int x, struct tensor *ret);

/* Append the op that makes a new tensor `name` of the given shape from x (and y), with the rows of x; NULL after an
 * error. */
struct op *builder_produce(struct builder *b, enum op_kind kind, const char *name, int x, int y, int c, int h, int w);

/* The op that makes `result` of the rows "name.weight" (rows,c) that tokens stand for; the head, over `rows` classes,
 * or (whole) the layer that makes its logits (program.h). NULL after an error. */
struct op *builder_embed(struct builder *b, const char *name, const char *result, int tokens, int rows, int c);
struct op *builder_head(struct builder *b, const char *name, int x, int tied, int rows, bool whole);

#endif
