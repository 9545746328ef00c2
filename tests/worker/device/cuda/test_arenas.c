/* What the cuda device does to arenas after backward, its kernels emulated, beside the reference device: updates of
 * many tensors at once, norms, clipping; how many launches that takes, and that nobody waits for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "worker/device/cuda/cuda.h"
#include "worker/precision/loss_scale.h"

/* Sizes at and around those of a chunk, of a block and of a vector, and one element. Decay and trust are left out here
 * and there. */
static const struct update_slice slices[] = {{0, 31, 0.01, 0.001},
                                             {32, 1, 0, 0},
                                             {48, 255, 0.01, 0},
                                             {304, KERNEL_CHUNK, 0.01, 0.002},
                                             {8496, KERNEL_CHUNK + 1, 0, 0.001},
                                             {16704, 2 * KERNEL_CHUNK + 77, 0.05, 0.001},
                                             {33168, 257, 0.01, 0.001}};
enum { SLICES = sizeof slices / sizeof *slices, N = 33168 + 257 + 15, ZERO_WEIGHTS = 3, ZERO_GRADIENTS = 4 };

static const enum update_rule rules[] = {UPDATE_SGD,  UPDATE_NESTEROV, UPDATE_CAFFE2, UPDATE_LARS,
                                         UPDATE_ADAM, UPDATE_ADAMW,    UPDATE_LAMB};
enum { RULES = sizeof rules / sizeof *rules };
static const char *const names[] = {
#define X(id, name) [id] = name,
    UPDATE_RULES(X)
#undef X
};

struct side {
    struct gpu *gpu; /* NULL: the reference device */
    struct device *d;
    void *w, *g, *m, *v, *count, *norm;
    size_t real;
};

static void put(const struct side *s, void *arena, const double *x, size_t n)
{
    float *single = malloc(n * sizeof *single);
    for (size_t i = 0; i < n; i++)
        single[i] = (float)x[i];
    MUST(s->d->ops->upload(s->d, arena, s->gpu ? (const void *)single : x, n * s->real, e));
    free(single);
}

static double at(const struct side *s, const void *arena, size_t i)
{
    return s->gpu ? (double)((const float *)arena)[i] : ((const double *)arena)[i];
}

/* A value that both types hold. */
static double noise(size_t i, unsigned salt)
{
    uint32_t x = (uint32_t)i * 2654435761u + salt * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)(x >> 12) / (1 << 20) - 0.5;
}

static void fill(const struct side *s)
{
    double *x = calloc(N, sizeof *x);
    for (size_t i = 0; i < N; i++)
        x[i] = i - slices[ZERO_WEIGHTS].first < slices[ZERO_WEIGHTS].n ? 0 : noise(i, 1);
    put(s, s->w, x, N);
    for (size_t i = 0; i < N; i++)
        x[i] = i - slices[ZERO_GRADIENTS].first < slices[ZERO_GRADIENTS].n ? 0 : noise(i, 2) * 8;
    put(s, s->g, x, N);
    put(s, s->count, (double[]){8}, 1);
    free(x);
}

static void open_side(struct side *s, bool cuda)
{
    *s = (struct side){.real = cuda ? sizeof(float) : sizeof(double)};
    if (cuda) {
        fake_gpu_open(&s->gpu, &(struct fake_options){0});
        MUST(cuda_open_on(&s->d, s->gpu, NULL, &(struct cuda_options){.graphs = true}, e));
    } else {
        MUST(device_ref_ops.open(&s->d, &(struct device_options){.threads = 1}, e));
    }
    void **arenas[] = {&s->w, &s->g, &s->m, &s->v, &s->count, &s->norm};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        MUST(s->d->ops->alloc(s->d, N * s->real, arenas[i], e));
    fill(s);
}

static void close_side(struct side *s)
{
    void *arenas[] = {s->w, s->g, s->m, s->v, s->count, s->norm};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        s->d->ops->release(s->d, arenas[i]);
    s->d->ops->close(s->d);
}

static struct update update_by(const struct side *s, enum update_rule rule, int64_t step, bool clip)
{
    return (struct update){.rule = rule,
                           .lr = 0.5,
                           .momentum = 0.9,
                           .grad_mul = 0.5,
                           .beta2 = 0.99,
                           .eps = 1e-8,
                           .step = step,
                           .second = s->v,
                           .norm = clip ? s->norm : NULL,
                           .max_norm = 1};
}

