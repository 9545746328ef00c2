/* Kernels of models of tokens, emulated, over sizes that conformance's small shapes do not reach: tokens that come more
 * often than a block has room for, rows of logits that a larger block reads, with padding between them; and a head
 * whose logits are made in several parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/fake_math.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/cuda/kern/kernels.h"
#include "worker/device/cuda/plan.h"

static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};

static void *take(size_t bytes, int byte)
{
    const size_t all = (bytes + 255) / 256 * 256;
    return memset(aligned_alloc(256, all), byte, all);
}

static uint32_t chance(uint32_t i)
{
    i = (i + 1) * 2654435761u;
    i = (i ^ i >> 15) * 2246822519u;
    return i ^ i >> 13;
}

/* --- gradients of a table */

/* Small whole numbers, so that sums are exact in any order and any type. often: of ten tokens so many are the same.
 * first: of the v tokens this one and those behind it are here, and others leave no trace. */
static void check_table(unsigned rows, int c, int v, int first, enum dtype type, unsigned often)
{
    const size_t n = (size_t)v * (size_t)c;
    float *tokens = take(rows * sizeof *tokens, 0), *out = take(n * sizeof *out, 0), *want = take(n * sizeof *want, 0);
    void *dy = take((size_t)rows * (size_t)c * 4, 0);
    for (unsigned r = 0; r < rows; r++) {
        tokens[r] = chance(r) % 10 < often ? 3 : (float)(chance(r + rows) % (uint32_t)v);
        for (int j = 0; j < c; j++) {
            const double x = (double)(chance(r * 31 + (uint32_t)j) % 7) - 3;
            fake_set(dy, type, (size_t)r * (size_t)c + (size_t)j, x);
            want[(size_t)tokens[r] * (size_t)c + (size_t)j] += (int)tokens[r] < first ? 0 : (float)x;
        }
    }
    for (size_t i = 0; i < n; i++) { /* what is there is added to */
        out[i] = (float)(i % 5);
        want[i] += out[i];
    }
    const struct k_embed_bwd a = {.rows = rows,
                                  .c = c,
                                  .first = first,
                                  .v = v - first,
                                  .type = type,
                                  .tokens = tokens,
                                  .dy = dy,
                                  .out = out + (size_t)first * (size_t)c};
    assert_int_equal(0, kernel_launch(KERNEL_EMBED_BWD, &a, NULL));
    for (size_t i = 0; i < n; i++)
        if (out[i] != want[i])
            fail_msg("%u rows of %d, type %d: [%zu] %g, expected %g", rows, c, type, i, (double)out[i],
                     (double)want[i]);
    free(tokens);
    free(out);
    free(want);
    free(dy);
}

static void tokens_that_come_often_are_summed_whole(void **state)
{
    (void)state;
    for (size_t y = 0; y < 3; y++)
        check_table(300, 24, 700, 0, types[y], 1);
    check_table(5000, 8, 40, 0, DT_BF16, 10); /* all the same: more than a block has room for at once */
    check_table(1100, 7, 300, 0, DT_F32, 5);
    check_table(70, 520, 11, 0, DT_F16, 3); /* three blocks for the channels */
    check_table(1100, 8, 700, 300, DT_BF16, 1);
}

/* Rows of tokens on both sides of what is here are zeros, whatever lies there. */
static void check_rows_of_table(int c, int v, int first, int here, enum dtype type)
{
    enum { ROWS = 200 };
    const size_t n = (size_t)v * (size_t)c;
    float *tokens = take(ROWS * sizeof *tokens, 0), *table = take(n * sizeof *table, 0xff);
    void *out = take((size_t)ROWS * (size_t)c * 4, 0xff);
    for (size_t i = (size_t)first * (size_t)c; i < (size_t)(first + here) * (size_t)c; i++)
        table[i] = (float)(i % 50) + 1;
    for (uint32_t r = 0; r < ROWS; r++)
        tokens[r] = (float)(chance(r) % (uint32_t)v);
    const struct k_embed a = {.rows = ROWS,
                              .c = c,
                              .first = first,
                              .v = here,
                              .type = type,
                              .tokens = tokens,
                              .table = table + (size_t)first * (size_t)c,
                              .out = out};
    assert_int_equal(0, kernel_launch(KERNEL_EMBED, &a, NULL));
    for (size_t i = 0; i < (size_t)ROWS * (size_t)c; i++) {
        const int token = (int)tokens[i / (size_t)c];
        const size_t at = (size_t)token * (size_t)c + i % (size_t)c;
        const double want = token < first || token >= first + here ? 0 : (double)(at % 50) + 1;
        assert_true(fake_get(out, type, i) == want);
    }
    free(tokens);
    free(table);
    free(out);
}

