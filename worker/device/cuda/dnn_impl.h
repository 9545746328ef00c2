/* Inside of dnn.h; dnn*.c only. */
#ifndef CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H
#define CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H

#include "worker/device/cuda/dnn_graph.h"

struct dnn_plan {
    struct dnn *d;
    struct dnn_plan *next; /* all of d */
    enum dnn_pattern pattern;
    struct dnn_shape shape;
    bool chosen, measured;
    struct dnn_parts parts; /* engine configuration and plan; the graph may go */
    cudnnBackendDescriptor_t config, plan, pack;
    int64_t workspace;
    char graph[128], name[128];
    char *choice;
};

struct dnn {
    struct dnn_options o;
    char *cache_dir;
    char device[128];
    struct dnn_parts parts; /* the properties */
    cudnnBackendDescriptor_t props;
    struct dnn_plan *plans;
};

/* What heuristics chose, as text; both from ENGINECFG. */
int dnn_choice_read(struct dnn_plan *p, struct err *e);
/* An ENGINECFG from such a text. */
int dnn_choice_config(struct dnn *d, struct dnn_parts *b, cudnnBackendDescriptor_t graph, const char *choice,
                      cudnnBackendDescriptor_t *ret);

/* What was chosen for this graph counts as measured. */
void dnn_measured(struct dnn *d, enum dnn_pattern p, const struct dnn_shape *s);

/* The cache's text for a graph, malloc'ed; -ENOENT if it has none (unreadable files count as none and are said in the log). */
int dnn_cache_get(struct dnn *d, enum dnn_pattern p, const struct dnn_shape *s, char **ret);
int dnn_cache_put(struct dnn *d, const struct dnn_plan *p, double us, struct err *e);

#endif