/* Slice by slice, as a host device has it. */
static void update_each(const struct side *s, struct update u)
{
    for (int i = 0; i < SLICES; i++) {
        u.first = slices[i].first;
        u.n = slices[i].n;
        u.weight_decay = slices[i].weight_decay;
        u.trust = slices[i].trust;
        MUST(s->d->ops->update(s->d, &u, s->w, s->g, s->m, s->count, e));
    }
}

static void update_all(const struct side *s, struct update u)
{
    MUST(s->d->ops->update_all(s->d, &u, slices, SLICES, s->w, s->g, s->m, s->count, e));
}

static void assert_alike(const struct side *a, const struct side *b, const char *what)
{
    fake_gpu_wait(a->gpu, NULL);
    const struct {
        const char *name;
        const void *in_a, *in_b;
    } arenas[] = {{"weight", a->w, b->w}, {"momentum", a->m, b->m}, {"second moment", a->v, b->v}};
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < N; i++) {
            const double x = at(a, arenas[k].in_a, i), y = at(b, arenas[k].in_b, i);
            if (!(fabs(x - y) <= 2e-6 * (1 + fabs(y)))) /* some roundings of fp32 in each of two steps */
                fail_msg("%s: %s %zu is %.9g, expected %.9g", what, arenas[k].name, i, x, y);
        }
}

/* Two steps of a rule on either device; the cuda device in one go. */
static void compare(enum update_rule rule, bool clip)
{
    struct side cuda, ref;
    open_side(&cuda, true);
    open_side(&ref, false);
    for (int step = 1; step <= 2; step++) {
        const struct side *sides[] = {&cuda, &ref};
        for (int k = 0; k < 2 && clip; k++)
            MUST(sides[k]->d->ops->grad_norm(sides[k]->d, sides[k]->g, N, 0.5, sides[k]->count, sides[k]->norm, e));
        update_all(&cuda, update_by(&cuda, rule, step, clip));
        update_each(&ref, update_by(&ref, rule, step, clip));
    }
    assert_alike(&cuda, &ref, names[rule]);
    close_side(&cuda);
    close_side(&ref);
}

static void all_tensors_at_once_are_updated_as_each_alone_on_the_reference_device(void **state)
{
    (void)state;
    for (int r = 0; r < RULES; r++)
        compare(rules[r], false);
}

static void clipped_by_the_norm_of_all_of_them_too(void **state)
{
    (void)state;
    for (int r = 0; r < RULES; r++)
        compare(rules[r], true);
}

/* A launch for the update, and one for all norms where the rule is LARS or LAMB; once the slices are known nobody waits
 * and nothing is taken. */
static void an_update_is_a_launch_or_two_whatever_the_number_of_tensors(void **state)
{
    struct side s;
    (void)state;
    open_side(&s, true);
    for (int r = 0; r < RULES; r++) {
        update_all(&s, update_by(&s, rules[r], 1, false));
        const struct fake_counts before = *fake_gpu_counts(s.gpu);
        update_all(&s, update_by(&s, rules[r], 2, false));
        const struct fake_counts *after = fake_gpu_counts(s.gpu);
        assert_int_equal(after->kernels - before.kernels, rules[r] == UPDATE_LARS || rules[r] == UPDATE_LAMB ? 2 : 1);
        assert_int_equal(after->by_kernel[KERNEL_UPDATE] - before.by_kernel[KERNEL_UPDATE], 1);
        assert_int_equal(after->syncs, before.syncs);
        assert_int_equal(after->allocs, before.allocs);
        assert_int_equal(after->copies_in, before.copies_in);
    }
    close_side(&s);
}

/* As tensors of which ranks hold parts are updated by LARS: each with a rate of its own. The last slice but one comes
 * in two halves later on. */
static void update_parts(const struct side *s, int64_t step, bool halves)
{
    for (int i = 0; i < SLICES; i++) {
        const bool cut = halves && i == SLICES - 2;
        struct update u = update_by(s, UPDATE_LARS, step, false);
        u.lr *= 1 + i;
        u.weight_decay = slices[i].weight_decay;
        u.first = slices[i].first;
        u.n = cut ? KERNEL_CHUNK : slices[i].n;
        MUST(s->d->ops->update(s->d, &u, s->w, s->g, s->m, s->count, e));
        u.first += u.n;
        u.n = slices[i].n - u.n;
        if (cut)
            MUST(s->d->ops->update(s->d, &u, s->w, s->g, s->m, s->count, e));
    }
}

