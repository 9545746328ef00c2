/* Each size of each call and type: fill, call, compare; then calls in a row under the clock. The slowest rank's time
 * counts; rank 0 prints nccl-tests' columns. */
#include "worker/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"
#include "worker/comm/comm.h"
#include "worker/comm/known.h"
#include "worker/config/exit_code.h"
#include "worker/device/device.h"
#include "worker/device/module/module.h"
#include "worker/meet/meet.h"

enum { LEAVE_MS = 10000, EXIT_WRONG = 1, DEVICE_HOST = 0 };

struct options {
    const char *comm;
    int device;            /* DEVICE_HOST or cuda */
    const char *gpus;      /* one for each local rank; NULL: in turn */
    bool oversubscribe;    /* ranks may share a GPU */
    int call, type, redop; /* 0: all, else one more than its number */
    int64_t least, most, factor, iters, warmup;
    double timeout;
};

#define TYPES(X) /* as nccl-tests names them */                                                                        \
    X(DT_F32, "float")                                                                                                 \
    X(DT_F64, "double")                                                                                                \
    X(DT_F16, "half")                                                                                                  \
    X(DT_BF16, "bfloat16")                                                                                             \
    X(DT_I64, "int64")
#define REDOPS(X)                                                                                                      \
    X(COMM_SUM, "sum")                                                                                                 \
    X(COMM_MAX, "max")                                                                                                 \
    X(COMM_MIN, "min")

#define X(id, name) {id, name},
static const struct {
    enum dtype type;
    const char *name;
} types[] = {TYPES(X)};
#undef X
#define X(id, name) [id] = name,
static const char *const redops[] = {REDOPS(X)};
#undef X
enum { NTYPES = sizeof types / sizeof *types, NREDOPS = sizeof redops / sizeof *redops };

#define AT(field) offsetof(struct options, field)
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
     .help = "let ranks share GPUs where a machine has more ranks than GPUs; else that is refused"},
    {.name = "call",
     .type = ARG_CHOICE,
     .at = AT(call),
     .def = "all_reduce",
     .choices = "all" KNOWN_CALLS(X),
     .help = "which collective"},
    {.name = "type",
     .type = ARG_CHOICE,
     .at = AT(type),
     .def = "float",
     .choices = "all" TYPES(X),
     .help = "of elements"},
    {.name = "redop",
     .type = ARG_CHOICE,
     .at = AT(redop),
     .def = "sum",
     .choices = "all" REDOPS(X),
     .help = "of all_reduce; reduce_scatter sums"},
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
} test_defaults[] = {{"call", "all"},          {"type", "all"},  {"redop", "all"}, {"min-bytes", "1"},
                     {"max-bytes", "1048576"}, {"factor", "16"}, {"iters", "1"}};

static const struct arg_program bench_program = {
    .name = "trainer comm-bench",
    .summary = "How fast collectives are between the ranks that a launcher started (crun --nproc_per_node 2 trainer "
               "comm-bench). Columns and sizes are those of nccl-tests; the time is that of the slowest rank.",
    .specs = bench_specs,
};
static const struct arg_program test_program = {
    .name = "trainer comm-test",
    .summary = "Every collective, of every type and of many sizes, compared with results known beforehand, between the "
               "ranks that a launcher started. Exits 1 if one element of one rank is wrong.",
};

struct bench {
    const struct options *o;
    struct env_contract env;
    struct meet meet;
    struct device *device; /* NULL: host memory */
    struct comm *comm;
    void *stream;
    char *host;     /* as much as in or out */
    void *in, *out; /* where the buffers are */
    double wrong;   /* elements so far, of all ranks */
    double bus;     /* sum of bus bandwidths */
    int lines;
};

/* --- buffers */

static int buffer_open(struct bench *b, size_t bytes, void **ret, struct err *e)
{
    if (b->device)
        return b->device->ops->alloc(b->device, bytes, ret, e);
    *ret = calloc(1, bytes);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for buffers of %zu bytes", bytes);
}

static void buffer_close(struct bench *b, void *p)
{
    if (p && b->device)
        b->device->ops->release(b->device, p);
    else
        free(p);
}

static int upload(struct bench *b, void *to, size_t bytes, struct err *e)
{
    if (b->device)
        return b->device->ops->upload(b->device, to, b->host, bytes, e);
    memcpy(to, b->host, bytes);
    return 0;
}

static int download(struct bench *b, const void *from, size_t bytes, struct err *e)
{
    if (b->device)
        return b->device->ops->download(b->device, b->host, from, bytes, e);
    memcpy(b->host, from, bytes);
    return 0;
}

/* --- one call */

