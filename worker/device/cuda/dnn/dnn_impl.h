/* Inside of dnn.h; dnn*.c only. */
#ifndef CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H
#define CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H

#include <cjson/cJSON.h>

#include "worker/device/cuda/dnn/dnn_graph.h"

#define DNN_PLAN_STATES(X)                                                                                             \
    X(DNN_CANDIDATE)   /* another one of its graph is chosen, or none yet */                                           \
    X(DNN_GUESSED)     /* chosen by the heuristics' order; has yet to run on this device, in this process */           \
    X(DNN_GUESSED_RAN) /* and ran */                                                                                   \
    X(DNN_TIMED)       /* chosen by time, here, when the cache was written or before the checkpoint; has yet to run */ \
    X(DNN_TIMED_RAN)                                                                                                   \
    X(DNN_BARRED) /* chosen: that no engine of this graph runs */

enum cudnn_plan_state {
#define X(id) id,
    DNN_PLAN_STATES(X)
#undef X
};

struct cudnn_plan {
    struct cudnn *d;
    struct cudnn_plan *next; /* all of d */
    enum cudnn_pattern pattern;
    struct cudnn_shape shape;
    enum cudnn_plan_state state;
    double us;                /* its time, 0: not measured */
    char *barred;             /* DNN_BARRED: why; then there is none of what follows */
    struct cudnn_parts parts; /* engine configuration and plan; the graph may go */
    cudnnBackendDescriptor_t config, plan;
    int64_t workspace;
    char graph[128], name[128];
    char *choice; /* JSON of engine and knobs */
};

struct cudnn {
    struct cudnn_options o;
    char *cache_dir;
    bool unwritable; /* the cache, as was told */
    char device[128];
    struct cudnn_parts parts; /* the properties */
    cudnnBackendDescriptor_t props;
    struct cudnn_plan *plans;
};

/* Name and choice of a plan, from its ENGINECFG. */
int cudnn_choice_read(struct cudnn_plan *p, struct err *e);
/* An ENGINECFG from a choice. */
int cudnn_choice_config(struct cudnn *d, struct cudnn_parts *b, cudnnBackendDescriptor_t graph, const cJSON *choice,
                        cudnnBackendDescriptor_t *ret);
/* The plan of a choice that was made elsewhere, from now on. What this device, this cuDNN or the options cannot have is
 * an error. */
int cudnn_adopt(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, const cJSON *choice, bool measured,
                double us, struct err *e);

/* Do they make the same graph, for the same pattern? */
bool cudnn_same_shape(const struct cudnn_shape *x, const struct cudnn_shape *y);

/* Take up what the cache has for a graph; what cannot be had is told. Nothing where there is no cache. */
void cudnn_cache_get(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s);
/* Nothing where there is no cache. One that cannot be written is told of once and left alone. */
void cudnn_cache_put(struct cudnn *d, const struct cudnn_plan *p);

#endif
