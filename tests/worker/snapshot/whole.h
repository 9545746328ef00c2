/* What a checkpoint would hold, in memory: for tests that compare states which are cut over ranks. */
#ifndef CRUN_TESTS_WHOLE_H
#define CRUN_TESTS_WHOLE_H

#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/safetensors.h"

struct comm;
struct err;
struct state;

struct whole {
    struct ckpt_tensor *tensors; /* data malloc'ed */
    size_t n;
};

/* All ranks of c (NULL: one that is alone); rank 0 gets *w, the others pass NULL. */
int whole_collect(struct whole *w, struct state *s, struct comm *c, struct err *e);
void whole_free(struct whole *w);
int64_t whole_elements(const struct whole *w, size_t i);

#endif
