/* The tables of options of comm-bench and comm-test, and what is checked about them. */
#include "worker/cli/comm_options.h"

#include <stddef.h>
#include <string.h>

#include "common/base/err.h"

#define X(id, name) {id, name},
static const struct {
    enum dtype type;
    const char *name;
} types[] = {COMM_TYPES(X)};
#undef X

enum dtype comm_type_of(int number)
{
    return types[number].type;
}

const char *comm_type_name(enum dtype t)
{
    for (int i = 0; i < COMM_TYPE_COUNT; i++)
        if (types[i].type == t)
            return types[i].name;
    return "?";
}

const char *comm_redop_name(enum comm_op op)
{
#define X(id, name) [id] = name,
    static const char *const names[] = { COMM_REDOPS(X) };
#undef X
    return names[op];
}

#define AT(field) offsetof(struct comm_bench_options, field)
#define X(id, name) "|" name
static const struct arg_spec bench_specs[] = {
    {.name = "comm", .type = ARG_STRING, .at = AT(comm), .def = "auto", .help = "auto, nccl, gloo or local"},
    {.name = "device",
     .type = ARG_CHOICE,
     .at = AT(device),
     .def = "host",
     .choices = "host|cuda",
     .help = "where buffers are: in host memory, or a GPU's (nccl; gloo stages them)"},
    {.name = "gpus",
     .type = ARG_STRING,
     .at = AT(gpus),
     .metavar = "LIST",
     .help = "--device cuda: GPUs of this machine's ranks, comma-separated; default: each its own"},
    {.name = "oversubscribe",
     .type = ARG_FLAG,
     .at = AT(oversubscribe),
     .help = "let ranks share a GPU; else two ranks on one are refused"},
    {.name = "call",
     .type = ARG_CHOICE,
     .at = AT(call),
     .def = "all_reduce",
     .choices = "all" KNOWN_CALLS(X),
     .help = "which collective, or sendrecv: messages from each rank to the next one"},
    {.name = "type",
     .type = ARG_CHOICE,
     .at = AT(type),
     .def = "float",
     .choices = "all" COMM_TYPES(X),
     .help = "of elements"},
    {.name = "redop",
     .type = ARG_CHOICE,
     .at = AT(redop),
     .def = "sum",
     .choices = "all" COMM_REDOPS(X),
     .help = "of all_reduce, reduce_scatter and reduce"},
    {.name = "parts",
     .type = ARG_CHOICE,
     .at = AT(parts),
     .def = "equal",
     .choices = "all" COMM_PARTS(X),
     .help = "of all_gather, reduce_scatter, gather and scatter: equal, or growing with the rank (rows named _v)"},
    {.name = "root",
     .type = ARG_INT,
     .at = AT(root),
     .def = "-1",
     .min = -1,
     .max = KNOWN_WORLD_MAX - 1,
     .help = "of broadcast, reduce, gather and scatter; -1: the last rank"},
    {.name = "group-size",
     .type = ARG_INT,
     .at = AT(group_size),
     .def = "0",
     .min = 0,
     .max = KNOWN_WORLD_MAX,
     .help = "divide the ranks into groups of so many, which all call at once, each for itself; 0: one of all"},
    {.name = "group-by",
     .type = ARG_CHOICE,
     .at = AT(group_by),
     .def = "block",
     .choices = "block|stride",
     .help = "groups of neighbours, or of ranks that are as far apart as there are groups"},
    {.name = "min-bytes",
     .short_name = 'b',
     .type = ARG_INT,
     .at = AT(least),
     .def = "8",
     .min = 1,
     .max = 1LL << 40,
     .help = "the first size"},
    {.name = "max-bytes",
     .short_name = 'e',
     .type = ARG_INT,
     .at = AT(most),
     .def = "33554432",
     .min = 1,
     .max = 1LL << 40,
     .help = "the last size, at most"},
    {.name = "factor",
     .short_name = 'f',
     .type = ARG_INT,
     .at = AT(factor),
     .def = "2",
     .min = 2,
     .max = 1 << 20,
     .help = "from one size to the next"},
    {.name = "iters",
     .short_name = 'n',
     .type = ARG_INT,
     .at = AT(iters),
     .def = "20",
     .min = 1,
     .max = 1 << 20,
     .help = "calls in a row under the clock"},
    {.name = "warmup",
     .short_name = 'w',
     .type = ARG_INT,
     .at = AT(warmup),
     .def = "1",
     .min = 0,
     .max = 1 << 20,
     .help = "calls before"},
    {.name = "timeout",
     .type = ARG_SECONDS,
     .at = AT(timeout),
     .def = "60",
     .min = 0.001,
     .max = 1e6,
     .help = "deadline of a collective, and of all ranks to come"},
    ARG_END,
};
#undef X

/* Where comm-test's defaults are others than comm-bench's. */
static const struct {
    const char *name, *def;
} test_defaults[] = {{"call", "all"},    {"type", "all"},          {"redop", "all"}, {"parts", "all"},
                     {"min-bytes", "1"}, {"max-bytes", "1048576"}, {"factor", "16"}, {"iters", "1"}};

const struct arg_program comm_bench_program = {
    .name = "trainer comm-bench",
    .summary =
        "How fast collectives and messages are between the ranks that a launcher started (crun --nproc_per_node 2 "
        "trainer comm-bench). Columns and sizes are those of nccl-tests; the time is that of the slowest rank.",
    .specs = bench_specs,
};
static const struct arg_program test_program = {
    .name = "trainer comm-test",
    .summary =
        "Every collective and messages, of every type and of many sizes, compared with results known beforehand, between the "
        "ranks that a launcher started. Exits 1 if one element of one rank is wrong.",
};

void comm_test_program(struct arg_program *ret)
{
    static struct arg_spec specs[sizeof bench_specs / sizeof *bench_specs];
    memcpy(specs, bench_specs, sizeof specs);
    for (struct arg_spec *s = specs; s->name; s++)
        for (size_t i = 0; i < sizeof test_defaults / sizeof *test_defaults; i++)
            if (strcmp(s->name, test_defaults[i].name) == 0)
                s->def = test_defaults[i].def;
    *ret = test_program;
    ret->specs = specs;
}

int comm_bench_check(const struct comm_bench_options *o, int world, struct err *e)
{
    if (world > KNOWN_WORLD_MAX)
        return err_set(e, ERR_USAGE, "%d ranks: results are known for up to %d", world, KNOWN_WORLD_MAX);
    if (o->least > o->most)
        return err_set(e, ERR_USAGE, "--min-bytes %lld is above --max-bytes %lld", (long long)o->least,
                       (long long)o->most);
    if (o->group_size > 0 && world % o->group_size != 0)
        return err_set(e, ERR_USAGE, "--group-size %lld: expected a divisor of %d, the number of ranks",
                       (long long)o->group_size, world);
    const int64_t size = o->group_size > 0 ? o->group_size : world;
    if (o->root >= size)
        return err_set(e, ERR_USAGE, "--root %lld: expected a rank below %lld", (long long)o->root, (long long)size);
    return 0;
}
