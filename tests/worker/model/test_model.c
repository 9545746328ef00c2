/* Models: sizes, names and shapes. The expected list of names is a table of text, expanded here by rules of its own:
 * rows of torchvision's state_dict with the numbers of blocks beside it, no code of worker/model/. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

static struct program *build_as(const char *arch, enum net_style style, int classes, int channels, int side)
{
    char *text = NULL;
    struct program *p = NULL;
    struct err e = {0};
    if (model_text(&text, arch, style, style == NET_TORCH, &e) < 0)
        fail_msg("%s", e.text);
    const struct model_options o = {
        .arch = arch,
        .text = text,
        .classes = classes,
        .input = input_pictures(channels, side, side, NULL, NULL),
    };
    if (model_build(&p, &o, &e) < 0)
        fail_msg("%s", e.text);
    free(text);
    return p;
}

static struct program *build(const char *arch, int classes, int channels, int side)
{
    return build_as(arch, NET_TORCH, classes, channels, side);
}

static void parameters_are_as_many_as_published(void **state)
{
    const struct {
        const char *arch;
        int classes, channels, side;
        size_t count;
    } known[] = {
        {"resnet18", 1000, 3, 224, 11689512},
        {"resnet34", 1000, 3, 224, 21797672},
        {"resnet50", 1000, 3, 224, 25557032},
        {"resnet101", 1000, 3, 224, 44549160},
        {"resnet152", 1000, 3, 224, 60192808},
        {"resnext50_32x4d", 1000, 3, 224, 25028904},
        {"resnext101_32x8d", 1000, 3, 224, 88791336},
        {"convnext_tiny", 1000, 3, 224, 28589128},
        {"convnext_small", 1000, 3, 224, 50223688},
        {"convnext_base", 1000, 3, 224, 88591464},
        {"vit_s_16", 1000, 3, 224, 22050664},
        {"deit3_s_16", 1000, 3, 224, 22059496},
        {"vit_b_16", 1000, 3, 224, 86567656},
        {"vit_l_16", 1000, 3, 224, 304326632},
        {"wide_resnet50_2", 1000, 3, 224, 68883240},
        {"wide_resnet101_2", 1000, 3, 224, 126886696},
        {"wrn_28_10", 10, 3, 32, 36479194},
        {"wrn_16_4", 10, 3, 32, 2748890},
        {"resnet18_small", 10, 3, 32, 11173962},
        {"resnet34_small", 10, 3, 32, 21282122},
        {"resnet50_small", 10, 3, 32, 23520842},
        {"convnet", 10, 1, 28, 29034},
        {"mlp", 10, 1, 28, 669706},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct program *p = build(known[i].arch, known[i].classes, known[i].channels, known[i].side);
        if (program_trainable(p) != known[i].count)
            print_error("%s has %zu parameters, expected %zu\n", known[i].arch, program_trainable(p), known[i].count);
        assert_int_equal(program_trainable(p), known[i].count);
        program_destroy(p);
    }
}

/* One row of the expected list at a time. */
struct checker {
    const struct program *p;
    int next;
};

static void expect(struct checker *k, const char *name, int ndim, const int64_t *shape)
{
    assert_in_range(k->next, 0, k->p->nparams - 1);
    const struct param *q = &k->p->params[k->next++];
    assert_string_equal(q->name, name);
    assert_int_equal(q->ndim, ndim);
    for (int i = 0; i < ndim; i++) {
        if (q->shape[i] != shape[i])
            print_error("%s: size %d is %lld, expected %lld\n", name, i, (long long)q->shape[i], (long long)shape[i]);
        assert_int_equal(q->shape[i], shape[i]);
    }
}

static void expect_conv(struct checker *k, const char *layer, int64_t out, int64_t in, int64_t kernel)
{
    char name[128];
    snprintf(name, sizeof name, "%s.weight", layer);
    expect(k, name, 4, (int64_t[]){out, in, kernel, kernel});
}

static void expect_bn(struct checker *k, const char *layer, int64_t c)
{
    static const char *const part[] = {"weight", "bias", "running_mean", "running_var"};
    for (int i = 0; i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", layer, part[i]);
        expect(k, name, 1, &c);
    }
}

