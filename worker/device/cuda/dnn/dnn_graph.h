/* Operation graphs of cuDNN's backend API: built with a sticky error, so that a pattern reads as a list. dnn*.c
 * only. */
#ifndef CRUN_WORKER_DEVICE_CUDA_DNN_GRAPH_H
#define CRUN_WORKER_DEVICE_CUDA_DNN_GRAPH_H

#include <cudnn_graph.h>

#include "worker/device/cuda/dnn/dnn.h"

enum { DNN_PARTS_MAX = 128 };

/* Descriptors that live and die together. */
struct cudnn_parts {
    cudnnBackendDescriptor_t all[DNN_PARTS_MAX];
    int n;
    int rc; /* the first error; later calls do nothing */
    struct err *e;
    const char *what; /* for messages: the graph's name */
};

void cudnn_parts_close(struct cudnn_parts *b);
cudnnBackendDescriptor_t cudnn_make(struct cudnn_parts *b, cudnnBackendDescriptorType_t type); /* NULL after an error */
void cudnn_set(struct cudnn_parts *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values);
void cudnn_seal(struct cudnn_parts *b, cudnnBackendDescriptor_t d); /* cudnnBackendFinalize() */
int cudnn_fail(struct err *e, cudnnStatus_t status, const char *what);

/* The finalised operation graph of a pattern; parts own everything. Slot i has unique id i + 1. */
int cudnn_graph_build(struct cudnn_parts *b, enum cudnn_pattern p, const struct cudnn_shape *s,
                      cudnnBackendDescriptor_t *ret);

/* The same of attention (dnn_sdpa.c). */
int cudnn_sdpa_build(struct cudnn_parts *b, enum cudnn_pattern p, const struct cudnn_shape *s,
                     cudnnBackendDescriptor_t *ret);

#endif
