/* Products of matrices of a model's step, each by itself: linear layers, with weights as oneDNN likes them best, and
 * the products of attention as the cpu device cuts them: blocks of queries, a thread for a sample and head. Data is in
 * the cache or not as it comes; what lies between products (softmax, packing, biases' gradients) is left out. */
#ifndef CRUN_TESTS_BENCH_PRODUCTS_H
#define CRUN_TESTS_BENCH_PRODUCTS_H

#include "worker/device/cpu/dnnl_wrap.h"
#include "worker/program/program.h"

struct err;

enum { PRODUCTS_MAX = 256, PRODUCTS_THREADS = 64 };

struct product {
    const char *name;
    struct dnn_matmul m;
    int count; /* in a step */
    int runs;  /* times that each thread runs it by itself; 0: once, by all threads together */
    struct dnn_kernel *kernel[PRODUCTS_THREADS];
    double best; /* seconds of all runs; 0: not run yet */
};

struct products {
    struct dnn *dnn;
    int threads, n;
    struct product at[PRODUCTS_MAX];
};

/* Add those of op i of p, if it has any. */
int products_add(struct products *s, const struct program *p, int i, int batch, enum dtype type, struct err *e);
/* Run product i. *ret_seconds: of all its runs. */
int products_run(struct products *s, int i, double *ret_seconds, struct err *e);
void products_print(const struct products *s);
void products_close(struct products *s);

#endif