/* A row: stage (0: none), block (*: 1 and later), layer, K, C, kernel. "bn" rows have a K only. */
struct row {
    int stage;
    char block;
    const char *layer;
    int k, c, kernel;
};

static const struct row resnet18_rows[] = {
    {1, '0', "conv1", 64, 64, 3},
    {1, '0', "bn1", 64, 0, 0},
    {1, '0', "conv2", 64, 64, 3},
    {1, '0', "bn2", 64, 0, 0},
    {1, '*', "conv1", 64, 64, 3},
    {1, '*', "bn1", 64, 0, 0},
    {1, '*', "conv2", 64, 64, 3},
    {1, '*', "bn2", 64, 0, 0},
    {2, '0', "conv1", 128, 64, 3},
    {2, '0', "bn1", 128, 0, 0},
    {2, '0', "conv2", 128, 128, 3},
    {2, '0', "bn2", 128, 0, 0},
    {2, '0', "downsample.0", 128, 64, 1},
    {2, '0', "downsample.1", 128, 0, 0},
    {2, '*', "conv1", 128, 128, 3},
    {2, '*', "bn1", 128, 0, 0},
    {2, '*', "conv2", 128, 128, 3},
    {2, '*', "bn2", 128, 0, 0},
    {3, '0', "conv1", 256, 128, 3},
    {3, '0', "bn1", 256, 0, 0},
    {3, '0', "conv2", 256, 256, 3},
    {3, '0', "bn2", 256, 0, 0},
    {3, '0', "downsample.0", 256, 128, 1},
    {3, '0', "downsample.1", 256, 0, 0},
    {3, '*', "conv1", 256, 256, 3},
    {3, '*', "bn1", 256, 0, 0},
    {3, '*', "conv2", 256, 256, 3},
    {3, '*', "bn2", 256, 0, 0},
    {4, '0', "conv1", 512, 256, 3},
    {4, '0', "bn1", 512, 0, 0},
    {4, '0', "conv2", 512, 512, 3},
    {4, '0', "bn2", 512, 0, 0},
    {4, '0', "downsample.0", 512, 256, 1},
    {4, '0', "downsample.1", 512, 0, 0},
    {4, '*', "conv1", 512, 512, 3},
    {4, '*', "bn1", 512, 0, 0},
    {4, '*', "conv2", 512, 512, 3},
    {4, '*', "bn2", 512, 0, 0},
    {0},
};

static const struct row resnet50_rows[] = {
    {1, '0', "conv1", 64, 64, 1},
    {1, '0', "bn1", 64, 0, 0},
    {1, '0', "conv2", 64, 64, 3},
    {1, '0', "bn2", 64, 0, 0},
    {1, '0', "conv3", 256, 64, 1},
    {1, '0', "bn3", 256, 0, 0},
    {1, '0', "downsample.0", 256, 64, 1},
    {1, '0', "downsample.1", 256, 0, 0},
    {1, '*', "conv1", 64, 256, 1},
    {1, '*', "bn1", 64, 0, 0},
    {1, '*', "conv2", 64, 64, 3},
    {1, '*', "bn2", 64, 0, 0},
    {1, '*', "conv3", 256, 64, 1},
    {1, '*', "bn3", 256, 0, 0},
    {2, '0', "conv1", 128, 256, 1},
    {2, '0', "bn1", 128, 0, 0},
    {2, '0', "conv2", 128, 128, 3},
    {2, '0', "bn2", 128, 0, 0},
    {2, '0', "conv3", 512, 128, 1},
    {2, '0', "bn3", 512, 0, 0},
    {2, '0', "downsample.0", 512, 256, 1},
    {2, '0', "downsample.1", 512, 0, 0},
    {2, '*', "conv1", 128, 512, 1},
    {2, '*', "bn1", 128, 0, 0},
    {2, '*', "conv2", 128, 128, 3},
    {2, '*', "bn2", 128, 0, 0},
    {2, '*', "conv3", 512, 128, 1},
    {2, '*', "bn3", 512, 0, 0},
    {3, '0', "conv1", 256, 512, 1},
    {3, '0', "bn1", 256, 0, 0},
    {3, '0', "conv2", 256, 256, 3},
    {3, '0', "bn2", 256, 0, 0},
    {3, '0', "conv3", 1024, 256, 1},
    {3, '0', "bn3", 1024, 0, 0},
    {3, '0', "downsample.0", 1024, 512, 1},
    {3, '0', "downsample.1", 1024, 0, 0},
    {3, '*', "conv1", 256, 1024, 1},
    {3, '*', "bn1", 256, 0, 0},
    {3, '*', "conv2", 256, 256, 3},
    {3, '*', "bn2", 256, 0, 0},
    {3, '*', "conv3", 1024, 256, 1},
    {3, '*', "bn3", 1024, 0, 0},
    {4, '0', "conv1", 512, 1024, 1},
    {4, '0', "bn1", 512, 0, 0},
    {4, '0', "conv2", 512, 512, 3},
    {4, '0', "bn2", 512, 0, 0},
    {4, '0', "conv3", 2048, 512, 1},
    {4, '0', "bn3", 2048, 0, 0},
    {4, '0', "downsample.0", 2048, 1024, 1},
    {4, '0', "downsample.1", 2048, 0, 0},
    {4, '*', "conv1", 512, 2048, 1},
    {4, '*', "bn1", 512, 0, 0},
    {4, '*', "conv2", 512, 512, 3},
    {4, '*', "bn2", 512, 0, 0},
    {4, '*', "conv3", 2048, 512, 1},
    {4, '*', "bn3", 2048, 0, 0},
    {0},
};

