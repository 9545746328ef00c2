/* Each size of each call and type: fill, call, compare; then calls in a row under the clock. The slowest rank's time
 * counts; rank 0 prints nccl-tests' columns. */
#include "worker/cli/comm_table.h"

#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/err.h"

struct table {
    struct comm_ranks *b;
    double wrong; /* elements so far, of all ranks */
    double bus;   /* sum of bus bandwidths */
    int rows;
};

static int call_once(struct comm_ranks *b, const struct known *k, struct err *e)
{
    return known_run(k, b->group, COMM_GRADIENTS, b->in, b->out, b->stream, e);
}

static int compare(struct comm_ranks *b, const struct known *k, double *ret_wrong, struct err *e)
{
    const size_t elem = dtype_size(k->type);
    known_fill(k, b->host);
    TRY(comm_ranks_upload(b, b->in, known_in(k) * elem, e));
    TRY(call_once(b, k, e));
    TRY(comm_ranks_settle(b, e));
    TRY(comm_ranks_download(b, known_in_place(k->call) ? b->in : b->out, known_out(k) * elem, e));
    *ret_wrong = (double)known_wrong(k, b->host);
    return comm_ranks_agree(b, ret_wrong, COMM_SUM, e);
}

/* Seconds a call, of the slowest rank. */
static int measure(struct comm_ranks *b, const struct known *k, double *ret, struct err *e)
{
    for (int64_t i = 0; i < b->o->warmup; i++)
        TRY(call_once(b, k, e));
    TRY(comm_ranks_settle(b, e));
    TRY(b->all->ops->barrier(b->all, COMM_CONTROL, e));
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < b->o->iters; i++)
        TRY(call_once(b, k, e));
    TRY(comm_ranks_settle(b, e));
    *ret = (double)(clock_ns() - start) / 1e9 / (double)b->o->iters;
    return comm_ranks_agree(b, ret, COMM_MAX, e);
}

static void print_header(const struct comm_ranks *b)
{
    if (b->all->rank != 0)
        return;
    printf("# %s, %d ranks", b->all->ops->name, b->all->world);
    if (b->group != b->all)
        printf(" in groups of %d", b->group->world);
    printf(", buffers in %s memory\n", b->device ? "the GPU's" : "host");
    printf("#%-15s %12s %12s %9s %6s %5s %10s %8s %8s %7s\n", " call", "size", "count", "type", "redop", "root", "time",
           "algbw", "busbw", "#wrong");
    printf("#%-15s %12s %12s %9s %6s %5s %10s %8s %8s %7s\n", "", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)",
           "(GB/s)", "");
}

static void add_row(struct table *t, const struct known *k, double seconds, double wrong)
{
    const double bytes = (double)(k->n * dtype_size(k->type)), algorithm = bytes / seconds / 1e9;
    const double bus = algorithm * known_bus_factor(k->call, k->world);
    char name[32];
    t->wrong += wrong;
    t->bus += bus;
    t->rows++;
    if (t->b->all->rank != 0)
        return;
    snprintf(name, sizeof name, "%s%s", known_call_name(k->call), k->uneven ? "_v" : "");
    printf("%-16s %12.0f %12zu %9s %6s %5d %10.2f %8.3f %8.3f %7.0f\n", name, bytes, k->n, comm_type_name(k->type),
           known_reduces(k->call) ? comm_redop_name(k->op) : "none", known_has_root(k->call) ? k->root : -1,
           seconds * 1e6, algorithm, bus, wrong);
    fflush(stdout);
}

/* Equal parts: a multiple of the ranks. At least an element. */
static size_t count_of(const struct known *k, size_t bytes)
{
    const size_t n = bytes / dtype_size(k->type), unit = known_has_parts(k->call) ? (size_t)k->world : 1;
    const size_t whole = k->uneven ? n : n - n % unit;
    return whole > 0 ? whole : unit;
}

static int add_sizes(struct table *t, struct known *k, struct err *e)
{
    const struct comm_bench_options *o = t->b->o;
    size_t last = 0;
    for (int64_t bytes = o->least; bytes <= o->most; bytes *= o->factor) {
        double seconds = 0, wrong = 0;
        k->n = count_of(k, (size_t)bytes);
        if (k->n == last)
            continue;
        last = k->n;
        TRY(compare(t->b, k, &wrong, e));
        TRY(measure(t->b, k, &seconds, e));
        add_row(t, k, seconds, wrong);
    }
    return 0;
}

/* choice: 0: all, else one more than the number. */
static bool is_chosen(int choice, int number)
{
    return choice == 0 || choice == number + 1;
}

static int add_types_and_ops(struct table *t, enum known_call call, bool uneven, struct err *e)
{
    const struct comm_bench_options *o = t->b->o;
    const struct comm *c = t->b->group;
    for (int i = 0; i < COMM_TYPE_COUNT; i++)
        for (int op = 0; op < COMM_REDOP_COUNT; op++) {
            struct known k = {.call = call,
                              .type = comm_type_of(i),
                              .op = (enum comm_op)op,
                              .rank = c->rank,
                              .world = c->world,
                              .root = o->root < 0 ? c->world - 1 : (int)o->root,
                              .uneven = uneven};
            if (is_chosen(o->type, i) && (known_reduces(call) ? is_chosen(o->redop, op) : op == COMM_SUM))
                TRY(add_sizes(t, &k, e));
        }
    return 0;
}

int comm_table(struct comm_ranks *b, double *ret_wrong, struct err *e)
{
    struct table t = {.b = b};
    print_header(b);
    for (int call = 0; call < KNOWN_CALL_COUNT; call++)
        for (int uneven = 0; uneven < COMM_PARTS_COUNT; uneven++)
            if (is_chosen(b->o->call, call) &&
                (known_has_parts((enum known_call)call) ? is_chosen(b->o->parts, uneven) : !uneven))
                TRY(add_types_and_ops(&t, (enum known_call)call, uneven, e));
    if (b->all->rank == 0)
        printf("# Out of bounds values : %.0f %s\n# Avg bus bandwidth    : %g\n", t.wrong,
               t.wrong > 0 ? "FAILED" : "OK", t.rows ? t.bus / t.rows : 0);
    *ret_wrong = t.wrong;
    return 0;
}
