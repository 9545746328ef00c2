/* Models by name. A model is a function that writes the forward list of a program, layer after layer, as its paper
 * draws it; the room knows shapes and names of parameters (torchvision's), and nothing of devices or training.
 *
 *   name, options -> architectures.h: whose function -> resnet.c, convnet.c, mlp.c: program_conv(), program_bn(), ...
 *   -> program_differentiate() -> a program that a device can plan (program.h)
 *
 * A new model is a file of its own and a line in model.c. */
#ifndef CRUN_WORKER_MODEL_H
#define CRUN_WORKER_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/choice.h"
#include "worker/program/split.h"

struct err;
struct program;

/* Details in which two well-known ResNets differ. */
#define NET_STYLES(X)                                                                                                  \
    X(NET_TORCH, "torch") /* torchvision: batch-norm eps 1e-5, new statistics weigh 0.1, max-pool padded by 1 */       \
    X(NET_CAFFE2,                                                                                                      \
      "caffe2") /* Caffe2's resnet.py: eps 1e-3, new statistics weigh 0.9, max-pool without padding, the   \
                               last layer drawn by XavierFill with a bias of 0 */

enum net_style { NET_STYLES(CHOICE_ID) };

struct model_options {
    const char *arch;     /* resnet18/34/50/101/152, convnet, mlp */
    enum net_style style; /* of ResNets; the others have one */
    int classes;          /* >= 2 */
    int channels;         /* 1 or 3 */
    int image_size; /* square; >= 32 for ResNets (smaller than 32 still works down to 1x1 maps), 28 for convnet, any for mlp */
    bool zero_init_residual; /* last gamma of every block starts at 0 */
    float mean[4], std[4];
    struct split split; /* of the last layer over a tensor group; all-zero: none */
    size_t align;       /* program_align(); 0: as it is without */
};

/* Build and differentiate. *ret is freed with program_destroy(). -EINVAL: unknown arch (with the list) or impossible
 * size. */
int model_build(struct program **ret, const struct model_options *o, struct err *e);

/* Weight of a step's batch statistics in the running ones. */
double model_bn_momentum(enum net_style style);

/* "resnet18, resnet34, ..." */
const char *model_names(void);

#endif
