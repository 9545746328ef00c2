/* What stands in the slots of a graph (dnn.h), and the convolution or product that it is about. Pure. */
#ifndef CRUN_WORKER_DEVICE_CUDA_GRAPH_H
#define CRUN_WORKER_DEVICE_CUDA_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/cuda/gpu/gpu.h"

#define ROLES(X)                                                                                                       \
    X(ROLE_NONE)                                                                                                       \
    X(ROLE_X)                                                                                                          \
    X(ROLE_FILTER)                                                                                                     \
    X(ROLE_Y)                                                                                                          \
    X(ROLE_SCALE)                                                                                                      \
    X(ROLE_SHIFT)                                                                                                      \
    X(ROLE_SUM)                                                                                                        \
    X(ROLE_SQUARES)                                                                                                    \
    X(ROLE_BEFORE)                                                                                                     \
    X(ROLE_MEAN)                                                                                                       \
    X(ROLE_INVSTD)                                                                                                     \
    X(ROLE_GAMMA)                                                                                                      \
    X(ROLE_BETA)                                                                                                       \
    X(ROLE_DSCALE)                                                                                                     \
    X(ROLE_DBIAS)                                                                                                      \
    X(ROLE_QKV)                                                                                                        \
    X(ROLE_HEADS)                                                                                                      \
    X(ROLE_DHEADS)                                                                                                     \
    X(ROLE_LSE)                                                                                                        \
    X(ROLE_DELTA)                                                                                                      \
    X(ROLE_DQKV)                                                                                                       \
    X(ROLE_DSUMS)                                                                                                      \
    X(ROLE_UNREAD)
enum role {
#define X(id) id,
    ROLES(X)
#undef X
        ROLE_COUNT
};

enum role graph_role(enum cudnn_pattern p, int slot); /* ROLE_NONE beyond its slots */
int graph_slot(enum cudnn_pattern p, enum role r);    /* -1: it has none */
void *graph_at(const struct gpu_dnn *d, enum role r); /* NULL */
enum role graph_result(enum cudnn_pattern p);         /* of the convolution itself */
bool graph_is_result(enum cudnn_pattern p, enum role r);

/* A product as a graph, its slots and plan with it; false: it is too large for one, or has an epilogue. And back. */
bool graph_of_gemm(const struct gpu_gemm *m, struct gpu_dnn *ret);
struct gpu_gemm graph_gemm(const struct gpu_dnn *d);

struct k_product graph_product(const struct gpu_dnn *d);
int64_t graph_terms(const struct k_product *p); /* of an element of the result */
size_t graph_elements(const struct k_product *p, enum role r);
enum dtype graph_type(const struct k_product *p, enum role r);

/* Where the convolution's own result lies. */
const void *graph_main_result(const struct gpu_dnn *d, size_t *ret_n, enum dtype *ret_type);

#endif
