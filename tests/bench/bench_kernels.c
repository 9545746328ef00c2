/* What oneDNN alone needs for a training step: every convolution of a model, forward, by data and by
 * weights, each by itself, in the layouts that oneDNN likes best, data in cache or not as it comes, and the products of
 * linear layers and attention (products.h). Convolutions in groups are left out. Equal shapes are run once and counted.
 *   bench_kernels [arch=resnet50] [image=224] [batch=16] [threads=2] [type=f32|bf16] [repeat=5] [table=1] [serve=0]
 *                 [compare=0] [product=0]
 * Prints a row per shape and direction (best of `repeat`) and their sum. serve=1: at the start and on each line of
 * standard input all are run, and seconds are printed: of the fastest pass over all kernels in this turn, and of the
 * sum of each kernel's fastest of all turns: for taking turns with others. compare=1: beside each convolution those in
 * other layouts, with the copies of its activations that these would need, and what a choice by time would gain: every
 * other run chooses, the runs between them judge (repeat is at least 2), and the first kernel beside itself in the same
 * halves says how much of that is noise. product=1: tensors are NHWC, and beside each backward convolution is the
 * product of matrices that could take its place, with what it copies, and in the end the ratio of those that do. */
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/bench/model_input.h"
#include "tests/bench/options.h"
#include "tests/bench/products.h"
#include "worker/device/cpu/dnnl_wrap.h"
#include "worker/device/cpu/product.h"
#include "worker/device/host_common.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

enum { MAX_KERNELS = 1024, MAX_REPEAT = 100 };

struct timed {
    struct dnn_shape shape;
    enum dnn_dir dir;
    struct dnn_kernel *kernel;
    struct dnn_kernel *copies[2]; /* of x and y into this kernel's layouts; NULL: they are the first kernel's */
    void *at[DNN_SLOTS];
    void *whole;    /* of a product: x as it lies; NULL: that is SRC */
    int count;      /* 0: another layout's, of the shape before it */
    double best[2]; /* seconds, of the even runs and of the odd ones; 0: not run yet */
};

struct bench {
    struct dnn *dnn;
    struct timed kernels[MAX_KERNELS];
    struct products products; /* none where convolutions are compared */
    int n;
    int batch, repeat, threads;
    bool compare, product;
    enum dtype type;
    void *memory[DNN_SLOTS], *spare; /* compare: of all kernels together, and of what copies write */
};

static double best_of(const struct timed *t)
{
    return t->best[1] > 0 && t->best[1] < t->best[0] ? t->best[1] : t->best[0];
}

static struct dnn_shape shape_of(const struct bench *b, const struct program *p, const struct op *op)
{
    const struct op *f = op->fwd >= 0 ? &p->ops[op->fwd] : op;
    const struct tensor *x = &p->tensors[f->in[0]], *y = &p->tensors[f->out];
    struct dnn_shape s;
    memset(&s, 0, sizeof s); /* compared as bytes */
    s.bias = op->param[1] >= 0;
    s.training = true;
    s.n = b->batch;
    s.c = x->c;
    s.h = x->h;
    s.w = x->w;
    s.k = y->c;
    s.oh = y->h;
    s.ow = y->w;
    s.kh = f->kh;
    s.kw = f->kw;
    s.sh = f->sh;
    s.sw = f->sw;
    s.ph = f->ph;
    s.pw = f->pw;
    s.src_type = s.dst_type = b->type;
    return s;
}

/* Memory lives as long as the process: of each kernel by itself, or, with many to compare, of all together. */
static int bind_slot(struct bench *b, enum dnn_slot slot, struct err *e)
{
    size_t most = 0;
    void *memory = NULL;
    for (int i = 0; i < b->n; i++)
        most = dnn_bytes(b->kernels[i].kernel, slot) > most ? dnn_bytes(b->kernels[i].kernel, slot) : most;
    for (int i = 0; i < b->n; i++) {
        struct dnn_kernel *k = b->kernels[i].kernel;
        const size_t bytes = b->compare ? most : dnn_bytes(k, slot);
        if (!dnn_bytes(k, slot))
            continue;
        if (!memory || !b->compare) {
            TRY(host_alloc(bytes, &memory, e));
            memset(memory, 0x3d, bytes); /* numbers of ordinary size in both types */
        }
        TRY(dnn_bind(k, slot, memory, e));
        b->kernels[i].at[slot] = memory;
    }
    b->memory[slot] = memory;
    return 0;
}

/* Of a tensor of the first kernel into the layout of another one; a gradient that is written is copied the other way,
 * which takes as long. */
