/* The update rules of both host devices: hand-made steps, torch's own numbers, and that they agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"

enum { N = 20000 }; /* more than a piece of rule_squares(), and no multiple of a vector */

struct side {
    struct device *d;
    void *w, *g, *m, *v, *count, *norm;
    size_t real;
};

static void put(struct side *s, void *arena, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s->real == 8)
            ((double *)arena)[i] = x[i];
        else
            ((float *)arena)[i] = (float)x[i];
}

static double at(const struct side *s, const void *arena, size_t i)
{
    return s->real == 8 ? ((const double *)arena)[i] : (double)((const float *)arena)[i];
}

static void open_side(struct side *s, const char *name, int threads)
{
    struct err e = {0};
    if (device_open(&s->d, name, &(struct device_options){.threads = threads}, &e) < 0)
        fail_msg("%s", e.text);
    s->real = s->d->ops->real == DT_F64 ? 8 : 4;
    void **arenas[] = {&s->w, &s->g, &s->m, &s->v, &s->count, &s->norm};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        assert_int_equal(s->d->ops->alloc(s->d, N * s->real, arenas[i], &e), 0);
}

static void close_side(struct side *s)
{
    void *arenas[] = {s->w, s->g, s->m, s->v, s->count, s->norm};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        s->d->ops->release(s->d, arenas[i]);
    s->d->ops->close(s->d);
}

static void update(struct side *s, struct update u)
{
    u.second = s->v;
    assert_int_equal(s->d->ops->update(s->d, &u, s->w, s->g, s->m, s->count, NULL), 0);
}

static const char *const devices[] = {"ref", "cpu"};
#define EACH_DEVICE(s, threads)                                                                                        \
    for (size_t k_ = 0; k_ < 2; k_++)                                                                                  \
        for (struct side s = {0}, *once_ = &s; once_; close_side(&s), once_ = NULL)                                    \
            if (open_side(&s, devices[k_], threads), 1)

static double bound(const struct side *s)
{
    return s->real == 8 ? 1e-14 : 1e-6;
}

static void near(const struct side *s, const char *what, const void *arena, double want)
{
    if (!(fabs(at(s, arena, 0) - want) <= bound(s) * (fabs(want) > 1 ? fabs(want) : 1)))
        fail_msg("%s: %s is %.17g, expected %.17g", s->d->ops->name, what, at(s, arena, 0), want);
}

/* Two steps of one weight over a drop of the rate. Gradients 4 and -2 as sums over 2 samples. */
static void two_steps(struct side *s, struct update u, double lr1, double lr2)
{
    u.n = 1;
    u.grad_mul = 1;
    put(s, s->count, (double[]){2}, 1);
    put(s, s->w, (double[]){1.5}, 1);
    put(s, s->g, (double[]){4}, 1);
    u.lr = lr1;
    u.step = 1;
    update(s, u);
    put(s, s->g, (double[]){-2}, 1);
    u.lr = lr2;
    u.step = 2;
    update(s, u);
}

static void nesterov_is_torchs(void **state)
{
    /* d = 2 + .15; m = d; w -= .1 (d + .9 m) = 1.0915; d = -1 + .10915; m = .9 * 2.15 + d; w -= .01 (d + .9 m) */
    EACH_DEVICE(s, 2)
    {
        two_steps(&s, (struct update){.rule = UPDATE_NESTEROV, .momentum = 0.9, .weight_decay = 0.1}, 0.1, 0.01);
        near(&s, "momentum", s.m, 0.9 * 2.15 + (-1 + 0.10915));
        near(&s, "weight", s.w, 1.0915 - 0.01 * ((-1 + 0.10915) + 0.9 * (0.9 * 2.15 + (-1 + 0.10915))));
    }
}

/* Caffe2 keeps the rate in the momentum: after a drop of the rate the old steps go on at the old rate, unlike
 * torch's. */
static void caffe2s_momentum_holds_the_rate(void **state)
{
    EACH_DEVICE(s, 1)
    {
        two_steps(&s, (struct update){.rule = UPDATE_CAFFE2, .momentum = 0.9}, 0.1, 0.001);
        const double m1 = 0.1 * 2, w1 = 1.5 - 1.9 * m1, m2 = 0.9 * m1 + 0.001 * -1;
        near(&s, "momentum", s.m, m2);
        near(&s, "weight", s.w, w1 - (1.9 * m2 - 0.9 * m1));
    }
}

/* torch 2.x: w = 1.5; gradients 2 and -1; Adam(lr .1 then .01, betas .9 .999, eps 1e-8, weight_decay .1), AdamW the
 * same. */
