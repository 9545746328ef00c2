/* Times of operations: measured on the reference device, found again by what an operation is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/planner/op_times.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"

static struct program *net(void)
{
    const float mean[] = {0}, std[] = {1};
    struct err e;
    struct program *p = program_create("net", input_pictures(1, 12, 12, mean, std));
    int x = program_input(p);
    x = program_relu(p, "a.relu", program_conv(p, "a", x, 8, 3, 1, 1, true));
    x = program_relu(p, "b.relu", program_conv(p, "b", x, 8, 3, 1, 1, true));
    program_xent(p, program_linear(p, "fc", x, 5));
    assert_int_equal(program_differentiate(p, &e), 0);
    return p;
}

static int pauses;

static int pause_once(void *ctx, struct err *e)
{
    (void)ctx, (void)e;
    pauses++;
    return 0;
}

static struct device *open_ref(void)
{
    struct device *d;
    struct err e;
    assert_int_equal(device_open(&d, "ref", &(struct device_options){.threads = 1}, &e), 0);
    return d;
}

static void what_a_stage_does_is_known_from_the_whole_model(void **state)
{
    (void)state;
    struct program *whole = net(), *stage;
    struct device *d = open_ref();
    struct op_times *t;
    struct err e;
    int cut[2];
    const struct plan_options four = {.batch = 4, .training = true, .compute = DT_F64},
                              two = {.batch = 2, .training = true, .compute = DT_F64};
    const struct op_pause pause = {NULL, pause_once};
    assert_int_equal(op_times_create(&t, &e), 0);
    const struct op_load load = {whole, &four}, smaller = {whole, &two};
    assert_false(op_times_know(t, &load));
    pauses = 0;
    assert_int_equal(op_times_measure(t, d, &load, 3, &pause, &e), 0);
    assert_int_equal(pauses, 1);
    assert_true(op_times_know(t, &load));
    assert_false(op_times_know(t, &smaller)); /* other rows take another time */
    double all = 0, halves = 0;
    for (int i = 0; i < whole->nops; i++)
        all += op_times_of(t, &load, i);
    assert_true(all > 0);
    assert_int_equal(stages_cut(whole, 2, cut, &e), 0);
    for (int s = 0; s < 2; s++) {
        assert_int_equal(stages_program(&stage, whole, cut, 2, 2, s, &e), 0);
        const struct op_load half = {stage, &four};
        assert_true(op_times_know(t, &half));
        for (int i = 0; i < stage->nops; i++)
            halves += op_times_of(t, &half, i);
        assert_int_equal(op_times_measure(t, d, &half, 3, NULL, &e), 0); /* by itself, too: its chunk, both ways */
        program_destroy(stage);
    }
    assert_true(halves > 0.999 * all && halves < 1.001 * all);
    op_times_destroy(t);
    d->ops->close(d);
    program_destroy(whole);
}

static void weights_are_copied_part_by_part(void **state)
{
    (void)state;
    struct program *whole = net(), *stage;
    struct op_times *t;
    struct err e;
    int cut[4];
    const struct plan_options four = {.batch = 4, .training = true, .compute = DT_F64};
    const struct op_load load = {whole, &four};
    assert_int_equal(op_times_create(&t, &e), 0);
    assert_true(op_times_refresh(t, &load, NULL) == 0);
    op_times_set(t, "refresh", 1);
    const double all = op_times_refresh(t, &load, NULL);
    assert_true(all == 8 * 9 + 8 * 8 * 9 + 5 * 8 * 12 * 12); /* no biases */
    double parts = 0;
    assert_int_equal(stages_cut(whole, 4, cut, &e), 0);
    for (int s = 0; s < 2; s++) {
        assert_int_equal(stages_program(&stage, whole, cut, 4, 2, s, &e), 0);
        assert_int_equal(stage->nchunks, 2);
        for (int k = 0; k < 2; k++)
            parts += op_times_refresh(t, &(struct op_load){stage, &four}, &stage->chunks[k]);
        program_destroy(stage);
    }
    assert_true(parts == all);
    op_times_destroy(t);
    program_destroy(whole);
}

static void all_of_it_goes_through_text(void **state)
{
    (void)state;
    struct op_times *a, *b;
    struct err e;
    char *text;
    double v = 0;
    assert_int_equal(op_times_create(&a, &e), 0);
    assert_int_equal(op_times_create(&b, &e), 0);
    op_times_set(a, "copy", 1.5e-10);
    op_times_set(a, "update", 0);
    assert_int_equal(op_times_text(a, &text, &e), 0);
    assert_int_equal(op_times_read(b, text, &e), 0);
    assert_true(op_times_get(b, "copy", &v) && v == 1.5e-10);
    assert_true(op_times_get(b, "update", &v) && v == 0);
    assert_false(op_times_get(b, "load", &v));
    static const char *const wrong[] = {"x 1\n", "0123456789abcdef 1", "0123456789abcdef -1\n",
                                        "0123456789abcdef 1 2\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(op_times_read(b, wrong[i], &e), ERR_DATA);
    free(text);
    op_times_destroy(a);
    op_times_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_stage_does_is_known_from_the_whole_model),
        cmocka_unit_test(weights_are_copied_part_by_part),
        cmocka_unit_test(all_of_it_goes_through_text),
    };
    return cmocka_run_group_tests_name("times of operations", tests, NULL, NULL);
}