static int add_copy(const struct bench *b, const struct timed *first, struct timed *t, enum dnn_slot slot,
                    struct err *e)
{
    const bool x = slot == DNN_SRC;
    const struct dnn_shape *s = &t->shape;
    const enum dtype type = x ? s->src_type : s->dst_type;
    const struct layout from = {s->n, x ? s->c : s->k, x ? s->h : s->oh, x ? s->w : s->ow,
                                dnn_block(first->kernel, slot)};
    struct layout to = from;
    to.b = dnn_block(t->kernel, slot);
    if (layout_same(&from, &to))
        return 0;
    struct dnn_kernel **copy = &t->copies[!x];
    TRY(dnn_reorder_create(b->dnn, &from, type, &to, type, copy, e));
    TRY(dnn_bind(*copy, DNN_SRC, b->memory[slot], e));
    TRY(dnn_bind(*copy, DNN_DST, b->spare, e));
    return dnn_bind(*copy, DNN_SCRATCH, b->memory[DNN_SCRATCH], e);
}

/* The kernels at `from` up to the one returned are of one shape, the first one foremost. */
static int group_end(const struct bench *b, int from)
{
    int end = from + 1;
    while (end < b->n && !b->kernels[end].count)
        end++;
    return end;
}

static int add_copies(struct bench *b, struct err *e)
{
    size_t most = 1;
    for (int i = 0; i < b->n; i++)
        for (int slot = DNN_SRC; slot <= DNN_DST; slot++) {
            const size_t bytes = dnn_bytes(b->kernels[i].kernel, (enum dnn_slot)slot);
            most = bytes > most ? bytes : most;
        }
    TRY(host_alloc(most, &b->spare, e));
    for (int first = 0; first < b->n; first = group_end(b, first))
        for (int i = first + 1; i < group_end(b, first); i++) {
            TRY(add_copy(b, &b->kernels[first], &b->kernels[i], DNN_SRC, e));
            TRY(add_copy(b, &b->kernels[first], &b->kernels[i], DNN_DST, e));
        }
    return 0;
}

static int add_one(struct bench *b, const struct dnn_shape *s, enum dnn_dir dir, const int layouts[2], int count,
                   struct err *e)
{
    struct dnn_kernel *forward = NULL;
    struct timed *t = &b->kernels[b->n];
    if (b->n == MAX_KERNELS)
        return err_set(e, -E2BIG, "more than %d kernels", MAX_KERNELS);
    *t = (struct timed){.shape = *s, .dir = dir, .count = count};
    if (dir != DNN_FORWARD)
        TRY(dnn_kernel_create(b->dnn, s, DNN_FORWARD, layouts[0], layouts[1], NULL, &forward, e));
    const int rc = dnn_kernel_create(b->dnn, s, dir, layouts[0], layouts[1], forward, &t->kernel, e);
    dnn_kernel_destroy(forward);
    TRY(rc);
    b->n++;
    return 0;
}

/* In blocks, channels last, planes; those that oneDNN has nothing fast for are left out. */
static int add_others(struct bench *b, const struct dnn_shape *s, enum dnn_dir dir, struct err *e)
{
    const int lanes = dnn_lanes(),
              layouts[][2] = {{lanes, lanes}, {LAYOUT_PLAIN, lanes}, {s->c, s->k}, {LAYOUT_PLAIN, LAYOUT_PLAIN}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const int rc = add_one(b, s, dir, layouts[i], 0, e);
        if (rc < 0 && rc != -ENOTSUP)
            return rc;
        if (rc == 0 && dnn_reference(b->kernels[b->n - 1].kernel))
            dnn_kernel_destroy(b->kernels[--b->n].kernel);
    }
    return 0;
}

static int add_product(struct bench *b, const struct dnn_shape *s, enum dnn_dir dir, struct err *e)
{
    struct timed *t = &b->kernels[b->n];
    if (b->n == MAX_KERNELS)
        return err_set(e, -E2BIG, "more than %d kernels", MAX_KERNELS);
    *t = (struct timed){.shape = *s, .dir = dir};
    const int rc = dnn_product_create(b->dnn, s, dir, &t->kernel, e);
    if (rc == -ENOTSUP)
        return 0;
    TRY(rc);
    b->n++;
    if (product_is_whole(s))
        return 0;
    const size_t bytes = (size_t)s->n * (size_t)(s->h * s->w * s->c) * dtype_size(s->src_type);
    TRY(host_alloc(bytes, &t->whole, e));
    memset(t->whole, 0x3d, bytes);
    return 0;
}

