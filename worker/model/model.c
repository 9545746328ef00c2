/* The table of models. */
#include "worker/model/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/model/architectures.h"
#include "worker/program/program.h"

/* name, basic or bottleneck blocks, blocks of the four stages */
#define RESNETS(X)                                                                                                     \
    X("resnet18", false, 2, 2, 2, 2)                                                                                   \
    X("resnet34", false, 3, 4, 6, 3)                                                                                   \
    X("resnet50", true, 3, 4, 6, 3)                                                                                    \
    X("resnet101", true, 3, 4, 23, 3)                                                                                  \
    X("resnet152", true, 3, 8, 36, 3)

static const struct resnet_shape resnets[] = {
#define X(name, bottleneck, a, b, c, d) {name, bottleneck, {a, b, c, d}},
    RESNETS(X)
#undef X
};

const char *model_names(void)
{
#define X(name, bottleneck, a, b, c, d) name ", "
    return RESNETS(X) "convnet, mlp";
#undef X
}

double model_bn_momentum(enum net_style style)
{
    return style == NET_CAFFE2 ? 0.9 : 0.1;
}

static int check(const struct model_options *o, struct err *e)
{
    if (o->classes < 2)
        return err_set(e, -EINVAL, "%d classes (expected at least 2)", o->classes);
    if (o->channels != 1 && o->channels != 3)
        return err_set(e, -EINVAL, "images of %d channels (expected 1 or 3)", o->channels);
    if (o->image_size < 1)
        return err_set(e, -EINVAL, "image size %d (expected at least 1)", o->image_size);
    if (!strcmp(o->arch, "convnet") && o->image_size != 28)
        return err_set(e, -EINVAL, "image size %d (expected 28, the only one that convnet takes)", o->image_size);
    return 0;
}

int model_build(struct program **ret, const struct model_options *o, struct err *e)
{
    const struct resnet_shape *shape = NULL;
    for (size_t i = 0; i < sizeof resnets / sizeof *resnets; i++)
        if (!strcmp(o->arch, resnets[i].name))
            shape = &resnets[i];
    const bool convnet = !strcmp(o->arch, "convnet");
    if (!shape && !convnet && strcmp(o->arch, "mlp"))
        return err_set(e, -EINVAL, "unknown architecture '%s' (expected one of %s)", o->arch, model_names());
    TRY(check(o, e));
    struct program *p =
        program_create(o->arch, input_pictures(o->channels, o->image_size, o->image_size, o->mean, o->std));
    if (!p)
        return err_set(e, -ENOMEM, "no memory for a model");
    if (o->align)
        program_align(p, o->align);
    if (shape)
        resnet_write(p, shape, o);
    else if (convnet)
        convnet_write(p, o);
    else
        mlp_write(p, o);
    if (program_differentiate(p, e) < 0) {
        program_destroy(p);
        return err_wrap(e, "model %s of %d x %d images", o->arch, o->image_size, o->image_size);
    }
    *ret = p;
    return 0;
}