static void adam_is_torchs(void **state)
{
    EACH_DEVICE(s, 2)
    {
        two_steps(
            &s, (struct update){.rule = UPDATE_ADAM, .momentum = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
            0.1, 0.01);
        double d = 2 + 0.15, m = 0.1 * d, v = 0.001 * d * d, w = 1.5;
        w -= 0.1 / (1 - 0.9) * m / (sqrt(v) / sqrt(1 - 0.999) + 1e-8);
        d = -1 + 0.1 * w;
        m = 0.9 * m + 0.1 * d;
        v = 0.999 * v + 0.001 * d * d;
        w -= 0.01 / (1 - 0.81) * m / (sqrt(v) / sqrt(1 - 0.999 * 0.999) + 1e-8);
        near(&s, "adam's weight", s.w, w);
        memset(s.m, 0, s.real);
        memset(s.v, 0, s.real);
        two_steps(
            &s,
            (struct update){.rule = UPDATE_ADAMW, .momentum = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
            0.1, 0.01);
        m = 0.1 * 2;
        v = 0.001 * 4;
        w = 1.5 * (1 - 0.01) - 0.1 / (1 - 0.9) * m / (sqrt(v) / sqrt(1 - 0.999) + 1e-8);
        m = 0.9 * m - 0.1;
        v = 0.999 * v + 0.001;
        w = w * (1 - 0.001) - 0.01 / (1 - 0.81) * m / (sqrt(v) / sqrt(1 - 0.999 * 0.999) + 1e-8);
        near(&s, "adamw's weight", s.w, w);
    }
}

static double noise(size_t i, unsigned salt)
{
    uint32_t x = (uint32_t)i * 2654435761u + salt * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)x / 4294967296.0 - 0.5;
}

static void fill(struct side *s)
{
    double *x = malloc(N * sizeof *x);
    for (size_t i = 0; i < N; i++)
        x[i] = noise(i, 1);
    put(s, s->w, x, N);
    for (size_t i = 0; i < N; i++)
        x[i] = noise(i, 2) * 8;
    put(s, s->g, x, N);
    put(s, s->count, (double[]){8}, 1);
    free(x);
}

static void lars_scales_the_rate_by_the_norms(void **state)
{
    double ww = 0, gg = 0;
    for (size_t i = 0; i < N; i++) {
        ww += noise(i, 1) * noise(i, 1);
        gg += noise(i, 2) * noise(i, 2);
    }
    EACH_DEVICE(s, 2)
    {
        struct update u = {
            .rule = UPDATE_LARS, .n = N, .lr = 2, .momentum = 0.9, .weight_decay = 0.01, .grad_mul = 1, .trust = 0.001};
        fill(&s);
        update(&s, u);
        const double r = 0.001 * sqrt(ww) / (sqrt(gg) + 0.01 * sqrt(ww));
        near(&s, "weight", s.w, noise(0, 1) - 2 * r * (noise(0, 2) + 0.01 * noise(0, 1)));
        fill(&s);
        memset(s.m, 0, N * s.real);
        u.trust = 0;
        update(&s, u);
        near(&s, "weight without trust", s.w, noise(0, 1) - 2 * (noise(0, 2) + 0.01 * noise(0, 1)));
    }
}

/* timm 1.0's Lamb: d = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd w; w -= lr |w| / |d| d. */
static void lamb_scales_adams_step_by_the_norms(void **state)
{
    double ww = 0, dd = 0, d0 = 0;
    for (size_t i = 0; i < N; i++) {
        const double d = noise(i, 2) / (fabs(noise(i, 2)) + 1e-6) + 0.1 * noise(i, 1); /* of the first step */
        d0 = i == 0 ? d : d0;
        ww += noise(i, 1) * noise(i, 1);
        dd += d * d;
    }
    EACH_DEVICE(s, 2)
    {
        struct update u = {.rule = UPDATE_LAMB,
                           .n = N,
                           .lr = 0.5,
                           .momentum = 0.9,
                           .beta2 = 0.99,
                           .eps = 1e-6,
                           .weight_decay = 0.1,
                           .grad_mul = 1,
                           .trust = 1,
                           .step = 1,
                           .second = s.v,
                           .measure = s.norm};
        fill(&s);
        update(&s, u);
        near(&s, "direction", s.norm, sqrt(dd));
        near(&s, "weight before", s.w, noise(0, 1));
        u.measure = NULL;
        update(&s, u);
        near(&s, "weight", s.w, noise(0, 1) - 0.5 * sqrt(ww / dd) * d0);
        near(&s, "momentum", s.m, 0.1 * noise(0, 2));
        fill(&s);
        memset(s.m, 0, N * s.real);
        memset(s.v, 0, N * s.real);
        u.trust = 0;
        update(&s, u);
        near(&s, "weight without trust", s.w, noise(0, 1) - 0.5 * d0);
    }
}

static void lars_leaves_a_tensor_of_zeros_a_plain_step(void **state)
{
    EACH_DEVICE(s, 1)
    {
        put(&s, s.count, (double[]){1}, 1);
        put(&s, s.g, (double[]){3}, 1);
        update(&s, (struct update){.rule = UPDATE_LARS, .n = 1, .lr = 0.5, .grad_mul = 1, .trust = 0.001});
        near(&s, "weight", s.w, -1.5);
    }
}

/* torch.nn.utils.clip_grad_norm_: gradients times max_norm / (norm + 1e-6) where the norm is above it. */
static void gradients_are_clipped_by_their_norm(void **state)
{
    double gg = 0;
    for (size_t i = 0; i < N; i++)
        gg += noise(i, 2) * noise(i, 2);
    EACH_DEVICE(s, 2)
    {
        fill(&s);
        assert_int_equal(s.d->ops->grad_norm(s.d, s.g, N, 1, s.count, s.norm, NULL), 0);
        near(&s, "norm", s.norm, sqrt(gg));
        struct update u = {.rule = UPDATE_SGD, .n = N, .lr = 1, .grad_mul = 1, .norm = s.norm, .max_norm = 2};
        update(&s, u);
        near(&s, "clipped", s.w, noise(0, 1) - noise(0, 2) * 2 / (sqrt(gg) + 1e-6));
        fill(&s);
        memset(s.m, 0, N * s.real);
        u.max_norm = 1e6;
        update(&s, u);
        near(&s, "not clipped", s.w, noise(0, 1) - noise(0, 2));
    }
}

static void averages_move_by_their_weight(void **state)
{
    EACH_DEVICE(s, 1)
    {
        put(&s, s.w, (double[]){2}, 1);
        put(&s, s.g, (double[]){4}, 1);
        assert_int_equal(s.d->ops->blend(s.d, s.w, s.g, 1, 0.25, NULL), 0);
        near(&s, "average", s.w, 2.5);
    }
}

static void a_count_of_0_changes_nothing(void **state)
{
    static const enum update_rule rules[] = {UPDATE_SGD,  UPDATE_NESTEROV, UPDATE_CAFFE2,
                                             UPDATE_LARS, UPDATE_ADAM,     UPDATE_ADAMW};
    EACH_DEVICE(s, 1)
    for (size_t i = 0; i < 6; i++) {
        fill(&s);
        put(&s, s.count, (double[]){0}, 1);
        update(&s,
               (struct update){.rule = rules[i], .n = N, .lr = 1, .grad_mul = 1, .trust = 1, .beta2 = 0.9, .step = 1});
        near(&s, update_rule_name(rules[i]), s.w, noise(0, 1));
        near(&s, "momentum", s.m, 0);
        assert_int_equal(s.d->ops->grad_norm(s.d, s.g, N, 1, s.count, s.norm, NULL), 0);
        near(&s, "norm", s.norm, 0);
    }
}

/* Norms do not depend on the number of threads, to the bit. */
static void lars_is_the_same_with_any_number_of_threads(void **state)
{
    for (size_t k = 0; k < 2; k++) {
        struct side a = {0}, b = {0};
        open_side(&a, devices[k], 1);
        open_side(&b, devices[k], 3);
        struct side *sides[] = {&a, &b};
        for (int i = 0; i < 2; i++) {
            fill(sides[i]);
            update(sides[i], (struct update){
                                 .rule = UPDATE_LARS, .n = N, .lr = 2, .momentum = 0.9, .grad_mul = 1, .trust = 0.001});
        }
        assert_memory_equal(a.w, b.w, N * a.real);
        close_side(&a);
        close_side(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nesterov_is_torchs),
        cmocka_unit_test(caffe2s_momentum_holds_the_rate),
        cmocka_unit_test(adam_is_torchs),
        cmocka_unit_test(lars_scales_the_rate_by_the_norms),
        cmocka_unit_test(lamb_scales_adams_step_by_the_norms),
        cmocka_unit_test(lars_leaves_a_tensor_of_zeros_a_plain_step),
        cmocka_unit_test(gradients_are_clipped_by_their_norm),
        cmocka_unit_test(averages_move_by_their_weight),
        cmocka_unit_test(a_count_of_0_changes_nothing),
        cmocka_unit_test(lars_is_the_same_with_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