static int add(struct bench *b, const struct dnn_shape *s, enum dnn_dir dir, struct err *e)
{
    const int any[2] = {b->product && s->c > 3 ? s->c : LAYOUT_ANY, b->product && s->c > 3 ? s->k : LAYOUT_ANY};
    for (int i = 0; i < b->n; i++)
        if (b->kernels[i].count && b->kernels[i].dir == dir && memcmp(&b->kernels[i].shape, s, sizeof *s) == 0) {
            b->kernels[i].count++;
            return 0;
        }
    TRY(add_one(b, s, dir, any, 1, e));
    if (b->product)
        return s->c > 3 ? add_product(b, s, dir, e) : 0;
    return b->compare ? add_others(b, s, dir, e) : 0;
}

static int collect(struct bench *b, const struct program *p, struct err *e)
{
    for (int i = 0; i < p->nops; i++) {
        const struct op *op = &p->ops[i];
        struct dnn_shape s;
        if (!b->compare && !b->product)
            TRY(products_add(&b->products, p, i, b->batch, b->type, e));
        if (p->ops[op->fwd >= 0 ? op->fwd : i].groups > 1)
            continue;
        switch (op->kind) {
        case OP_CONV:
            s = shape_of(b, p, &p->ops[i]);
            TRY(add(b, &s, DNN_FORWARD, e));
            break;
        case OP_CONV_BWD_DATA:
            s = shape_of(b, p, &p->ops[i]);
            TRY(add(b, &s, DNN_BWD_DATA, e));
            break;
        case OP_CONV_BWD_PARAM:
            s = shape_of(b, p, &p->ops[i]);
            TRY(add(b, &s, DNN_BWD_WEIGHTS, e));
            break;
        default:
            break;
        }
    }
    return 0;
}

static int run_one(const struct bench *b, struct timed *t, double *ret_seconds, struct err *e)
{
    const int64_t start = clock_ns();
    for (int i = 0; i < 2; i++)
        if (t->copies[i])
            TRY(dnn_run(t->copies[i], e));
    if (t->whole && t->dir == DNN_BWD_WEIGHTS)
        product_unfold(&t->shape, t->whole, t->at[DNN_SRC], b->threads);
    TRY(dnn_run(t->kernel, e));
    if (t->whole && t->dir == DNN_BWD_DATA)
        product_spread(&t->shape, t->at[DNN_SRC], t->whole, b->threads);
    *ret_seconds = (double)(clock_ns() - start) * 1e-9;
    return 0;
}

/* Kernels of one shape take turns. */
static int run_group(struct bench *b, int from, int end, double passes[MAX_REPEAT], struct err *e)
{
    for (int r = -1; r < b->repeat; r++) /* the first run wakes the threads, warms the caches */
        for (int i = from; i < end; i++) {
            struct timed *t = &b->kernels[i];
            double took, *best = &t->best[r & 1];
            TRY(run_one(b, t, &took, e));
            if (r < 0)
                continue;
            if (*best <= 0 || took < *best)
                *best = took;
            passes[r] += took * t->count;
        }
    return 0;
}

/* *ret_pass: seconds of all kernels, as often as the model has them, at the pace of the fastest of this call's
 * repetitions as a whole; *ret_sum: with each kernel at the pace of its own fastest run, in this call or an earlier
 * one. */
static int run_all(struct bench *b, double *ret_pass, double *ret_sum, struct err *e)
{
    double passes[MAX_REPEAT + 1] = {0}; /* the last of runs that do not count */
    *ret_sum = 0;
    for (int i = 0; i < b->n; i = group_end(b, i))
        TRY(run_group(b, i, group_end(b, i), passes, e));
    for (int i = 0; i < b->n; i++)
        *ret_sum += best_of(&b->kernels[i]) * b->kernels[i].count;
    for (int i = 0; i < b->products.n; i++) {
        for (int r = -1; r < b->repeat; r++) {
            double took;
            TRY(products_run(&b->products, i, &took, e));
            passes[r < 0 ? MAX_REPEAT : r] += took * b->products.at[i].count;
        }
        *ret_sum += b->products.at[i].best * b->products.at[i].count;
    }
    *ret_pass = passes[0];
    for (int r = 1; r < b->repeat; r++)
        *ret_pass = passes[r] < *ret_pass ? passes[r] : *ret_pass;
    return 0;
}

static void print_gain(const struct bench *b)
{
    double again = 0, first = 0, chosen = 0;
    for (int i = 0; i < b->n; i = group_end(b, i)) {
        const struct timed *f = &b->kernels[i], *c = f;
        for (int k = i + 1; k < group_end(b, i); k++)
            c = b->kernels[k].best[0] < c->best[0] ? &b->kernels[k] : c;
        again += f->count * f->best[0];
        first += f->count * f->best[1];
        chosen += f->count * c->best[1];
    }
    printf(
        "chosen by time: %.3f ms, copies counted; the first kernels take %.3f x as long (beside themselves %.3f x)\n",
        1e3 * chosen, first / chosen, again / first);
}

