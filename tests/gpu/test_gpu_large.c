/* Copies of a parameter of more than 2^32 elements, as a layer of 2 million classes over 2048 features has on one GPU:
 * each element is copied, and each gradient added once. Skips where there is no GPU, or too little of its memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/must.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/gpu/gpu.h"
#include "worker/precision/dtype.h"

enum { FEATURES = 2048, WINDOW = 1000, SPARE_MEMORY = 1 << 30 };
static const size_t classes = ((size_t)1 << 21) + 4096, elements = classes * FEATURES;

/* Looked at: the ends, and where 31 and 32 bits end. */
static const size_t windows[] = {0, ((size_t)1 << 31) - WINDOW / 2, ((size_t)1 << 32) - WINDOW / 2,
                                 ((size_t)1 << 21) * FEATURES + 4096 * FEATURES - WINDOW};
enum { WINDOWS = sizeof windows / sizeof *windows };

struct rig {
    struct device *d;
    struct gpu *gpu;
    struct gpu_stream *stream;
    float *arena;       /* (classes, FEATURES) */
    uint16_t *copy;     /* likewise, fp16 */
    struct k_tensor *t; /* the table */
};

static float value(size_t i)
{
    return (float)(i % 1021) - 510; /* exact in fp16 */
}

static void run(struct rig *r, enum kernel which, bool accumulate)
{
    const struct k_pack all = {.table = r->t, .n = 1, .elements = elements, .accumulate = accumulate};
    MUST(r->gpu->ops->kernel(r->gpu, r->stream, which, &all, e));
    MUST(r->gpu->ops->stream_sync(r->gpu, r->stream, e));
}

static void every_element_is_copied(void **state)
{
    struct rig *r = *state;
    static float in[WINDOW];
    static uint16_t out[WINDOW];
    MUST(r->gpu->ops->fill(r->gpu, r->stream, r->arena, 0, elements * sizeof *r->arena, e));
    MUST(r->gpu->ops->fill(r->gpu, r->stream, r->copy, 0xff, elements * sizeof *r->copy, e));
    for (int w = 0; w < WINDOWS; w++) {
        for (size_t i = 0; i < WINDOW; i++)
            in[i] = value(windows[w] + i);
        MUST(r->gpu->ops->copy_in(r->gpu, r->stream, r->arena + windows[w], in, sizeof in, e));
        MUST(r->gpu->ops->stream_sync(r->gpu, r->stream, e));
    }
    run(r, KERNEL_PACK, false);
    for (int w = 0; w < WINDOWS; w++) {
        MUST(r->gpu->ops->copy_out(r->gpu, r->stream, out, r->copy + windows[w], sizeof out, e));
        MUST(r->gpu->ops->stream_sync(r->gpu, r->stream, e));
        for (size_t i = 0; i < WINDOW; i++)
            if (f32_from_f16(out[i]) != value(windows[w] + i))
                fail_msg("element %zu is %g (expected %g)", windows[w] + i, (double)f32_from_f16(out[i]),
                         (double)value(windows[w] + i));
    }
}

/* The copy is that of the test before. */
static void every_gradient_is_added_once(void **state)
{
    struct rig *r = *state;
    static float out[WINDOW];
    run(r, KERNEL_UNPACK, true);
    for (int w = 0; w < WINDOWS; w++) {
        MUST(r->gpu->ops->copy_out(r->gpu, r->stream, out, r->arena + windows[w], sizeof out, e));
        MUST(r->gpu->ops->stream_sync(r->gpu, r->stream, e));
        for (size_t i = 0; i < WINDOW; i++)
            if (out[i] != 2 * value(windows[w] + i))
                fail_msg("element %zu is %g (expected %g)", windows[w] + i, (double)out[i],
                         (double)(2 * value(windows[w] + i)));
    }
}

static void take(struct rig *r)
{
    void *arena, *copy, *table;
    MUST(r->gpu->ops->alloc(r->gpu, elements * sizeof *r->arena, &arena, e));
    MUST(r->gpu->ops->alloc(r->gpu, elements * sizeof *r->copy, &copy, e));
    MUST(r->gpu->ops->alloc(r->gpu, sizeof *r->t, &table, e));
    const struct k_tensor t = {.arena = arena,
                               .copy = copy,
                               .k = (int)classes,
                               .c = FEATURES,
                               .rs = 1,
                               .padded_c = FEATURES,
                               .krsc = true,
                               .type = DT_F16};
    MUST(r->gpu->ops->copy_in(r->gpu, r->stream, table, &t, sizeof t, e));
    MUST(r->gpu->ops->stream_sync(r->gpu, r->stream, e));
    r->arena = arena;
    r->copy = copy;
    r->t = table;
}

static void give(struct rig *r)
{
    r->gpu->ops->release(r->gpu, r->arena);
    r->gpu->ops->release(r->gpu, r->copy);
    r->gpu->ops->release(r->gpu, r->t);
    r->d->ops->close(r->d);
}

static struct rig rig;

static int set_up(void **state)
{
    take(&rig);
    *state = &rig;
    return 0;
}

static int tear_down(void **state)
{
    give(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_copied),
        cmocka_unit_test(every_gradient_is_added_once),
    };
    struct err e = {0};
    const size_t wanted = elements * (sizeof *rig.arena + sizeof *rig.copy) + SPARE_MEMORY;
    size_t left, total;
    const int rc = device_open(&rig.d, "cuda", &(struct device_options){.threads = 1}, &e);
    if (rc == -ENODEV) {
        printf("1..0 # SKIP %s\n", e.text);
        return 0;
    }
    if (rc < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    rig.gpu = ((struct cuda *)rig.d)->gpu;
    rig.stream = ((struct cuda *)rig.d)->compute;
    if (rig.gpu->ops->memory(rig.gpu, &left, &total, &e) == 0 && left < wanted) {
        printf("1..0 # SKIP %zu bytes of the GPU's memory are free, %zu are needed\n", left, wanted);
        rig.d->ops->close(rig.d);
        return 0;
    }
    return cmocka_run_group_tests_name("large parameters of a GPU", tests, set_up, tear_down);
}
