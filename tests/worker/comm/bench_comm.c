/* Latency of a small all-reduce and bandwidth of a large one between ranks as threads over gloo. Usage: bench_comm
 * [world] */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/worker/comm/ranks.h"

struct job {
    size_t n;
    int repeat;
    enum dtype t;
};

static int reduce_many_times(struct comm *c, int rank, void *arg, struct err *e)
{
    const struct job *j = arg;
    void *buf = calloc(j->n, dtype_size(j->t));
    int rc = c->ops->barrier(c, COMM_CONTROL, e);
    for (int i = 0; i < j->repeat && rc == 0; i++)
        rc = c->ops->all_reduce(c, COMM_STATISTICS, buf, j->n, j->t, COMM_SUM, NULL, e);
    free(buf);
    return rc;
}

static double microseconds(struct ranks *w, struct job j)
{
    int64_t start = clock_ns();
    ranks_run(w, reduce_many_times, &j);
    for (int r = 0; r < w->world; r++)
        if (w->rc[r] < 0)
            fprintf(stderr, "rank %d: %s\n", r, w->err[r].text);
    return (double)(clock_ns() - start) / 1e3 / j.repeat;
}

int main(int argc, char **argv)
{
    int world = argc > 1 ? atoi(argv[1]) : 2;
    if (world < 2 || world > RANKS_MAX) {
        fprintf(stderr, "a world of %d: expected 2 to %d\n", world, RANKS_MAX);
        return 2;
    }
    struct ranks w;
    int64_t start = clock_ns();
    ranks_open(&w, "gloo", world, 30000);
    printf("open            %10.1f ms\n", (double)(clock_ns() - start) / 1e6);
    static const size_t small[] = {1, 128, 1024, 4096, 8192, 16384, 32768, 65536};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        printf("%7zu doubles %10.1f us\n", small[i], microseconds(&w, (struct job){small[i], 300, DT_F64}));
    size_t n = 45u * 1000 * 1000 / 4;
    double us = microseconds(&w, (struct job){n, 8, DT_F32});
    printf("  45 MB floats  %10.1f ms, %.2f GB/s\n", us / 1e3, 45e6 / us / 1e3);
    start = clock_ns();
    ranks_close(&w);
    printf("close           %10.1f ms\n", (double)(clock_ns() - start) / 1e6);
    return 0;
}
