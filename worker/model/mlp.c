/* The network of PyTorch's quickstart tutorial: two hidden layers of 512 units over the flattened image. */
#include "worker/model/architectures.h"
#include "worker/program/program.h"

enum { HIDDEN = 512 };

void mlp_write(struct program *p, const struct model_options *o)
{
    int x = program_input(p);
    x = program_linear(p, "fc1", x, HIDDEN);
    x = program_relu(p, "relu1", x);
    x = program_linear(p, "fc2", x, HIDDEN);
    x = program_relu(p, "relu2", x);
    program_classifier(p, "fc3", x, o->classes, &o->split);
}