static void expect_block(struct checker *k, const struct row *rows, int stage, int block)
{
    for (const struct row *r = rows; r->stage; r++) {
        if (r->stage != stage || r->block != (block ? '*' : '0'))
            continue;
        char layer[96];
        snprintf(layer, sizeof layer, "layer%d.%d.%s", stage, block, r->layer);
        if (r->kernel)
            expect_conv(k, layer, r->k, r->c, r->kernel);
        else
            expect_bn(k, layer, r->k);
    }
}

static void expect_state_dict(const char *arch, const struct row *rows, const int *blocks, int width, int entries)
{
    struct program *p = build(arch, 1000, 3, 224);
    struct checker k = {.p = p};
    assert_int_equal(p->nparams, entries);
    expect_conv(&k, "conv1", 64, 3, 7);
    expect_bn(&k, "bn1", 64);
    for (int s = 1; s <= 4; s++)
        for (int b = 0; b < blocks[s - 1]; b++)
            expect_block(&k, rows, s, b);
    expect(&k, "fc.weight", 2, (int64_t[]){1000, width});
    expect(&k, "fc.bias", 1, (int64_t[]){1000});
    assert_int_equal(k.next, p->nparams);
    program_destroy(p);
}

/* len(state_dict()) is 122, 218 and 320; without the num_batches_tracked of each of 20, 36 and 53 batch norms that is
 * 102, 182 and 267. */
static void names_and_shapes_are_those_of_torchvision_in_its_order(void **state)
{
    expect_state_dict("resnet18", resnet18_rows, (int[]){2, 2, 2, 2}, 512, 102);
    expect_state_dict("resnet34", resnet18_rows, (int[]){3, 4, 6, 3}, 512, 182);
    expect_state_dict("resnet50", resnet50_rows, (int[]){3, 4, 6, 3}, 2048, 267);
}

static void the_small_network_has_the_names_of_its_tutorial(void **state)
{
    struct program *p = build("convnet", 10, 1, 28);
    struct checker k = {.p = p};
    expect_conv(&k, "layer1.0", 16, 1, 5);
    expect(&k, "layer1.0.bias", 1, (int64_t[]){16});
    expect_bn(&k, "layer1.1", 16);
    expect_conv(&k, "layer2.0", 32, 16, 5);
    expect(&k, "layer2.0.bias", 1, (int64_t[]){32});
    expect_bn(&k, "layer2.1", 32);
    expect(&k, "fc.weight", 2, (int64_t[]){10, 7 * 7 * 32});
    expect(&k, "fc.bias", 1, (int64_t[]){10});
    assert_int_equal(k.next, p->nparams);
    program_destroy(p);
}

