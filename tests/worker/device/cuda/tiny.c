#include "tests/worker/device/cuda/tiny.h"

#include <stddef.h>
#include <stdio.h>

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

static int conv_bn(struct program *p, const char *name, int x, int k, int kernel, int stride)
{
    char bn[32];
    snprintf(bn, sizeof bn, "%s.bn", name);
    return program_bn(p, bn, program_conv(p, name, x, k, kernel, stride, kernel / 2, false), 1e-5f, 0.1f, false);
}

int blocks_build(struct program **ret, int width, struct err *e)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("blocks", 3, BLOCKS_SIZE, BLOCKS_SIZE, mean, std);
    int x = program_relu(p, "relu", conv_bn(p, "stem", program_input(p), width, 3, 2));
    x = program_maxpool(p, "pool", x, 3, 2, 1);
    int y = program_relu(p, "a.relu", conv_bn(p, "a.1", x, width, 3, 1));
    x = program_relu(p, "a.out", program_add(p, "a.add", conv_bn(p, "a.2", y, width, 3, 1), x));
    y = program_relu(p, "b.relu", conv_bn(p, "b.1", x, 2 * width, 3, 2));
    y = conv_bn(p, "b.2", y, 2 * width, 3, 1);
    x = program_relu(p, "b.out", program_add(p, "b.add", y, conv_bn(p, "b.short", x, 2 * width, 1, 2)));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), BLOCKS_CLASSES));
    *ret = p;
    return program_differentiate(p, e);
}
