/* `trainer make-db`: its options, and what it prints. */
#include <stdio.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "worker/data/db/db_writer.h"
#include "worker/data/db/make_db.h"

struct make_db_config {
    const char *src, *dst;
    int kind, db_type, format;
    int64_t resize, seed, limit, num_labels;
    bool testing, raw, grey, shuffle, strict;
};

#define AT(field) .at = offsetof(struct make_db_config, field)

static const struct arg_spec specs[] = {
    {.name = "src",
     .type = ARG_STRING,
     AT(src),
     .metavar = "PATH",
     .required = true,
     .help = "data set to read: DIR/<class>/<picture>, or any other kind the trainer reads"},
    {.name = "dst",
     .type = ARG_STRING,
     AT(dst),
     .metavar = "DIR",
     .required = true,
     .help = "data base to make; must not exist"},
    {.name = "db-type",
     .type = ARG_CHOICE,
     AT(db_type),
     .choices = "lmdb|leveldb",
     .def = "lmdb",
     .help = "kind of data base"},
    {.name = "format",
     .type = ARG_CHOICE,
     AT(format),
     .choices = CHOICES(RECORD_FORMATS),
     .def = "datum",
     .help = "records: Caffe's Datum or Caffe2's TensorProtos"},
    {.name = "raw", .type = ARG_FLAG, AT(raw), .help = "store pixels (blue first) instead of the files' bytes"},
    {.name = "resize",
     .type = ARG_INT,
     AT(resize),
     .def = "0",
     .min = 0,
     .max = 16384,
     .metavar = "PIXELS",
     .help = "scale the short side to this; files are written anew as JPEG of quality 95; 0: as they are"},
    {.name = "grey", .type = ARG_FLAG, AT(grey), .help = "one channel", .aliases = "gray"},
    {.name = "shuffle", .type = ARG_FLAG, AT(shuffle), .help = "write the records in random order"},
    {.name = "seed", .type = ARG_INT, AT(seed), .def = "0", .min = 0, .max = 0x1p53, .help = "of --shuffle"},
    {.name = "limit",
     .type = ARG_INT,
     AT(limit),
     .def = "0",
     .min = 0,
     .max = UINT32_MAX,
     .metavar = "N",
     .help = "take so many pictures, the first of the order; 0: all"},
    {.name = "data-format",
     .type = ARG_CHOICE,
     AT(kind),
     .choices = CHOICES(DATASET_KINDS),
     .def = "auto",
     .help = "what --src is; auto: what it looks like"},
    {.name = "num-labels",
     .type = ARG_INT,
     AT(num_labels),
     .def = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "classes of a source data base that does not name them"},
    {.name = "testing", .type = ARG_FLAG, AT(testing), .help = "take the test part of MNIST or CIFAR-10"},
    {.name = "strict-data",
     .type = ARG_FLAG,
     AT(strict),
     .help = "fail on a picture that cannot be decoded, instead of leaving it out"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer make-db",
    .usage = "--src PATH --dst DIR [options]",
    .summary = "Write a data set into an LMDB or LevelDB of records that Caffe, Caffe2 and the trainer read.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

static int complain(const struct err *e)
{
    fprintf(stderr, "trainer make-db: %s\n", e->text);
    return e->code == ERR_USAGE ? EXIT_USAGE_ERROR : e->code == ERR_DATA ? EXIT_DATA : EXIT_CANT_CREATE;
}

int make_db_main(int argc, char **argv)
{
    struct make_db_config c = {0};
    struct make_db_result made;
    struct arg_result r;
    struct err e = {0};
    if (args_parse(&program, argc, argv, &c, &r, &e) < 0)
        return complain(&e);
    if (args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    const struct make_db_options o = {
        .src = c.src,
        .dst = c.dst,
        .source = {.kind = (enum dataset_kind)c.kind, .testing = c.testing, .num_labels = (int)c.num_labels},
        .writer = c.db_type == 0 ? &db_writer_lmdb : &db_writer_leveldb,
        .format = (enum record_format)c.format,
        .raw = c.raw,
        .resize = (int)c.resize,
        .grey = c.grey,
        .shuffle = c.shuffle,
        .seed = (uint64_t)c.seed,
        .limit = (size_t)c.limit,
        .strict = c.strict,
    };
    if (make_db(&o, &made, &e) < 0)
        return complain(&e);
    printable_line(stdout, "%s: %zu records, %.1f MB, %zu left out", c.dst, made.written, (double)made.bytes / 1e6,
                   made.left_out);
    return EXIT_OK;
}