static void expect_affine(struct checker *k, const char *layer, int ndim, const int64_t *shape)
{
    char name[128];
    snprintf(name, sizeof name, "%s.weight", layer);
    expect(k, name, ndim, shape);
    snprintf(name, sizeof name, "%s.bias", layer);
    expect(k, name, 1, shape);
}

static void expect_convnext_block(struct checker *k, const char *block, int64_t c)
{
    char layer[128];
    snprintf(layer, sizeof layer, "%s.block.0", block);
    expect_affine(k, layer, 4, (int64_t[]){c, 1, 7, 7});
    snprintf(layer, sizeof layer, "%s.block.2", block);
    expect_affine(k, layer, 1, &c);
    snprintf(layer, sizeof layer, "%s.block.3", block);
    expect_affine(k, layer, 2, (int64_t[]){4 * c, c});
    snprintf(layer, sizeof layer, "%s.block.5", block);
    expect_affine(k, layer, 2, (int64_t[]){c, 4 * c});
    snprintf(layer, sizeof layer, "%s.layer_scale", block);
    expect(k, layer, 3, (int64_t[]){c, 1, 1});
}

/* Rates of stochastic depth rise from 0 to 0.1 over the 18 blocks. */
static void expect_drop(const struct program *p, const char *block, int number)
{
    char name[128];
    snprintf(name, sizeof name, "%s.stochastic_depth", block);
    const int x = program_find_tensor(p, name);
    assert_true(number == 0 ? x < 0 : x >= 0);
    for (int i = 0; i < p->nfwd; i++)
        if (x >= 0 && p->ops[i].out == x)
            assert_true(p->ops[i].samples && fabsf(p->ops[i].rate - 0.1F * (float)number / 17) < 1e-7F);
}

/* 182 entries, as len(state_dict()) of torchvision's. */
static void convnext_has_the_names_and_shapes_of_torchvision(void **state)
{
    static const int blocks[] = {3, 3, 9, 3};
    struct program *p = build("convnext_tiny", 1000, 3, 224);
    struct checker k = {.p = p};
    char name[64];
    int number = 0;
    (void)state;
    assert_int_equal(p->nparams, 182);
    expect_affine(&k, "features.0.0", 4, (int64_t[]){96, 3, 4, 4});
    expect_affine(&k, "features.0.1", 1, (int64_t[]){96});
    for (int s = 0; s < 4; s++) {
        const int64_t c = 96 << s, next = 2 * c;
        for (int b = 0; b < blocks[s]; b++, number++) {
            snprintf(name, sizeof name, "features.%d.%d", 2 * s + 1, b);
            expect_convnext_block(&k, name, c);
            expect_drop(p, name, number);
        }
        if (s == 3)
            break;
        snprintf(name, sizeof name, "features.%d.0", 2 * s + 2);
        expect_affine(&k, name, 1, &c);
        snprintf(name, sizeof name, "features.%d.1", 2 * s + 2);
        expect_affine(&k, name, 4, (int64_t[]){next, c, 2, 2});
    }
    expect_affine(&k, "classifier.0", 1, (int64_t[]){768});
    expect_affine(&k, "classifier.2", 2, (int64_t[]){1000, 768});
    assert_int_equal(k.next, p->nparams);
    program_destroy(p);
}

static void expect_vit_layer(struct checker *k, const char *layer, int64_t c, int64_t mlp)
{
    char name[128];
    snprintf(name, sizeof name, "%s.ln_1", layer);
    expect_affine(k, name, 1, &c);
    snprintf(name, sizeof name, "%s.self_attention.in_proj_weight", layer);
    expect(k, name, 2, (int64_t[]){3 * c, c});
    snprintf(name, sizeof name, "%s.self_attention.in_proj_bias", layer);
    expect(k, name, 1, (int64_t[]){3 * c});
    snprintf(name, sizeof name, "%s.self_attention.out_proj", layer);
    expect_affine(k, name, 2, (int64_t[]){c, c});
    snprintf(name, sizeof name, "%s.ln_2", layer);
    expect_affine(k, name, 1, &c);
    snprintf(name, sizeof name, "%s.mlp.0", layer);
    expect_affine(k, name, 2, (int64_t[]){mlp, c});
    snprintf(name, sizeof name, "%s.mlp.3", layer);
    expect_affine(k, name, 2, (int64_t[]){c, mlp});
}

