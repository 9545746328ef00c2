/* Made-up models over layouts: a rank's program, and which element of the model each of its elements is. */
#ifndef CRUN_TESTS_ARENA_MAP_H
#define CRUN_TESTS_ARENA_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/parallel/layout.h"
#include "worker/program/program.h"

enum { ARENA_PARAMS_MAX = 8 };

struct arena_model { /* of each stage */
    int nparams;
    struct {
        int rows, columns;
        bool sharded; /* over the tensor group: its rows, or */
        bool by_columns;
    } params[ARENA_PARAMS_MAX];
};

struct arena_map {
    struct param params[ARENA_PARAMS_MAX];
    struct program program; /* params, nparams, n_train; its parameters are those of this rank */
    int64_t *id;            /* (n_train): element of the model, stages one behind the other; < 0: padding */
};

int64_t arena_model_elements(const struct arena_model *m); /* of a stage */

void arena_map_init(struct arena_map *a, const struct arena_model *m, const struct layout *l, int rank);
void arena_map_finish(struct arena_map *a);

#endif