static void tokens_of_other_ranks_have_rows_of_zeros(void **state)
{
    (void)state;
    for (size_t y = 0; y < 3; y++) {
        check_rows_of_table(24, 90, 30, 31, types[y]);
        check_rows_of_table(7, 90, 61, 29, types[y]);
    }
}

/* Of floats that round: the same bits each time, though the keys are found in another order. */
static void sums_of_a_table_repeat_their_bits(void **state)
{
    enum { ROWS = 600, C = 8, V = 5 };
    float *tokens = take(ROWS * sizeof *tokens, 0), *dy = take(ROWS * C * sizeof *dy, 0),
          *out[2] = {take(V * C * sizeof **out, 0), take(V * C * sizeof **out, 0)};
    (void)state;
    for (uint32_t i = 0; i < ROWS * C; i++)
        dy[i] = (float)((double)chance(i) / 0x1p32);
    for (uint32_t r = 0; r < ROWS; r++)
        tokens[r] = (float)(chance(r) % V);
    for (int k = 0; k < 2; k++) {
        const struct k_embed_bwd a = {
            .rows = ROWS, .c = C, .type = DT_F32, .tokens = tokens, .dy = dy, .out = out[k], .v = V};
        assert_int_equal(0, kernel_launch(KERNEL_EMBED_BWD, &a, NULL));
    }
    assert_memory_equal(out[0], out[1], V * C * sizeof **out);
    free(tokens);
    free(dy);
    free(out[0]);
    free(out[1]);
}

/* --- rows of logits */

/* Padding is NaN; gradients lie where the logits were. */
static void check_rows(const struct loss_rule *rule, int classes, int stride, enum dtype type, bool in_floats,
                       float smoothing)
{
    enum { ROWS = 3 };
    const size_t ratio = sizeof(float) / dtype_size(type);
    float *z = take((size_t)(ROWS * stride) * sizeof *z, 0xff), samples[ROWS * 4], scale = 2;
    double *kept = take((size_t)(ROWS * classes) * sizeof *kept, 0);
    float *apart = take((size_t)(ROWS * stride) * sizeof *apart, 0xff);
    const int32_t labels[ROWS] = {classes - 1, -1, classes / 3};
    const struct batch_mix mix[ROWS] = {{.second = 0, .share = 0.3F}, {.second = 1, .share = 0.5F}, {.share = 0}};
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < classes; k++) {
            const float x = (float)(8 * ((double)chance((uint32_t)(r * classes + k)) / 0x1p31 - 1));
            kept[r * classes + k] = (double)x;
            z[r * stride + k] = x;
        }
    const struct k_xent a = {.n = ROWS,
                             .classes = classes,
                             .stride = (size_t)stride,
                             .grad_stride = (size_t)stride * ratio,
                             .in_floats = in_floats,
                             .grad_type = type,
                             .logits = z,
                             .labels = labels,
                             .mix = rule->weights ? NULL : mix, /* weighted rows are not mixed */
                             .smoothing = smoothing,
                             .binary = rule->binary,
                             .weights = rule->weights,
                             .total = (float)rule->total,
                             .scale = &scale,
                             .dlogits = loss_is_plain(rule) ? z : (void *)apart,
                             .samples = samples};
    assert_int_equal(0, kernel_launch(KERNEL_XENT, &a, NULL));
    for (int r = 0; r < ROWS; r++) {
        const struct host_target t = {.label = labels[r], .second = mix[r].second, .share = (double)mix[r].share};
        double metrics[METRIC_N] = {0};
        double *row = kept + r * classes;
        if (labels[r] >= 0) {
            host_xent(rule, row, classes, t, (double)smoothing, metrics);
            host_xent_backward(rule, row, classes, t, (double)smoothing, 2);
        } else {
            memset(row, 0, (size_t)classes * sizeof *row);
        }
        for (int k = 0; k < 4; k++)
            assert_true(fabs((double)samples[r * 4 + k] - metrics[k]) <= 1e-6 * fabs(metrics[k]));
        for (int k = 0; k < classes; k++) {
            const double got = fake_get(loss_is_plain(rule) ? z : apart, type,
                                        (size_t)r * (size_t)stride * ratio + (size_t)k),
                         want = row[k],
                         u = type == DT_F16    ? 0x1p-11
                             : type == DT_BF16 ? 0x1p-8
                                               : 0;
            if (!(fabs(got - want) <= u * fabs(want) + 0x1p-19 * fabs(want) + (type == DT_F16 ? 0x1p-25 : 0x1p-30)))
                fail_msg("%d classes, type %d, row %d: [%d] %g, expected %g", classes, type, r, k, got, want);
        }
    }
    free(z);
    free(kept);
    free(apart);
}

