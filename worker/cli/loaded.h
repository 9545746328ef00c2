/* A model and its parameters from a checkpoint or a bare file of weights, on a device of this process, for programs
 * that train nothing: predict and generate. Blocks; one thread. */
#ifndef CRUN_WORKER_CLI_LOADED_H
#define CRUN_WORKER_CLI_LOADED_H

#include <stdint.h>

#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"
#include "worker/weights/weights.h"

struct loaded {
    const char *path; /* borrowed */
    struct weights *weights;
    char *arch, *text; /* owned; the model's name and words. text is set by the caller, before loaded_name() */
    struct model_options
        model; /* arch and text are set by loaded_name(), the rest by the caller, before loaded_build() */
    struct program *program;
    struct device *device;
    struct ownership own;
    struct state state;
};

/* The weights, averaged ones where the run kept an average, as evaluations take them. weights_meta(l->weights) is NULL
 * for a bare file. part: see weights_open(). */
int loaded_open(struct loaded *l, const char *path, const char *part, struct err *e);
/* arch: a name, or a file's. */
int loaded_name(struct loaded *l, const char *arch, struct err *e);
/* l->program of l->model, and its parameters on the device; threads: 0 for all cores. ERR_MISMATCH: the weights do not
 * fit, or are of a model that they cannot be of. */
int loaded_build(struct loaded *l, const char *device, int64_t threads, struct err *e);
/* A plan for one sample of p, which has the parameters of l->program. To be closed before l. ERR_MISMATCH: it takes
 * more memory than is allowed here; nothing was taken. */
int loaded_plan(struct loaded *l, struct program *p, struct plan **ret, struct err *e);
/* After loaded_open() that failed, too. */
void loaded_close(struct loaded *l);

/* order: (n) the indices of v (n), the largest value first, equal ones by index. */
void loaded_order(const double *v, int n, int *order);

/* The options that these programs share; fields `part`, `device` and `threads` of struct kind. */
#define LOADED_ARGS(kind)                                                                                              \
    {.name = "part",                                                                                                   \
     .type = ARG_STRING,                                                                                               \
     .at = offsetof(kind, part),                                                                                       \
     .metavar = "NAME",                                                                                                \
     .help = "of a bare file with several models: the member of its dict, or else what names begin with, under which " \
             "the wanted one lies: state_dict_ema, teacher, module.encoder_q"},                                        \
        {.name = "device",                                                                                             \
         .type = ARG_STRING,                                                                                           \
         .at = offsetof(kind, device),                                                                                 \
         .def = "auto",                                                                                                \
         .help = "auto, cuda, cpu or ref"},                                                                            \
    {                                                                                                                  \
        .name = "threads", .type = ARG_CUSTOM, .at = offsetof(kind, threads), .def = "0", .env = "OMP_NUM_THREADS",    \
        .parse = config_parse_threads, .metavar = "N",                                                                 \
        .help = "compute threads; 0: one for each core that this process may use"                                      \
    }

#endif