static int call_once(struct bench *b, const struct known *k, struct err *e)
{
    const struct comm_ops *ops = b->comm->ops;
    const size_t in = known_in(k), out = known_out(k), elem = dtype_size(k->type);
    switch (k->call) {
    case KNOWN_ALL_REDUCE:
        return ops->all_reduce(b->comm, COMM_GRADIENTS, b->in, in, k->type, k->op, b->stream, e);
    case KNOWN_ALL_GATHER:
        return ops->all_gather(b->comm, COMM_GRADIENTS, b->in, b->out, in * elem, b->stream, e);
    case KNOWN_REDUCE_SCATTER:
        return ops->reduce_scatter(b->comm, COMM_GRADIENTS, b->in, b->out, out, k->type, b->stream, e);
    default:
        return ops->broadcast(b->comm, COMM_GRADIENTS, b->in, in * elem, k->root, b->stream, e);
    }
}

static bool in_place(const struct known *k)
{
    return k->call == KNOWN_ALL_REDUCE || k->call == KNOWN_BROADCAST;
}

/* The host waits; errors of what was enqueued come out. */
static int settle(struct bench *b, struct err *e)
{
    if (b->device)
        TRY(b->device->ops->sync(b->device, e));
    return b->comm->ops->check ? b->comm->ops->check(b->comm, e) : 0;
}

static int compare(struct bench *b, const struct known *k, double *ret_wrong, struct err *e)
{
    const size_t elem = dtype_size(k->type);
    known_fill(k, b->host);
    TRY(upload(b, b->in, known_in(k) * elem, e));
    TRY(call_once(b, k, e));
    TRY(settle(b, e));
    TRY(download(b, in_place(k) ? b->in : b->out, known_out(k) * elem, e));
    *ret_wrong = (double)known_wrong(k, b->host);
    return b->comm->ops->all_reduce(b->comm, COMM_CONTROL, ret_wrong, 1, DT_F64, COMM_SUM, NULL, e);
}

/* Seconds a call, of the slowest rank. */
static int measure(struct bench *b, const struct known *k, double *ret, struct err *e)
{
    for (int64_t i = 0; i < b->o->warmup; i++)
        TRY(call_once(b, k, e));
    TRY(settle(b, e));
    TRY(b->comm->ops->barrier(b->comm, COMM_CONTROL, e));
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < b->o->iters; i++)
        TRY(call_once(b, k, e));
    TRY(settle(b, e));
    *ret = (double)(clock_ns() - start) / 1e9 / (double)b->o->iters;
    return b->comm->ops->all_reduce(b->comm, COMM_CONTROL, ret, 1, DT_F64, COMM_MAX, NULL, e);
}

/* --- the table */

static void header(const struct bench *b)
{
    if (b->comm->rank != 0)
        return;
    printf("# %s, %d ranks, buffers in %s memory\n", b->comm->ops->name, b->comm->world,
           b->device ? "the GPU's" : "host");
    printf("#%-15s %12s %12s %9s %6s %5s %10s %8s %8s %7s\n", " call", "size", "count", "type", "redop", "root", "time",
           "algbw", "busbw", "#wrong");
    printf("#%-15s %12s %12s %9s %6s %5s %10s %8s %8s %7s\n", "", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)",
           "(GB/s)", "");
}

static const char *type_name(enum dtype t)
{
    for (int i = 0; i < NTYPES; i++)
        if (types[i].type == t)
            return types[i].name;
    return "?";
}

static void line(struct bench *b, const struct known *k, double seconds, double wrong)
{
    const double bytes = (double)(k->n * dtype_size(k->type)), algorithm = bytes / seconds / 1e9;
    const double bus = algorithm * known_bus_factor(k->call, k->world);
    const bool reduces = k->call == KNOWN_ALL_REDUCE || k->call == KNOWN_REDUCE_SCATTER;
    b->wrong += wrong;
    b->bus += bus;
    b->lines++;
    if (b->comm->rank != 0)
        return;
    printf("%-16s %12.0f %12zu %9s %6s %5d %10.2f %8.3f %8.3f %7.0f\n", known_call_name(k->call), bytes, k->n,
           type_name(k->type), reduces ? redops[k->op] : "none", k->call == KNOWN_BROADCAST ? k->root : -1,
           seconds * 1e6, algorithm, bus, wrong);
    fflush(stdout);
}

static int sizes(struct bench *b, struct known *k, struct err *e)
{
    const size_t elem = dtype_size(k->type), world = (size_t)k->world;
    const bool shared = !in_place(k);
    size_t last = 0;
    for (int64_t bytes = b->o->least; bytes <= b->o->most; bytes *= b->o->factor) {
        double seconds = 0, wrong = 0;
        k->n = (size_t)bytes / elem;
        if (shared)
            k->n -= k->n % world;
        if (k->n == 0)
            k->n = shared ? world : 1;
        if (k->n == last)
            continue;
        last = k->n;
        TRY(compare(b, k, &wrong, e));
        TRY(measure(b, k, &seconds, e));
        line(b, k, seconds, wrong);
    }
    return 0;
}

