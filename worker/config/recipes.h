/* Recipes: settings of a published run by name (--recipe), each a text of recipes/ with its source and its result.
 *
 *   --recipe NAME -> recipes_settings() -> args_parse() takes the text as it takes a settings file: what was typed goes
 *   before it, and --print-config shows where each value comes from */
#ifndef CRUN_WORKER_CONFIG_RECIPES_H
#define CRUN_WORKER_CONFIG_RECIPES_H

#include <stddef.h>

struct arg_settings;
struct err;

#define RECIPES(X)                                                                                                     \
    X("torchvision-v1", recipe_torchvision_v1)                                                                         \
    X("torchvision-v2", recipe_torchvision_v2)                                                                         \
    X("rsb-a3", recipe_rsb_a3)                                                                                         \
    X("deit3-s", recipe_deit3_s)                                                                                       \
    X("caffe2", recipe_caffe2)                                                                                         \
    X("goyal", recipe_goyal)                                                                                           \
    X("torchshard", recipe_torchshard)

#define X(name, text) extern const char text[];
RECIPES(X)
#undef X
#define X(name, text) extern const size_t text##_len;
RECIPES(X)
#undef X

/* arg_program.settings of programs whose config begins with a struct train_config. ERR_USAGE: no such recipe. */
int recipes_settings(const void *config, struct arg_settings *ret, struct err *e);

#endif
