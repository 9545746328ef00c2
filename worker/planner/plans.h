/* Ways to spread a run over its ranks: every one that is possible, one after the other. Pure.
 *
 * data x tensor x stages takes all ranks; tensor groups split blocks and the last layer; a step goes in 1, 2, 4, ...
 * parts, each with a sample for every rank; stages go by each schedule, with and without recomputation; ZeRO cuts 0 to
 * 3 where copies are held; all-reduces go straight or node by node. */
#ifndef CRUN_WORKER_PLANS_H
#define CRUN_WORKER_PLANS_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/config/config.h"

struct err;

struct parallel_plan {
    int data, tensor, stages;
    int schedule, chunks; /* enum pipeline_kind; of stages */
    int parts;            /* of a step */
    int zero;
    bool recompute, hierarchical;
};

struct plan_limits {
    int world, local_world;
    int batch;   /* samples of a step */
    int classes; /* of the last layer */
    int parts;   /* so many and no other; 0: any */
    int cuts;    /* most parts that the model has places for */
    bool zero3;  /* the device can gather parameters, and hold stages */
    int chunks;  /* of interleaved stages */
    bool nodes;  /* all-reduces may go node by node */
};

/* All of them in a list, malloc'ed; how many in *n. */
int plans_list(struct parallel_plan **ret, int *n, const struct plan_limits *l, struct err *e);

/* Is a simpler than b? Fewer mechanisms are: stages, a tensor group, parts, ZeRO, recomputation, chunks of stages, sums
 * by node count one each. Of as many: fewer stages, smaller tensor groups, fewer parts, less ZeRO, no recomputation,
 * 1f1b before gpipe before interleaved, sums that go straight. A total order: of two different plans one is. */
bool plans_simpler(const struct parallel_plan *a, const struct parallel_plan *b);

/* The options of a run that goes by it. */
void plans_apply(const struct parallel_plan *p, const struct train_config *cfg, struct train_config *ret);

/* "2 data x 1 tensor x 2 stages, 1f1b, 8 parts, ZeRO 1, recompute" as columns of a table, and as options. Returns
 * out. */
char *plans_text(const struct parallel_plan *p, char *out, size_t cap);
char *plans_options(const struct parallel_plan *p, const struct train_config *cfg, char *out, size_t cap);

#endif
