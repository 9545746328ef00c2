#include "tests/worker/device/cuda/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "worker/device/device.h"
#include "worker/program/program.h"

int tiny_build(struct program **ret, struct err *e)
{
    static const float mean[4] = {0.5f}, std[4] = {0.25f, 1, 1, 1};
    struct program *p = program_create("tiny", input_pictures(1, TINY_SIZE, TINY_SIZE, mean, std));
    int x = program_input(p);
    x = program_conv(p, "conv", x, 4, 3, 1, 1, false);
    x = program_bn(p, "bn", x, 1e-5f, false);
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
    return program_bn(p, bn, program_conv(p, name, x, k, kernel, stride, kernel / 2, false), 1e-5f, false);
}

/* Stem and a block with a plain shortcut. */
static int block(struct program *p, int width)
{
    int x = program_relu(p, "relu", conv_bn(p, "stem", program_input(p), width, 3, 2));
    x = program_maxpool(p, "pool", x, 3, 2, 1);
    int y = program_relu(p, "a.relu", conv_bn(p, "a.1", x, width, 3, 1));
    return program_relu(p, "a.out", program_add(p, "a.add", conv_bn(p, "a.2", y, width, 3, 1), x));
}

int block_build(struct program **ret, int width, struct err *e)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("block", input_pictures(3, BLOCKS_SIZE, BLOCKS_SIZE, mean, std));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", block(p, width)), BLOCKS_CLASSES));
    *ret = p;
    return program_differentiate(p, e);
}

int blocks_build(struct program **ret, int width, struct err *e)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("blocks", input_pictures(3, BLOCKS_SIZE, BLOCKS_SIZE, mean, std));
    int x = block(p, width);
    int y = program_relu(p, "b.relu", conv_bn(p, "b.1", x, 2 * width, 3, 2));
    y = conv_bn(p, "b.2", y, 2 * width, 3, 1);
    x = program_relu(p, "b.out", program_add(p, "b.add", y, conv_bn(p, "b.short", x, 2 * width, 1, 2)));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), BLOCKS_CLASSES));
    *ret = p;
    return program_differentiate(p, e);
}

/* shortcut: of the projection, whose stride the block has; 0: there is none. */
static int bottleneck(struct program *p, char name, int x, int width, int shortcut)
{
    enum { CONV1, CONV2, CONV3, SHORT, RELU1, RELU2, ADD, OUT, PARTS };
    static const char *const parts[] = {"1", "2", "3", "short", "relu1", "relu2", "add", "out"};
    char at[PARTS][16];
    for (int i = 0; i < PARTS; i++)
        snprintf(at[i], sizeof at[i], "%c.%s", name, parts[i]);
    int y = program_relu(p, at[RELU1], conv_bn(p, at[CONV1], x, width, 1, 1));
    y = program_relu(p, at[RELU2], conv_bn(p, at[CONV2], y, width, 3, shortcut ? shortcut : 1));
    y = conv_bn(p, at[CONV3], y, 4 * width, 1, 1);
    x = shortcut ? conv_bn(p, at[SHORT], x, 4 * width, 1, shortcut) : x;
    return program_relu(p, at[OUT], program_add(p, at[ADD], y, x));
}

int bottlenecks_build(struct program **ret, int width, struct err *e)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("bottlenecks", input_pictures(3, BLOCKS_SIZE, BLOCKS_SIZE, mean, std));
    int x = program_relu(p, "relu", conv_bn(p, "stem", program_input(p), width, 3, 2));
    x = bottleneck(p, 'a', program_maxpool(p, "pool", x, 3, 2, 1), width, 1);
    x = bottleneck(p, 'c', bottleneck(p, 'b', x, width, 0), width, 2);
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), BLOCKS_CLASSES));
    *ret = p;
    return program_differentiate(p, e);
}

void arenas_open(struct arenas *a, struct device *d, const struct program *p)
{
    const size_t n[] = {p->n_train, p->n_stats, p->n_reduce};
    void *at[3];
    for (int i = 0; i < 3; i++)
        MUST(d->ops->alloc(d, n[i] * sizeof(float), &at[i], e));
    *a = (struct arenas){.params = at[0], .stats = at[1], .reduce = at[2]};
}

void arenas_fill(const struct arenas *a, const struct program *p)
{
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        float *to = (q->role == PARAM_TRAIN ? a->params : a->stats) + q->offset;
        for (size_t k = 0; k < q->count; k++)
            to[k] = (float)param_initial(q, 1, k);
    }
}

void arenas_close(struct arenas *a, struct device *d)
{
    d->ops->release(d, a->params);
    d->ops->release(d, a->stats);
    d->ops->release(d, a->reduce);
}

void noise_fill(uint8_t *out, size_t n)
{
    uint32_t noise = 7;
    for (size_t i = 0; i < n; i++) {
        noise = noise * 1664525u + 1013904223u;
        out[i] = (uint8_t)(noise >> 24);
    }
}

void assert_given_back(const struct fake_counts *c)
{
    assert_int_equal(0, c->bytes);
    assert_int_equal(c->allocs, c->frees);
    assert_int_equal(c->host_allocs, c->host_frees);
    assert_int_equal(0, c->events);
}
