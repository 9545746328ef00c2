/* The tensors of a checkpoint, and what this rank has of them: between the state's arenas and files. The list is the
 * same on all ranks: model.safetensors' tensors in the order of their names, then train.safetensors'. What a rank has
 * of them follows from ownership.h. */
#ifndef CRUN_WORKER_SNAPSHOT_SLICES_H
#define CRUN_WORKER_SNAPSHOT_SLICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/safetensors.h"
#include "worker/snapshot/exchange.h"

struct err;
struct state;

enum slices_kind {
    SLICES_PARAMS,
    SLICES_STATISTICS,
    SLICES_COUNTER, /* num_batches_tracked */
    SLICES_MOMENTS,
    SLICES_AVERAGES
};

struct slice {
    struct piece piece;
    int arena;     /* of the state; a number for each */
    char *memory;  /* its first element: device memory; NULL: a counter's */
    size_t copied; /* where it is in the copy, bytes; SIZE_MAX: nowhere */
    /* Averages of a model's tensor: theirs, to be filled with the same; NULL: there are none. */
    char *average;
};

struct slices {
    struct state *state; /* borrowed */
    struct ckpt_tensor *tensors;
    enum slices_kind *kinds; /* (n) */
    size_t n_model, n;       /* of them in model.safetensors; in both */
    struct slice *held;      /* by tensor */
    size_t n_held;
    char *copy; /* NULL: there is none */
    size_t copy_bytes;
    struct span *spans; /* of the copy */
    size_t n_spans;
    int64_t updates; /* what a counter holds */
};

int slices_init(struct slices *s, struct state *state, struct err *e);
void slices_finish(struct slices *s);

int64_t slices_count(const struct slices *s, size_t tensor); /* elements */
size_t slices_size(const struct slices *s, size_t tensor);   /* bytes of one */
int64_t slices_bytes(const struct slices *s);                /* of all tensors */

/* A copy of the slices for which wanted[n_held] says so takes copy_bytes; what is where in it follows from the slices
 * alone, so that another process with the same ones can take it up. `copy` is the caller's to set, and to make NULL
 * before slices_finish(). Once. */
int slices_plan_copy(struct slices *s, const bool *wanted, struct err *e);
/* slices_plan_copy(), and host memory for it; its pages are there afterwards. */
int slices_reserve(struct slices *s, const bool *wanted, struct err *e);
/* The copy becomes what the state is now. Nothing where none is planned. */
int slices_copy(struct slices *s, struct err *e);
/* The state becomes what the copy is, and its version grows. */
int slices_copy_back(struct slices *s, struct err *e);

/* n elements of a slice from element `first` of its block on: in the copy, else in room (host memory for them). */
int slices_get(const struct slices *s, const struct slice *v, int64_t first, int64_t n, void *room, const void **ret,
               struct err *e);
/* Into the state; averages: the same into the averages of them. */
int slices_put(struct slices *s, const struct slice *v, int64_t first, int64_t n, const void *from, bool averages,
               struct err *e);

/* *ret: the first tensor of which something is not finite in the copy (without one: in what this rank holds); n: none.
 * room: `bytes` of host memory. */
int slices_find_infinite(const struct slices *s, void *room, size_t bytes, size_t *ret, struct err *e);

#endif
