/* `trainer make-data shapes`: the command line around shapes_make(). */
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "worker/data/sets/shapes.h"

struct make_config {
    const char *out;
    int64_t classes, train_images, test_images, image_size, seed;
};

#define AT(field) .at = offsetof(struct make_config, field)

static const struct arg_spec specs[] = {
    {.name = "out",
     .type = ARG_STRING,
     AT(out),
     .metavar = "DIR",
     .required = true,
     .help = "folder that gets train/<class>/*.jpg and val/<class>/*.jpg; an unfinished set in it is completed"},
    {.name = "classes",
     .type = ARG_INT,
     AT(classes),
     .def = "10",
     .min = 2,
     .max = SHAPES_MAX_CLASSES,
     .help = "kinds of shapes"},
    {.name = "train-images",
     .type = ARG_INT,
     AT(train_images),
     .def = "4000",
     .min = 2,
     .max = 10000000,
     .help = "pictures to train on, over all classes"},
    {.name = "test-images",
     .type = ARG_INT,
     AT(test_images),
     .def = "1000",
     .min = 2,
     .max = 10000000,
     .help = "pictures to test with, over all classes"},
    {.name = "image-size",
     .type = ARG_INT,
     AT(image_size),
     .def = "64",
     .min = 16,
     .max = 512,
     .help = "pixels a side"},
    {.name = "seed",
     .type = ARG_INT,
     AT(seed),
     .def = "0",
     .min = 0,
     .max = 0x1p53,
     .help = "the same seed draws the same pictures"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer make-data",
    .usage = "shapes --out DIR [options]",
    .summary = "Draw a JPEG data set of bright shapes on dark cluttered backgrounds, to try training with.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int usage_error(const char *text)
{
    fprintf(stderr, "trainer make-data: %s\n", text);
    return EXIT_USAGE_ERROR;
}

static int run(const struct make_config *c)
{
    struct err e = {0};
    struct shapes_options o = {
        .out = c->out,
        .classes = (int)c->classes,
        .train_images = (int)c->train_images,
        .test_images = (int)c->test_images,
        .image_size = (int)c->image_size,
        .seed = (uint64_t)c->seed,
    };
    if (shapes_make(&o, &e) == 0)
        return EXIT_OK;
    fprintf(stderr, "trainer make-data: %s\n", e.text);
    return e.code == ERR_USAGE ? EXIT_USAGE_ERROR : EXIT_CANT_CREATE;
}

int shapes_main(int argc, char **argv)
{
    struct make_config c = {0};
    struct arg_result r;
    struct err e = {0};
    if (args_parse(&program, argc, argv, &c, &r, &e) < 0)
        return usage_error(e.text);
    if (args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (r.first_operand != argc - 1)
        return usage_error("name one kind of data set to make: shapes");
    if (strcmp(argv[r.first_operand], "shapes") != 0) {
        char text[200];
        snprintf(text, sizeof text, "'%.100s' cannot be made; the one kind of data set there is: shapes",
                 argv[r.first_operand]);
        return usage_error(text);
    }
    return run(&c);
}