static void gradients_take_the_place_of_logits(void **state)
{
    const struct loss_rule plain = {0}, *const p = &plain;
    (void)state;
    for (size_t y = 0; y < 3; y++) {
        check_rows(p, 1001, 1024, types[y], true, 0);
        check_rows(p, 9001, 9024, types[y], true, 0.1f); /* the larger block, more than one turn */
    }
    check_rows(p, 2050, 2050, DT_F32, false, 0.1f); /* as many as there are, one at a time */
    check_rows(p, 2052, 2052, DT_F32, false, 0);
}

static void weigh(struct loss_rule *rule, float *weights, int classes)
{
    for (int k = 0; k < classes; k++) {
        weights[k] = (float)(k % 7) / 4;
        rule->total += (double)weights[k];
    }
}

/* Their gradients lie by themselves. */
static void losses_that_are_not_plain_are_those_of_the_host(void **state)
{
    float weights[1001];
    struct loss_rule binary = {.binary = true}, weighted = {.weights = weights};
    (void)state;
    weigh(&weighted, weights, 1001);
    for (size_t y = 0; y < 3; y++)
        for (int smooth = 0; smooth < 2; smooth++) {
            check_rows(&binary, 1001, 1024, types[y], false, smooth ? 0.1f : 0);
            check_rows(&weighted, 1001, 1024, types[y], false, smooth ? 0.1f : 0);
        }
}

/* --- rows that ranks have parts of */

enum { PARTS = 3, PART_ROWS = 5, MINE = 2 };

struct parts {
    float *z[PARTS], labels[PART_ROWS * LABEL_N], top[PART_ROWS * TOP_N], sums[PART_ROWS * SUMS_N],
        lse[PART_ROWS * LSE_N], samples[(1 + MINE) * 4], scale;
    struct k_xent_part a[PARTS];
};

/* Logits of some classes each, padding is NaN; gradients lie where the logits were. */
static void open_parts(struct parts *p, double *kept, int classes, int pad, enum dtype type, bool in_floats,
                       float smoothing)
{
    p->scale = 2;
    for (int i = 0; i < PARTS; i++) {
        const int first = classes * i / PARTS, k = classes * (i + 1) / PARTS - first,
                  stride = (k + pad - 1) / pad * pad;
        p->z[i] = take((size_t)(PART_ROWS * stride) * sizeof *p->z[i], 0xff);
        for (int r = 0; r < PART_ROWS; r++)
            for (int j = 0; j < k; j++) {
                const size_t at = (size_t)(r * classes + first + j);
                p->z[i][r * stride + j] = (float)(8 * ((double)chance((uint32_t)at) / 0x1p31 - 1));
                kept[at] = (double)p->z[i][r * stride + j];
            }
        p->a[i] = (struct k_xent_part){.n = PART_ROWS,
                                       .k = k,
                                       .first = first,
                                       .classes = classes,
                                       .stride = (size_t)stride,
                                       .grad_stride = (size_t)stride * sizeof(float) / dtype_size(type),
                                       .in_floats = in_floats,
                                       .logits = p->z[i],
                                       .grad_type = type,
                                       .smoothing = smoothing,
                                       .scale = &p->scale,
                                       .mine = -1, /* of three rows the last two are in this block */
                                       .batch = 1 + MINE,
                                       .samples = p->samples};
    }
}

/* The group's maximum, or sum, of what a kernel makes of each part. */
static void combine(struct parts *p, enum kernel k, const float *in, float *out, int numbers, bool max)
{
    float *part = take(PART_ROWS * TOP_N * sizeof *part, 0xff);
    for (int i = 0; i < PARTS; i++) {
        p->a[i].in = in;
        p->a[i].out = part;
        assert_int_equal(0, kernel_launch(k, &p->a[i], NULL));
        for (int j = 0; j < PART_ROWS * numbers; j++)
            out[j] = i == 0 ? part[j] : max ? fmaxf(out[j], part[j]) : out[j] + part[j];
    }
    free(part);
}