static int table(struct bench *b, struct err *e)
{
    const struct options *o = b->o;
    header(b);
    for (int c = 0; c < KNOWN_CALL_COUNT; c++)
        for (int t = 0; t < NTYPES; t++)
            for (int op = 0; op < NREDOPS; op++) {
                struct known k = {.call = (enum known_call)c,
                                  .type = types[t].type,
                                  .op = (enum comm_op)op,
                                  .rank = b->comm->rank,
                                  .world = b->comm->world,
                                  .root = b->comm->world - 1};
                const bool sums_only = c != KNOWN_ALL_REDUCE;
                if ((o->call && o->call != c + 1) || (o->type && o->type != t + 1) ||
                    (sums_only ? op != COMM_SUM : o->redop && o->redop != op + 1))
                    continue;
                TRY(sizes(b, &k, e));
            }
    return 0;
}

/* --- the ranks */

static int open_ranks(struct bench *b, struct err *e)
{
    struct comm_options o = {.name = "bench", .timeout_ms = (int64_t)(b->o->timeout * 1000)};
    TRY(env_contract_read(&b->env, e));
    o.rank = (int)b->env.rank;
    o.world = (int)b->env.world_size;
    if (o.world > KNOWN_WORLD_MAX)
        return err_set(e, ERR_USAGE, "%d ranks: results are known for up to %d", o.world, KNOWN_WORLD_MAX);
    if (b->o->device != DEVICE_HOST) {
        const struct device_options d = {.threads = 1,
                                         .choice = {.local_rank = (int)b->env.local_rank,
                                                    .local_world = (int)b->env.local_world_size,
                                                    .list = b->o->gpus,
                                                    .oversubscribe = b->o->oversubscribe}};
        TRY(device_open(&b->device, "cuda", &d, e));
        b->stream = b->device->ops->async->compute(b->device);
        o.device = b->device;
        const struct cuda_module *m = cuda_module(e);
        o.nccl = m ? m->nccl : NULL;
    }
    TRY(meet_open(&b->meet, &b->env, o.timeout_ms, e));
    o.store = b->meet.store;
    TRY(comm_open(&b->comm, b->o->comm, &o, e));
    /* The smallest size may be rounded up to an element a rank. */
    const size_t bytes = (size_t)b->o->most + (size_t)o.world * 8;
    TRY(buffer_open(b, bytes, &b->in, e));
    TRY(buffer_open(b, bytes, &b->out, e));
    b->host = calloc(1, bytes);
    return b->host ? 0 : err_set(e, -ENOMEM, "no memory for buffers of %zu bytes", bytes);
}

static void close_ranks(struct bench *b, bool failed)
{
    if (b->comm && failed)
        b->comm->ops->abort(b->comm);
    if (b->comm)
        b->comm->ops->close(b->comm);
    meet_close(&b->meet, failed ? 0 : LEAVE_MS);
    free(b->host);
    buffer_close(b, b->in);
    buffer_close(b, b->out);
    if (b->device)
        b->device->ops->close(b->device);
}

static int run(const struct arg_program *program, int argc, char **argv)
{
    struct options o = {0};
    struct bench b = {.o = &o};
    struct arg_result args = {0};
    struct err e;
    int rc = args_parse(program, argc, argv, &o, &args, &e);
    if (rc == 0 && args_answer(program, "trainer " CRUN_VERSION, &o, &args, stdout))
        return EXIT_OK;
    if (rc == 0 && o.least > o.most)
        rc =
            err_set(&e, ERR_USAGE, "--min-bytes %lld is above --max-bytes %lld", (long long)o.least, (long long)o.most);
    if (rc == 0) {
        rc = open_ranks(&b, &e);
        if (rc == 0)
            rc = table(&b, &e);
        if (rc == 0 && b.comm->rank == 0)
            printf("# Out of bounds values : %.0f %s\n# Avg bus bandwidth    : %g\n", b.wrong,
                   b.wrong > 0 ? "FAILED" : "OK", b.lines ? b.bus / b.lines : 0);
        close_ranks(&b, rc < 0);
    }
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", program->name, e.text);
    return rc < 0 ? exit_code_of(rc) : b.wrong > 0 ? EXIT_WRONG : EXIT_OK;
}

int comm_bench_main(int argc, char **argv)
{
    return run(&bench_program, argc, argv);
}

int comm_test_main(int argc, char **argv)
{
    struct arg_spec specs[sizeof bench_specs / sizeof *bench_specs];
    struct arg_program program = test_program;
    memcpy(specs, bench_specs, sizeof specs);
    for (struct arg_spec *s = specs; s->name; s++)
        for (size_t i = 0; i < sizeof test_defaults / sizeof *test_defaults; i++)
            if (strcmp(s->name, test_defaults[i].name) == 0)
                s->def = test_defaults[i].def;
    program.specs = specs;
    return run(&program, argc, argv);
}
