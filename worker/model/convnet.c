/* The small network of the well-known MNIST data-parallel tutorial: two of (5x5 convolution, batch norm, ReLU, 2x2
 * pool), one linear layer. The numbers in the names are those of nn.Sequential. */
#include "worker/model/architectures.h"
#include "worker/program/program.h"

void convnet_write(struct program *p, const struct model_options *o)
{
    int x = program_input(p);
    x = program_conv(p, "layer1.0", x, 16, 5, 1, 2, true);
    x = program_bn(p, "layer1.1", x, 1e-5f, false);
    x = program_relu(p, "layer1.2", x);
    x = program_maxpool(p, "layer1.3", x, 2, 2, 0);
    x = program_conv(p, "layer2.0", x, 32, 5, 1, 2, true);
    x = program_bn(p, "layer2.1", x, 1e-5f, false);
    x = program_relu(p, "layer2.2", x);
    x = program_maxpool(p, "layer2.3", x, 2, 2, 0);
    program_classifier(p, "fc", x, o->classes, &o->split);
}
