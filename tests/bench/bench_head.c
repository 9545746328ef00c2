/* The least that a rank's part of a split last layer takes: its three products by oneDNN alone, and the bytes of its
 * update and of its loss at the speed at which this machine copies.
 *   bench_head [rows=64] [features=512] [classes=25000] [repeat=9]
 * rows: of all ranks together; classes: of this rank. Prints medians in seconds: products, bytes. Start as many at once
 * as there are ranks. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/bench/options.h"
#include "worker/device/cpu/dnnl_wrap.h"
#include "worker/device/host_common.h"

enum { REPEAT_MAX = 100, PRODUCTS = 3 };

struct layer {
    size_t n, c, k;
    float *x, *w, *y, *dx, *dw, *m;
    struct dnn *dnn;
    struct dnn_kernel *kernels[PRODUCTS];
};

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *take(size_t elements, struct err *e)
{
    void *p;
    if (host_alloc(elements * sizeof(float), &p, e) < 0) {
        fprintf(stderr, "bench_head: %s\n", e->text);
        exit(1);
    }
    float *f = p;
    for (size_t i = 0; i < elements; i++)
        f[i] = (float)(i % 13) * 0.01f;
    return f;
}

/* A product of the layer, c = a . b. */
static int prepare(struct layer *l, int which, const struct dnn_matmul *m, float *a, float *b, float *c, struct err *e)
{
    struct dnn_kernel **k = &l->kernels[which];
    TRY(dnn_matmul_create(l->dnn, m, k, e));
    void *scratch = take(dnn_bytes(*k, DNN_SCRATCH) / sizeof(float) + 1, e);
    TRY(dnn_bind(*k, DNN_SRC, a, e));
    TRY(dnn_bind(*k, DNN_WEIGHTS, b, e));
    TRY(dnn_bind(*k, DNN_DST, c, e));
    return dnn_bind(*k, DNN_SCRATCH, scratch, e);
}

static int prepare_all(struct layer *l, struct err *e)
{
    const int64_t n = (int64_t)l->n, c = (int64_t)l->c, k = (int64_t)l->k;
    const struct dnn_matmul y = {.m = n, .n = k, .k = c, .a = {c, 1}, .b = {1, c}, .c = {k, 1}},
                            dx = {.m = n, .n = c, .k = k, .a = {k, 1}, .b = {c, 1}, .c = {c, 1}},
                            dw = {.m = k, .n = c, .k = n, .a = {1, k}, .b = {c, 1}, .c = {c, 1}};
    TRY(dnn_open(&l->dnn, e));
    TRY(prepare(l, 0, &y, l->x, l->w, l->y, e));
    TRY(prepare(l, 1, &dx, l->y, l->w, l->dx, e));
    return prepare(l, 2, &dw, l->y, l->x, l->dw, e);
}

static int products(struct layer *l, struct err *e)
{
    for (int i = 0; i < PRODUCTS; i++)
        TRY(dnn_run(l->kernels[i], e));
    return 0;
}

/* As many bytes as SGD with momentum reads and writes (w, g, m; w, m) and the loss (z twice; z, dz), as copies: each
 * moves two. */
static void bytes(struct layer *l)
{
    const size_t layer = l->c * l->k, logits = l->n * l->k;
    memcpy(l->m, l->w, layer * sizeof(float));
    memcpy(l->dw, l->m, layer * sizeof(float));
    memcpy(l->w, l->dw, layer / 2 * sizeof(float));
    memcpy(l->dw, l->y, (logits < layer ? logits : layer) * sizeof(float));
    memcpy(l->y, l->dw, (logits < layer ? logits : layer) * sizeof(float));
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct layer l = {.n = (size_t)number(argc, argv, "rows", "64"),
                      .c = (size_t)number(argc, argv, "features", "512"),
                      .k = (size_t)number(argc, argv, "classes", "25000")};
    const int repeat = number(argc, argv, "repeat", "9");
    double product[REPEAT_MAX], copy[REPEAT_MAX];
    omp_set_num_threads(1);
    l.x = take(l.n * l.c, &e);
    l.dx = take(l.n * l.c, &e);
    l.y = take(l.n * l.k, &e);
    l.w = take(l.k * l.c, &e);
    l.dw = take(l.k * l.c, &e);
    l.m = take(l.k * l.c, &e);
    if (prepare_all(&l, &e) < 0) {
        fprintf(stderr, "bench_head: %s\n", e.text);
        return 1;
    }
    for (int i = 0; i < repeat && i < REPEAT_MAX; i++) {
        const int64_t begin = clock_ns();
        if (products(&l, &e) < 0) {
            fprintf(stderr, "bench_head: %s\n", e.text);
            return 1;
        }
        const int64_t between = clock_ns();
        bytes(&l);
        product[i] = (double)(between - begin) / 1e9;
        copy[i] = (double)(clock_ns() - between) / 1e9;
    }
    qsort(product, (size_t)repeat, sizeof *product, compare);
    qsort(copy, (size_t)repeat, sizeof *copy, compare);
    printf("%.6f %.6f\n", product[repeat / 2], copy[repeat / 2]);
    return 0;
}