static void check_parts(const struct loss_rule *rule, int classes, int pad, enum dtype type, bool in_floats,
                        float smoothing)
{
    static struct parts p;
    double *kept = take((size_t)(PART_ROWS * classes) * sizeof *kept, 0);
    const int32_t labels[PART_ROWS] = {classes - 1, 0, -1, classes / 2, classes / 3};
    const int second[PART_ROWS] = {0, classes - 1, 0, classes / 2, classes / 3 + 1};
    const float share[PART_ROWS] = {0.25F, 0.5F, 0, 0.25F, 0};
    open_parts(&p, kept, classes, pad, type, in_floats, smoothing);
    for (int i = 0; i < PARTS; i++) {
        p.a[i].binary = rule->binary;
        p.a[i].weights = rule->weights;
        p.a[i].total = (float)rule->total;
    }
    for (int r = 0; r < PART_ROWS; r++) {
        p.labels[r * LABEL_N + LABEL_CLASS] = (float)labels[r];
        p.labels[r * LABEL_N + LABEL_WEIGHT] = labels[r] >= 0;
        p.labels[r * LABEL_N + LABEL_SECOND] = (float)second[r];
        p.labels[r * LABEL_N + LABEL_SHARE] = rule->weights ? 0 : share[r]; /* weighted rows are not mixed */
    }
    combine(&p, KERNEL_XENT_TOP, p.labels, p.top, TOP_N, true);
    combine(&p, KERNEL_XENT_SUMS, p.top, p.sums, SUMS_N, false);
    for (int i = 0; i < PARTS; i++)
        p.a[i].tops = p.top;
    combine(&p, KERNEL_XENT_PARTS, p.sums, p.lse, LSE_N, true);
    for (int r = 0; r < PART_ROWS; r++) {
        double metrics[METRIC_N] = {0}, *row = kept + r * classes;
        if (labels[r] >= 0) {
            const struct host_target t = {labels[r], second[r], rule->weights ? 0 : (double)share[r]};
            host_xent(rule, row, classes, t, (double)smoothing, metrics);
            host_xent_backward(rule, row, classes, t, (double)smoothing, 2);
        } else {
            memset(row, 0, (size_t)classes * sizeof *row);
        }
        for (int k = 0; k < 4 && r < MINE; k++)
            assert_true(fabs((double)p.samples[(1 + r) * 4 + k] - metrics[k]) <= 2e-6 * fabs(metrics[k]));
    }
    const double u = type == DT_F16 ? 0x1p-11 : type == DT_BF16 ? 0x1p-8 : 0;
    for (int i = 0; i < PARTS; i++) {
        struct k_xent_part *a = &p.a[i];
        a->in = p.lse;
        a->out = loss_is_plain(rule) ? p.z[i] : take(PART_ROWS * a->stride * sizeof(float), 0xff);
        assert_int_equal(0, kernel_launch(KERNEL_XENT_PARTS_BWD, a, NULL));
        for (int j = 0; j < PART_ROWS * a->k; j++) {
            const double got = fake_get(a->out, type, (size_t)(j / a->k) * a->grad_stride + (size_t)(j % a->k)),
                         want = kept[j / a->k * classes + a->first + j % a->k];
            if (!(fabs(got - want) <= u * fabs(want) + 0x1p-19 * fabs(want) + (type == DT_F16 ? 0x1p-25 : 0x1p-30)))
                fail_msg("%d classes, type %d, part %d: [%d] %g, expected %g", classes, type, i, j, got, want);
        }
        if (!loss_is_plain(rule))
            free(a->out);
        free(p.z[i]);
    }
    free(kept);
}

static void parts_of_rows_make_what_whole_rows_make(void **state)
{
    const struct loss_rule plain = {0}, *const p = &plain;
    float weights[1001];
    struct loss_rule binary = {.binary = true}, weighted = {.weights = weights};
    (void)state;
    weigh(&weighted, weights, 1001);
    for (size_t y = 0; y < 3; y++) {
        check_parts(p, 1001, 64, types[y], true, 0);
        check_parts(p, 1001, 64, types[y], true, 0.1f);
        check_parts(&binary, 1001, 1, types[y], false, 0.1f);
        check_parts(&weighted, 1001, 64, types[y], false, 0.1f);
    }
    check_parts(p, 27003, 64, DT_BF16, true, 0.1f); /* the larger block, more than one turn */
    check_parts(p, 1501, 1, DT_F32, false, 0.1f);   /* as a classifier has them */
    check_parts(p, 1500, 4, DT_F16, false, 0);
}