/* LAMB of tensors that ranks hold parts of: the norm of what each would move by, which changes nothing, and then an
 * update at a rate that follows from it. Both find the slice in one table. */
static void what_lamb_would_move_by_is_measured(void **state)
{
    struct side sides[2];
    double norms[2][SLICES];
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct side *s = &sides[k];
        open_side(s, k == 0);
        for (int64_t step = 1; step <= 2; step++)
            for (int i = 0; i < SLICES; i++) {
                struct update u = update_by(s, UPDATE_LAMB, step, false);
                u.first = slices[i].first;
                u.n = slices[i].n;
                u.weight_decay = slices[i].weight_decay;
                u.trust = 1;
                u.measure = s->norm;
                MUST(s->d->ops->update(s->d, &u, s->w, s->g, s->m, s->count, e));
                if (s->gpu)
                    fake_gpu_wait(s->gpu, NULL);
                norms[k][i] = at(s, s->norm, 0);
                u.measure = NULL;
                u.trust = 0;
                u.lr = 0.01 * (i + 1);
                MUST(s->d->ops->update(s->d, &u, s->w, s->g, s->m, s->count, e));
            }
    }
    for (int i = 0; i < SLICES; i++)
        if (!((norms[1][i] > 0) != (i == ZERO_GRADIENTS)) || !(fabs(norms[0][i] - norms[1][i]) <= 1e-6 * norms[1][i]))
            fail_msg("slice %d would move by %g, expected %g", i, norms[0][i], norms[1][i]);
    assert_alike(&sides[0], &sides[1], "measured");
    const struct fake_counts *c = fake_gpu_counts(sides[0].gpu);
    assert_int_equal(c->allocs - c->frees, 6 + 3); /* arenas; partial sums, loss scale and one table */
    close_side(&sides[0]);
    close_side(&sides[1]);
}

static void slices_that_come_one_by_one_share_a_table(void **state)
{
    struct side cuda, ref;
    (void)state;
    open_side(&cuda, true);
    open_side(&ref, false);
    for (int step = 1; step <= 4; step++) {
        const struct fake_counts before = *fake_gpu_counts(cuda.gpu);
        update_parts(&cuda, step, step > 2);
        update_parts(&ref, step, step > 2);
        const struct fake_counts *after = fake_gpu_counts(cuda.gpu);
        assert_int_equal(after->allocs - after->frees, 6 + 3); /* arenas; partial sums, loss scale and one table */
        assert_int_equal(after->kernels - before.kernels, step > 2 ? SLICES + 1 : SLICES);
        if (step == 1 || step == 3)
            continue;
        assert_int_equal(after->syncs, before.syncs);
        assert_int_equal(after->allocs, before.allocs);
        assert_int_equal(after->copies_in, before.copies_in);
    }
    assert_alike(&cuda, &ref, "part by part");
    close_side(&cuda);
    close_side(&ref);
}

static void other_slices_get_a_table_of_their_own(void **state)
{
    struct side cuda, ref;
    (void)state;
    open_side(&cuda, true);
    open_side(&ref, false);
    for (int step = 1; step <= 2; step++) {
        update_each(&cuda, update_by(&cuda, UPDATE_LARS, step, false));
        update_each(&ref, update_by(&ref, UPDATE_LARS, step, false));
    }
    assert_alike(&cuda, &ref, "slice by slice");
    const struct fake_counts *c = fake_gpu_counts(cuda.gpu);
    assert_int_equal(c->allocs - c->frees, 6 + 3); /* arenas; partial sums, loss scale and the last table */
    close_side(&cuda);
    close_side(&ref);
}

/* Sums are taken in one order, whatever runs first. */
static void equal_updates_give_equal_bits(void **state)
{
    struct side a, b;
    (void)state;
    open_side(&a, true);
    open_side(&b, true);
    for (int step = 1; step <= 2; step++) {
        update_all(&a, update_by(&a, UPDATE_LARS, step, false));
        update_all(&b, update_by(&b, UPDATE_LARS, step, false));
    }
    fake_gpu_wait(a.gpu, NULL);
    fake_gpu_wait(b.gpu, NULL);
    assert_memory_equal(a.w, b.w, N * sizeof(float));
    close_side(&a);
    close_side(&b);
}

