#include "tests/worker/device/cuda/tiny.h"

#include <stddef.h>

#include "worker/program/program.h"

int tiny_build(struct program **ret, struct err *e)
{
    static const float mean[4] = {0.5f}, std[4] = {0.25f, 1, 1, 1};
    struct program *p = program_create("tiny", 1, TINY_SIZE, TINY_SIZE, mean, std);
    int x = program_input(p);
    x = program_conv(p, "conv", x, 4, 3, 1, 1, false);
    x = program_bn(p, "bn", x, 1e-5f, 0.1f, false);
    x = program_relu(p, "relu", x);
    x = program_maxpool(p, "pool", x, 2, 2, 0);
    program_xent(p, program_linear(p, "fc", x, TINY_CLASSES));
    *ret = p;
    return program_differentiate(p, e);
}