static void metrics_are_sums_of_all_rows(void **state)
{
    enum { ROWS = 1000 };
    static float samples[ROWS * 4];
    float metrics[4] = {1, 1, 1, 1};
    (void)state;
    for (int i = 0; i < ROWS * 4; i++)
        samples[i] = (float)(i % 4 + 1);
    struct k_metrics a = {.n = ROWS, .samples = samples, .metrics = metrics, .accumulate = true};
    assert_int_equal(0, kernel_launch(KERNEL_METRICS, &a, NULL));
    for (int k = 0; k < 4; k++)
        assert_true(metrics[k] == (float)(1 + ROWS * (k + 1)));
    a.accumulate = false;
    assert_int_equal(0, kernel_launch(KERNEL_METRICS, &a, NULL));
    assert_true(metrics[3] == 4 * ROWS);
}

/* --- a head whose logits are made in parts */

enum { LENGTH = 100, VOCABULARY = 67, N = 3 };

static struct program *tied(void)
{
    struct program *p = program_create("tied", input_tokens(LENGTH, VOCABULARY));
    const int x = program_embed(p, "wte", program_tokens(p), 16);
    assert_true(program_head(p, "head", program_linear_each(p, "fc", x, 16, true), x, false));
    MUST(program_differentiate(p, e));
    return p;
}

/* limit: of bytes that the logits may take, 0: any. */
static float *step_of(const struct program *p, size_t limit, int *ret_products, bool *ret_repeats)
{
    static int32_t tokens[N * LENGTH], labels[N * LENGTH];
    static const float weights[N] = {1, 0, 1};
    struct gpu *g;
    struct device *d;
    struct plan *plan;
    struct arenas a;
    for (int i = 0; i < N * LENGTH; i++) {
        tokens[i] = i * i % VOCABULARY;
        labels[i] = i % 9 == 4 ? -1 : 5 * i % VOCABULARY;
    }
    assert_int_equal(0, fake_gpu_open(&g, &(struct fake_options){0}));
    MUST(cuda_open_on(&d, g, NULL, &(struct cuda_options){.workspace_limit = limit}, e));
    arenas_open(&a, d, p);
    fake_gpu_wait(g, NULL);
    arenas_fill(&a, p);
    const struct plan_options o = {
        .batch = N, .training = true, .compute = DT_F32, .params = a.params, .stats = a.stats, .reduce = a.reduce};
    MUST(d->ops->plan(d, p, &o, &plan, e));
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    *ret_products = 0;
    for (int i = 0; i < pl->nsteps; i++)
        if (pl->steps[i]->kind == STEP_GEMM && pl->p->ops[pl->steps[i]->op].kind == OP_HEAD_BWD) {
            ++*ret_products;
            *ret_repeats = pl->steps[i]->gemm.repeats;
        }
    MUST(d->ops->run(plan, &(struct run_args){.batch = {tokens, labels, weights, NULL}, .grad_scale = 1}, e));
    MUST(d->ops->sync(d, e));
    float *out = malloc(p->n_reduce * sizeof *out);
    memcpy(out, a.reduce, p->n_reduce * sizeof *out);
    d->ops->plan_close(plan);
    arenas_close(&a, d);
    d->ops->close(d);
    return out;
}

static void parts_of_the_logits_make_what_all_make(void **state)
{
    struct program *p = tied();
    int whole = 0, parts = 0;
    bool repeats = false;
    (void)state;
    float *want = step_of(p, 0, &whole, &repeats), *got = step_of(p, 40000, &parts, &repeats);
    assert_int_equal(3, whole);
    assert_int_equal(9, parts); /* 128 rows of 300, twice, and what is left */
    double apart = 0, size = 0;
    for (size_t i = 0; i < p->n_train; i++) {
        apart += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    assert_true(size > 0 && sqrt(apart / size) <= 1e-6);
    assert_memory_equal(got + p->n_train, want + p->n_train, METRIC_N * sizeof *got);
    assert_true(got[p->n_train + METRIC_COUNT] > 150);
    free(want);
    free(got);
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_that_come_often_are_summed_whole),
        cmocka_unit_test(sums_of_a_table_repeat_their_bits),
        cmocka_unit_test(gradients_take_the_place_of_logits),
        cmocka_unit_test(losses_that_are_not_plain_are_those_of_the_host),
        cmocka_unit_test(metrics_are_sums_of_all_rows),
        cmocka_unit_test(parts_of_the_logits_make_what_all_make),
        cmocka_unit_test(tokens_of_other_ranks_have_rows_of_zeros),
        cmocka_unit_test(parts_of_rows_make_what_whole_rows_make),
    };
    return cmocka_run_group_tests_name("tokens on the cuda device", tests, NULL, NULL);
}
