/* Inside of dnn.h; dnn*.c only. */
#ifndef CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H
#define CRUN_WORKER_DEVICE_CUDA_DNN_IMPL_H

#include "worker/device/cuda/dnn/dnn_graph.h"

struct cudnn_plan {
    struct cudnn *d;
    struct cudnn_plan *next; /* all of d */
    enum cudnn_pattern pattern;
    struct cudnn_shape shape;
    bool chosen, measured, ran;
    char *barred;             /* NULL, or why this graph has no plan; then there is nothing but a choice that says so */
    struct cudnn_parts parts; /* engine configuration and plan; the graph may go */
    cudnnBackendDescriptor_t config, plan;
    int64_t workspace;
    char graph[128], name[128];
    char *choice;
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

/* What heuristics chose, as text; both from ENGINECFG. */
int cudnn_choice_read(struct cudnn_plan *p, struct err *e);
/* As text {"barred": why}, and why from such a text, NULL where it names an engine; malloc'ed. */
char *cudnn_choice_barred(const char *why);
char *cudnn_choice_why_barred(const char *choice);
/* An ENGINECFG from such a text. */
int cudnn_choice_config(struct cudnn *d, struct cudnn_parts *b, cudnnBackendDescriptor_t graph, const char *choice,
                        cudnnBackendDescriptor_t *ret);

/* What was chosen for this graph counts as measured. */
void cudnn_measured(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s);

/* The cache's text for a graph, malloc'ed; -ENOENT if it has none (unreadable files count as none and are said in the
 * log). */
int cudnn_cache_get(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, char **ret);
/* Nothing where there is no cache. One that cannot be written is told of once and left alone. */
void cudnn_cache_put(struct cudnn *d, const struct cudnn_plan *p, double us);

#endif