static void expect_vit(const char *arch, int64_t c, int64_t mlp)
{
    struct program *p = build(arch, 1000, 3, 224);
    struct checker k = {.p = p};
    char name[64];
    assert_int_equal(p->nparams, 152);
    expect_affine(&k, "conv_proj", 4, (int64_t[]){c, 3, 16, 16});
    expect(&k, "class_token", 3, (int64_t[]){1, 1, c});
    expect(&k, "encoder.pos_embedding", 3, (int64_t[]){1, 197, c});
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "encoder.layers.encoder_layer_%d", i);
        expect_vit_layer(&k, name, c, mlp);
    }
    expect_affine(&k, "encoder.ln", 1, &c);
    expect_affine(&k, "heads.head", 2, (int64_t[]){1000, c});
    assert_int_equal(k.next, p->nparams);
    program_destroy(p);
}

/* 152 entries, as len(state_dict()) of torchvision's. */
static void transformers_have_the_names_and_shapes_of_torchvision(void **state)
{
    (void)state;
    expect_vit("vit_b_16", 768, 3072);
    expect_vit("vit_s_16", 384, 1536);
}

static const struct op *producer(const struct program *p, const char *tensor)
{
    int t = program_find_tensor(p, tensor);
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].out == t)
            return &p->ops[i];
    fail_msg("nothing makes '%s'", tensor);
    return NULL;
}

static void assert_stride(const struct program *p, const char *tensor, int stride, int side)
{
    assert_int_equal(producer(p, tensor)->sh, stride);
    assert_int_equal(producer(p, tensor)->sw, stride);
    assert_int_equal(p->tensors[program_find_tensor(p, tensor)].h, side);
}

static void bottlenecks_stride_in_the_3x3_convolution(void **state)
{
    struct program *p = build("resnet50", 1000, 3, 224);
    assert_stride(p, "conv1", 2, 112);
    assert_stride(p, "maxpool", 2, 56);
    assert_stride(p, "layer1.0.conv2", 1, 56);
    assert_stride(p, "layer2.0.conv1", 1, 56);
    assert_stride(p, "layer2.0.conv2", 2, 28);
    assert_stride(p, "layer2.0.downsample.0", 2, 28);
    assert_stride(p, "layer4.2.conv3", 1, 7);
    program_destroy(p);
    p = build("resnet18", 1000, 3, 224);
    assert_stride(p, "layer2.0.conv1", 2, 28);
    assert_stride(p, "layer2.0.conv2", 1, 28);
    program_destroy(p);
}

/* Multiplications of the forward convolutions and linear layer at 224 x 224, as torchvision states them. */
static void forward_costs_what_is_published(void **state)
{
    const struct {
        const char *arch;
        double giga;
    } known[] = {{"resnet18", 1.814},
                 {"resnet34", 3.664},
                 {"resnet50", 4.089},
                 {"resnet101", 7.801},
                 {"resnext50_32x4d", 4.230}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct program *p = build(known[k].arch, 1000, 3, 224);
        double macs = 0;
        for (int i = 0; i < p->nfwd; i++)
            if (p->ops[i].kind == OP_CONV || p->ops[i].kind == OP_LINEAR) {
                const struct tensor *y = &p->tensors[p->ops[i].out];
                macs += (double)p->params[p->ops[i].param[0]].count * y->h * y->w;
            }
        if (macs / 1e9 < known[k].giga - 0.0006 || macs / 1e9 > known[k].giga + 0.0006)
            fail_msg("%s: %.4f GMAC, expected %.3f", known[k].arch, macs / 1e9, known[k].giga);
        program_destroy(p);
    }
}

static double scale_of(const struct program *p, const char *name)
{
    return p->params[program_find_param(p, name)].init_scale;
}

