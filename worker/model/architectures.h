/* What model.c builds models from: each writes the forward list of one family into an empty program. */
#ifndef CRUN_WORKER_MODEL_ARCHITECTURES_H
#define CRUN_WORKER_MODEL_ARCHITECTURES_H

#include <stdbool.h>

#include "worker/model/model.h"

struct program;

struct resnet_shape {
    const char *name;
    bool bottleneck;
    int blocks[4]; /* of the stages layer1 to layer4 */
};

void resnet_write(struct program *p, const struct resnet_shape *shape, const struct model_options *o);
void convnet_write(struct program *p, const struct model_options *o);
void mlp_write(struct program *p, const struct model_options *o);

#endif