/* An infinity that the device found itself: no host looks at it, and no weight changes. The step after is divided by
 * the new scale. */
static void what_overflowed_changes_nothing_and_the_next_step_does(void **state)
{
    const struct loss_scale four = {.scale = 4, .dynamic = true};
    (void)state;
    for (int r = 0; r < RULES; r++) {
        struct side s, ref;
        open_side(&s, true);
        open_side(&ref, false);
        MUST(s.d->ops->async->guard(s.d, &four, e));
        float *g = s.g;
        const float was = g[slices[5].first];
        g[slices[5].first] = INFINITY; /* device memory is plain memory here */
        float before[16];
        memcpy(before, s.w, sizeof before);
        for (int step = 1; step <= 2; step++) {
            MUST(s.d->ops->grad_norm(s.d, s.g, N, 0.5, s.count, s.norm, e));
            MUST(s.d->ops->async->judge(s.d, s.count, s.norm, e));
            update_all(&s, update_by(&s, rules[r], step, true));
            fake_gpu_wait(s.gpu, NULL);
            if (step == 1)
                assert_memory_equal(before, s.w, sizeof before);
            g[slices[5].first] = was;
        }
        struct update u = update_by(&ref, rules[r], 1, true); /* the step that was left out does not count */
        u.grad_mul /= 2;                                      /* 4, halved */
        MUST(ref.d->ops->grad_norm(ref.d, ref.g, N, u.grad_mul, ref.count, ref.norm, e));
        update_each(&ref, u);
        assert_alike(&s, &ref, names[rules[r]]);
        close_side(&s);
        close_side(&ref);
    }
}

static void a_count_of_0_changes_nothing(void **state)
{
    struct side s;
    (void)state;
    open_side(&s, true);
    float *before = malloc(N * sizeof *before);
    memcpy(before, s.w, N * sizeof *before);
    put(&s, s.count, (double[]){0}, 1);
    for (int r = 0; r < RULES; r++)
        update_all(&s, update_by(&s, rules[r], 1, false));
    fake_gpu_wait(s.gpu, NULL);
    assert_memory_equal(before, s.w, N * sizeof *before);
    free(before);
    close_side(&s);
}

/* Two launches behind the one kernel, whatever the number of tensors. */
static void the_norm_of_all_gradients_is_one_call_that_nobody_waits_for(void **state)
{
    struct side s;
    double squares = 0;
    (void)state;
    open_side(&s, true);
    const struct fake_counts before = *fake_gpu_counts(s.gpu);
    MUST(s.d->ops->grad_norm(s.d, s.g, N, 0.5, s.count, s.norm, e));
    assert_int_equal(fake_gpu_counts(s.gpu)->kernels - before.kernels, 1);
    assert_int_equal(fake_gpu_counts(s.gpu)->syncs, before.syncs);
    fake_gpu_wait(s.gpu, NULL);
    for (size_t i = 0; i < N; i++)
        squares += at(&s, s.g, i) * at(&s, s.g, i);
    const double want = sqrt(squares) * 0.5 / 8;
    assert_true(fabs(at(&s, s.norm, 0) - want) < 1e-6 * want);
    close_side(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tensors_at_once_are_updated_as_each_alone_on_the_reference_device),
        cmocka_unit_test(clipped_by_the_norm_of_all_of_them_too),
        cmocka_unit_test(an_update_is_a_launch_or_two_whatever_the_number_of_tensors),
        cmocka_unit_test(what_lamb_would_move_by_is_measured),
        cmocka_unit_test(slices_that_come_one_by_one_share_a_table),
        cmocka_unit_test(other_slices_get_a_table_of_their_own),
        cmocka_unit_test(equal_updates_give_equal_bits),
        cmocka_unit_test(what_overflowed_changes_nothing_and_the_next_step_does),
        cmocka_unit_test(a_count_of_0_changes_nothing),
        cmocka_unit_test(the_norm_of_all_gradients_is_one_call_that_nobody_waits_for),
    };
    return cmocka_run_group_tests_name("arenas on the cuda device", tests, NULL, NULL);
}