static enum param_init init_of(const struct program *p, const char *name)
{
    return p->params[program_find_param(p, name)].init;
}

static void initial_values_follow_torchvision(void **state)
{
    struct program *p = build("resnet50", 1000, 3, 224);
    double std = scale_of(p, "conv1.weight"), bound = scale_of(p, "fc.weight");
    assert_int_equal(init_of(p, "conv1.weight"), INIT_NORMAL);
    assert_true(std * std * 49 * 64 > 1.9999999 && std * std * 49 * 64 < 2.0000001);
    assert_int_equal(init_of(p, "fc.bias"), INIT_UNIFORM);
    assert_true(bound * bound * 2048 > 0.9999999 && bound * bound * 2048 < 1.0000001);
    assert_int_equal(init_of(p, "layer1.0.bn2.weight"), INIT_ONES);
    assert_int_equal(init_of(p, "layer1.0.bn3.weight"), INIT_ZEROS); /* zero_init_residual */
    assert_int_equal(init_of(p, "layer1.0.downsample.1.weight"), INIT_ONES);
    assert_int_equal(init_of(p, "bn1.running_var"), INIT_ONES);
    assert_int_equal(init_of(p, "bn1.running_mean"), INIT_ZEROS);
    program_destroy(p);
    p = build("convnext_tiny", 1000, 3, 224);
    assert_int_equal(init_of(p, "features.5.8.block.5.weight"), INIT_NORMAL);
    assert_true(scale_of(p, "features.5.8.block.5.weight") == 0.02);
    assert_int_equal(init_of(p, "features.4.1.bias"), INIT_ZEROS);
    assert_int_equal(init_of(p, "features.1.0.layer_scale"), INIT_CONSTANT);
    assert_true(scale_of(p, "features.1.0.layer_scale") == 1e-6);
    program_destroy(p);
    p = build("vit_b_16", 1000, 3, 224);
    bound = scale_of(p, "encoder.layers.encoder_layer_11.self_attention.in_proj_weight");
    assert_true(fabs(bound * bound * 4 * 768 - 6) < 1e-12);
    bound = scale_of(p, "encoder.layers.encoder_layer_0.self_attention.out_proj.weight");
    assert_true(fabs(bound * bound * 768 - 1) < 1e-12);
    std = scale_of(p, "conv_proj.weight");
    assert_true(fabs(std * std * 768 - 1) < 1e-12);
    assert_int_equal(init_of(p, "class_token"), INIT_ZEROS);
    assert_int_equal(init_of(p, "encoder.pos_embedding"), INIT_NORMAL);
    assert_true(scale_of(p, "encoder.layers.encoder_layer_0.mlp.3.bias") == 1e-6);
    assert_int_equal(init_of(p, "heads.head.weight"), INIT_ZEROS);
    program_destroy(p);
    const struct model_options o = {.arch = "resnet18", .classes = 2, .input = input_pictures(3, 32, 32, NULL, NULL)};
    assert_int_equal(0, model_build(&p, &o, NULL));
    assert_int_equal(init_of(p, "layer1.0.bn2.weight"), INIT_ONES);
    program_destroy(p);
}

static struct program *build_caffe2(const char *arch, int side)
{
    return build_as(arch, NET_CAFFE2, 1000, 3, side);
}

/* 227 -> 114 -> 56 in Caffe2's trainer, and 224 -> 112 -> 55; torchvision's padded pool gives 57 and 56. */
static void caffe2_pools_without_padding(void **state)
{
    const struct {
        int side, conv, pool, padded;
    } known[] = {{227, 114, 56, 57}, {224, 112, 55, 56}};
    for (size_t i = 0; i < 2; i++) {
        struct program *c = build_caffe2("resnet50", known[i].side), *t = build("resnet50", 1000, 3, known[i].side);
        assert_int_equal(known[i].conv, c->tensors[program_find_tensor(c, "conv1")].h);
        assert_int_equal(known[i].pool, c->tensors[program_find_tensor(c, "maxpool")].h);
        assert_int_equal(known[i].padded, t->tensors[program_find_tensor(t, "maxpool")].h);
        assert_int_equal(25557032, program_trainable(c));
        program_destroy(c);
        program_destroy(t);
    }
}

