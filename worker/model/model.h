/* Models by name. */
#ifndef CRUN_WORKER_MODEL_H
#define CRUN_WORKER_MODEL_H

#include <stdbool.h>

struct err;
struct program;

struct model_options {
    const char *arch; /* resnet18/34/50/101/152, convnet */
    int classes;      /* >= 2 */
    int channels;     /* 1 or 3 */
    int image_size;   /* square; >= 32 for ResNets (smaller than 32 still works down to 1x1 maps), 28 for convnet */
    bool zero_init_residual; /* last gamma of every block starts at 0 */
    float mean[4], std[4];
};

/* Build and differentiate. *ret is freed with program_destroy(). -EINVAL: unknown arch (with the list) or impossible size. */
int model_build(struct program **ret, const struct model_options *o, struct err *e);

/* "resnet18, resnet34, ..." */
const char *model_names(void);

#endif
