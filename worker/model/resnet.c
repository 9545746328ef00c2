/* ResNets (He et al., Deep Residual Learning for Image Recognition, 2015) as torchvision names them; bottlenecks stride
 * in the 3x3 convolution (often called v1.5). In Caffe2's style they are those of caffe2/python/models/resnet.py. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "worker/model/architectures.h"
#include "worker/program/program.h"

struct style {
    float bn_eps;
    bool zero_gamma; /* of the last batch norm of a block */
};

/* Write in C what Python writes as f"layer{s}.{b}.{part}{n}". The text lives as long as the calling block. */
#define NAME(...) format_name((char[64]){0}, __VA_ARGS__)
static const char *format_name(char *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const char *format_name(char *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out, 64, fmt, ap);
    va_end(ap);
    return out;
}

/* conv<n> and bn<n> of a block. */
static int conv_bn(struct program *p, const struct style *st, const char *block, int n, int x, int width, int kernel,
                   int stride, bool zero_gamma)
{
    x = program_conv(p, NAME("%s.conv%d", block, n), x, width, kernel, stride, kernel / 2, false);
    return program_bn(p, NAME("%s.bn%d", block, n), x, st->bn_eps, zero_gamma);
}

/* One residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the width at the end. */
static int block(struct program *p, const struct style *st, const char *name, bool bottleneck, int x, int width,
                 int stride, bool project)
{
    int y, out = bottleneck ? 4 * width : width;
    if (bottleneck) {
        y = conv_bn(p, st, name, 1, x, width, 1, 1, false);
        y = program_relu(p, NAME("%s.relu1", name), y);
        y = conv_bn(p, st, name, 2, y, width, 3, stride, false);
        y = program_relu(p, NAME("%s.relu2", name), y);
        y = conv_bn(p, st, name, 3, y, out, 1, 1, st->zero_gamma);
    } else {
        y = conv_bn(p, st, name, 1, x, width, 3, stride, false);
        y = program_relu(p, NAME("%s.relu1", name), y);
        y = conv_bn(p, st, name, 2, y, width, 3, 1, st->zero_gamma);
    }
    if (project) {
        x = program_conv(p, NAME("%s.downsample.0", name), x, out, 1, stride, 0, false);
        x = program_bn(p, NAME("%s.downsample.1", name), x, st->bn_eps, false);
    }
    return program_relu(p, NAME("%s.relu", name), program_add(p, NAME("%s.add", name), y, x));
}

/* XavierFill and a ConstantFill of 0, the initial values of brew.fc. */
static void init_as_caffe2(struct program *p, int weight)
{
    struct param *w = &p->params[weight];
    w->init = INIT_UNIFORM;
    w->init_scale = sqrt(3.0 / (double)param_whole_size(w, 1));
    p->params[weight + 1].init = INIT_ZEROS;
}

void resnet_write(struct program *p, const struct resnet_shape *shape, const struct model_options *o)
{
    const bool caffe2 = o->style == NET_CAFFE2;
    const struct style style = {.bn_eps = caffe2 ? 1e-3f : 1e-5f, .zero_gamma = o->zero_init_residual}, *st = &style;
    int x = program_input(p);
    x = program_conv(p, "conv1", x, 64, 7, 2, 3, false);
    x = program_bn(p, "bn1", x, st->bn_eps, false);
    x = program_relu(p, "relu", x);
    x = program_maxpool(p, "maxpool", x, 3, 2, caffe2 ? 0 : 1);
    for (int s = 0; s < 4; s++)
        for (int b = 0; b < shape->blocks[s]; b++) {
            int stride = s > 0 && b == 0 ? 2 : 1;
            bool project = b == 0 && (stride > 1 || shape->bottleneck);
            x = block(p, st, NAME("layer%d.%d", s + 1, b), shape->bottleneck, x, 64 << s, stride, project);
        }
    x = program_avgpool(p, "avgpool", x);
    program_classifier(p, "fc", x, o->classes, &o->split);
    const int fc = program_find_param(p, "fc.weight");
    if (caffe2 && fc >= 0)
        init_as_caffe2(p, fc);
}