static void caffe2_normalises_and_begins_as_its_resnet_py(void **state)
{
    struct program *p = build_caffe2("resnet50", 227);
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].kind == OP_BN)
            assert_true(p->ops[i].eps == 1e-3f);
    assert_true(model_bn_momentum(NET_CAFFE2) == 0.9 && model_bn_momentum(NET_TORCH) == 0.1);
    double std = scale_of(p, "layer1.0.conv2.weight"), bound = scale_of(p, "fc.weight");
    assert_true(fabs(std * std * 9 * 64 - 2) < 1e-12); /* MSRA: sqrt(2 / fan_out) */
    assert_true(fabs(bound * bound * 2048 - 3) < 1e-12);
    assert_int_equal(init_of(p, "fc.bias"), INIT_ZEROS);
    assert_int_equal(init_of(p, "layer1.0.bn3.weight"), INIT_ONES);
    program_destroy(p);
}

static void images_down_to_one_pixel_still_build(void **state)
{
    struct program *p = build("resnet18", 10, 1, 1);
    assert_int_equal(1, p->tensors[program_find_tensor(p, "layer4.1.add")].h);
    program_destroy(p);
}

static void assert_refused(struct model_options o, const char *text)
{
    struct program *p = NULL;
    struct err e = {0};
    assert_int_equal(-EINVAL, model_build(&p, &o, &e));
    assert_null(p);
    if (!strstr(e.text, text))
        print_error("the error is '%s', expected to hold '%s'\n", e.text, text);
    assert_non_null(strstr(e.text, text));
}

static void impossible_models_are_refused_with_a_sentence(void **state)
{
    const struct model_options o = {.arch = "resnet18", .classes = 10, .input = input_pictures(3, 32, 32, NULL, NULL)};
    struct model_options bad = o;
    bad.arch = "resnet19";
    assert_refused(
        bad,
        "unknown architecture 'resnet19' (expected one of resnet18, resnet34, resnet50, resnet101, "
        "resnet152, resnet18_small, resnet34_small, resnet50_small, wide_resnet50_2, wide_resnet101_2, "
        "resnext50_32x4d, resnext101_32x8d, wrn_28_10, wrn_16_4, convnext_tiny, convnext_small, "
        "convnext_base, vit_b_16, vit_l_16, vit_s_16, deit3_s_16, convnet, gpt2, gpt2_medium, gpt2_large, gpt2_xl, tinyllama, mlp, or a file FILE.net)");
    bad = o, bad.classes = 1;
    assert_refused(bad, "1 classes (expected at least 2)");
    bad = o, bad.input.channels = 2;
    assert_refused(bad, "images of 2 channels (expected 1 or 3)");
    bad = o, bad.input = input_pictures(3, 0, 0, NULL, NULL);
    assert_refused(bad, "image size 0 (expected at least 1)");
    bad = o, bad.arch = "convnet";
    assert_refused(bad, "image size 32 (expected 28");
    bad = o, bad.input.std[1] = 0;
    assert_refused(bad, "standard deviation 0 of channel 1");
    bad = o, bad.input = input_pictures(3, 1 << 20, 1 << 20, NULL, NULL);
    assert_refused(bad, "tensor 'input' would be 3 x 1048576 x 1048576");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_as_many_as_published),
        cmocka_unit_test(names_and_shapes_are_those_of_torchvision_in_its_order),
        cmocka_unit_test(convnext_has_the_names_and_shapes_of_torchvision),
        cmocka_unit_test(transformers_have_the_names_and_shapes_of_torchvision),
        cmocka_unit_test(the_small_network_has_the_names_of_its_tutorial),
        cmocka_unit_test(bottlenecks_stride_in_the_3x3_convolution),
        cmocka_unit_test(forward_costs_what_is_published),
        cmocka_unit_test(initial_values_follow_torchvision),
        cmocka_unit_test(caffe2_pools_without_padding),
        cmocka_unit_test(caffe2_normalises_and_begins_as_its_resnet_py),
        cmocka_unit_test(images_down_to_one_pixel_still_build),
        cmocka_unit_test(impossible_models_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
