/* `trainer make-data shapes|text|imagenet-val`: the command line around shapes_make(), text_make() and
 * imagenet_val_sort(). */
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "worker/data/sets/imagenet_val.h"
#include "worker/data/sets/shapes.h"
#include "worker/data/sets/token_set.h"

struct make_config {
    const char *out, *text, *pictures, *labels;
    double val_share;
    int64_t classes, train_images, test_images, image_size, seed;
};

#define AT(field) .at = offsetof(struct make_config, field)

static const struct arg_spec specs[] = {
    {.name = "out",
     .type = ARG_STRING,
     AT(out),
     .metavar = "DIR",
     .required = true,
     .help = "folder that gets train/<class>/*.jpg and val/<class>/*.jpg, and an unfinished set in it is completed; of "
             "text train.bin and val.bin; of imagenet-val <class>/*.JPEG"},
    {.name = "pictures",
     .type = ARG_STRING,
     AT(pictures),
     .metavar = "DIR",
     .help = "imagenet-val: the folder with ILSVRC2012_val_00000001.JPEG and so on; they are moved"},
    {.name = "labels",
     .type = ARG_STRING,
     AT(labels),
     .metavar = "PATH",
     .help = "imagenet-val: the folder of the development kit; or a file with lines NAME,n01751748 (Kaggle's "
             "LOC_val_solution.csv), or n01751748, the k-th of the k-th picture"},
    {.name = "text",
     .type = ARG_STRING,
     AT(text),
     .metavar = "FILE",
     .help = "text: the file whose bytes become tokens"},
    {.name = "val-share",
     .type = ARG_REAL,
     AT(val_share),
     .def = "0.1",
     .min = 0,
     .max = 0.9,
     .help = "text: share of the bytes, the last ones, that becomes val.bin; 0: none"},
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
    .usage = "shapes|text|imagenet-val --out DIR [options]",
    .summary =
        "shapes: draw a JPEG data set of bright shapes on dark cluttered backgrounds, to try training with. text: "
        "write the bytes of any file as tokens (a vocabulary of 256) in llm.c's format. imagenet-val: move ImageNet's "
        "validation pictures into a folder for each class.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int usage_error(const char *text)
{
    fprintf(stderr, "trainer make-data: %s\n", text);
    return EXIT_USAGE_ERROR;
}

static int make_text(const struct make_config *c)
{
    struct err e = {0};
    long long n[2];
    if (!c->text)
        return usage_error("text needs --text FILE: its bytes become tokens");
    const int rc = text_make(&(struct text_options){.text = c->text, .out = c->out, .val_share = c->val_share}, n, &e);
    if (rc == 0) {
        printable_line(stdout, "%s: %lld tokens to train on, %lld held out, of a vocabulary of 256", c->out, n[0],
                       n[1]);
        return EXIT_OK;
    }
    fprintf(stderr, "trainer make-data: %s\n", e.text);
    return rc == ERR_DATA ? EXIT_DATA : rc == ERR_USAGE ? EXIT_USAGE_ERROR : EXIT_CANT_CREATE;
}

static int sort_imagenet_val(const struct make_config *c)
{
    struct err e = {0};
    struct imagenet_val_done done;
    if (!c->pictures || !c->labels)
        return usage_error(
            "imagenet-val needs --pictures DIR, with the pictures, and --labels PATH, the development kit "
            "or a file of labels");
    const struct imagenet_val_options o = {.pictures = c->pictures, .out = c->out, .labels = c->labels};
    const int rc = imagenet_val_sort(&o, &done, &e);
    if (rc == 0 && done.sorted) {
        printable_line(stdout, "%s: sorted already: all %zu pictures are in the folders of their classes", c->out,
                       done.sorted);
        return EXIT_OK;
    }
    if (rc == 0) {
        printable_line(stdout, "%s: %zu pictures moved, %zu class folders made", c->out, done.moved, done.classes);
        return EXIT_OK;
    }
    fprintf(stderr, "trainer make-data: %s\n", e.text);
    return rc == ERR_DATA ? EXIT_DATA : EXIT_CANT_CREATE;
}

static int make_shapes(const struct make_config *c)
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
        return usage_error("name one kind of data set to make: shapes, text or imagenet-val");
    if (strcmp(argv[r.first_operand], "text") == 0)
        return make_text(&c);
    if (strcmp(argv[r.first_operand], "shapes") == 0)
        return make_shapes(&c);
    if (strcmp(argv[r.first_operand], "imagenet-val") == 0)
        return sort_imagenet_val(&c);
    char text[200];
    snprintf(text, sizeof text,
             "'%.100s' cannot be made; the kinds of data sets there are: shapes, text and imagenet-val",
             argv[r.first_operand]);
    return usage_error(text);
}