/* Of those gradients that a plan computes as products. */
static void print_products(const struct bench *b)
{
    double convolutions = 0, products = 0;
    for (int i = 0; i + 1 < b->n; i++) {
        const struct timed *c = &b->kernels[i], *p = c + 1; /* beside each other, where there is a product */
        if (c->count == 0 || p->count > 0 || !product_pays(&c->shape, c->dir, dnn_has_amx()))
            continue;
        convolutions += best_of(c) * c->count;
        products += best_of(p) * c->count;
    }
    printf("gradients that plans compute as products: %.3f ms; oneDNN's convolutions take %.2f x as long\n",
           1e3 * products, products > 0 ? convolutions / products : 0);
}

static void print_table(const struct bench *b)
{
    static const char *const names[] = {"forward", "by data", "by weights"};
    for (int i = 0; i < b->n; i++) {
        const struct timed *t = &b->kernels[i];
        const struct dnn_shape *s = &t->shape;
        double flop = 2.0 * s->n * s->k * s->c * s->oh * s->ow * s->kh * s->kw;
        printf("  %9.3f ms x %d  %6.0f GF/s  %-10s %4d x %3dx%-3d -> %4d x %3dx%-3d by %dx%d/%d  %s\n",
               1e3 * best_of(t), t->count, flop / best_of(t) * 1e-9, names[t->dir], s->c, s->h, s->w, s->k, s->oh,
               s->ow, s->kh, s->kw, s->sh, dnn_implementation(t->kernel));
    }
}

static int run(struct bench *b, struct model_options *m, bool table, bool serve, struct err *e)
{
    struct program *p;
    double pass, sum;
    TRY(model_input(m, e));
    TRY(model_build(&p, m, e));
    TRY(dnn_open(&b->dnn, e));
    b->products.dnn = b->dnn;
    b->products.threads = b->threads;
    TRY(collect(b, p, e));
    for (int slot = 0; slot < DNN_SLOTS; slot++)
        TRY(bind_slot(b, (enum dnn_slot)slot, e));
    if (b->compare)
        TRY(add_copies(b, e));
    for (int c = '\n'; c != EOF; c = serve ? getchar() : EOF) {
        if (c != '\n')
            continue;
        TRY(run_all(b, &pass, &sum, e));
        if (serve)
            printf("%.6f %.6f\n", pass, sum);
        fflush(stdout);
    }
    if (table) {
        print_table(b);
        products_print(&b->products);
    }
    printf("bare kernels: %.3f ms a step of %d, %.2f images/s\n", 1e3 * sum, b->batch, b->batch / sum);
    if (b->compare)
        print_gain(b);
    if (b->product)
        print_products(b);
    for (int i = 0; i < b->n; i++) {
        dnn_kernel_destroy(b->kernels[i].copies[0]);
        dnn_kernel_destroy(b->kernels[i].copies[1]);
        dnn_kernel_destroy(b->kernels[i].kernel);
    }
    products_close(&b->products);
    dnn_close(b->dnn);
    program_destroy(p);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err e = {0};
    const int side = number(argc, argv, "image", "224");
    struct model_options m = {
        .arch = option(argc, argv, "arch", "resnet50"),
        .classes = 1000,
        .input = input_pictures(3, side, side, (float[4]){0.5f, 0.5f, 0.5f}, (float[4]){0.25f, 0.25f, 0.25f})};
    b.batch = number(argc, argv, "batch", "16");
    b.repeat = number(argc, argv, "repeat", "5");
    b.compare = number(argc, argv, "compare", "0");
    b.type = strcmp(option(argc, argv, "type", "f32"), "bf16") == 0 ? DT_BF16 : DT_F32;
    b.product = number(argc, argv, "product", "0");
    b.threads = number(argc, argv, "threads", "2");
    omp_set_num_threads(b.threads);
    if (b.batch < 1 || b.repeat < 1 + b.compare || b.repeat > MAX_REPEAT) {
        fprintf(stderr, "batch is at least 1, repeat %d to %d\n", 1 + b.compare, MAX_REPEAT);
        return 2;
    }
    if (run(&b, &m, number(argc, argv, "table", "1"), number(argc, argv, "serve", "0"), &e) < 0) {
        fprintf(stderr, "bench_kernels: %s\n", e.text);
        return 1;
    }
    return 0;
}
