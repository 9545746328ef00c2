/* Ten steps out of a worker's page, and as text to group rank 0. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "launcher/straggler/straggler_steps.h"

static void write_step(struct crun_page *p, uint64_t step)
{
    const uint32_t us[CRUN_PAGE_PARTS] = {[CRUN_PART_DATA] = (uint32_t)step,
                                          [CRUN_PART_FORWARD] = 100,
                                          [CRUN_PART_BACKWARD] = 20,
                                          [CRUN_PART_WAIT] = 7,
                                          [CRUN_PART_UPDATE] = 3};
    crun_page_write_row(p, step, us);
}

static void the_newest_steps_are_read_and_no_others(void **state)
{
    (void)state;
    static struct crun_page p;
    struct straggler_rank r;
    assert_false(straggler_steps_read(&p, 10, &r));
    p.parts = 1;
    for (uint64_t s = 1; s <= 45; s++)
        write_step(&p, s);
    p.link_us[0] = 5;
    p.link_us[1] = 6;
    assert_true(straggler_steps_read(&p, 40, &r));
    assert_true(r.known && r.best_us == 5 && r.worst_us == 6);
    for (int k = 0; k < STRAGGLER_STEPS; k++) {
        assert_int_equal(r.data_us[k], 31 + k);
        assert_int_equal(r.compute_us[k], 123);
        assert_int_equal(r.wait_us[k], 7);
    }
    assert_true(straggler_steps_read(&p, 23, &r));  /* 14 to 23, of 14 to 45 */
    assert_false(straggler_steps_read(&p, 22, &r)); /* step 13 has made room */
    assert_false(straggler_steps_read(&p, 46, &r));
    p.rows[40 % CRUN_PAGE_ROWS].step = 0; /* it is being written */
    assert_false(straggler_steps_read(&p, 40, &r));
}

static void hours_of_compute_are_no_moment(void **state)
{
    (void)state;
    static struct crun_page p;
    struct straggler_rank r;
    const uint32_t us[CRUN_PAGE_PARTS] = {[CRUN_PART_FORWARD] = 3000000000, [CRUN_PART_BACKWARD] = 3000000000};
    p.parts = 1u << CRUN_PART_FORWARD;
    for (uint64_t s = 1; s <= STRAGGLER_STEPS; s++)
        crun_page_write_row(&p, s, us);
    assert_true(straggler_steps_read(&p, STRAGGLER_STEPS, &r));
    assert_int_equal(r.compute_us[0], UINT32_MAX);
}

static void text_is_read_as_it_was_written(void **state)
{
    (void)state;
    struct straggler_rank v[2], got[4];
    struct buf text = {0};
    uint64_t last;
    memset(v, 0, sizeof v);
    memset(got, 0, sizeof got);
    for (int k = 0; k < STRAGGLER_STEPS; k++)
        v[0].data_us[k] = v[1].wait_us[k] = UINT32_MAX - (uint32_t)k;
    v[0].known = v[1].known = true;
    v[0].node = v[1].node = 2; /* the first rank of it */
    v[1].best_us = 3;
    assert_int_equal(straggler_steps_write(&text, 1230, 2, v, 2), 0);
    assert_true(straggler_steps_parse(text.data, text.len, got, 4, &last));
    assert_int_equal(last, 1230);
    assert_memory_equal(&got[2], v, sizeof v);
    assert_false(got[0].known);
    const size_t last_number = (size_t)(strrchr(text.data, ' ') - text.data);
    for (size_t n = 0; n <= last_number; n++)
        assert_false(straggler_steps_parse(text.data, n, got, 4, &last));
    assert_false(straggler_steps_parse(text.data, text.len, got, 3, &last)); /* ranks that there are not */
    buf_free(&text);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    struct straggler_rank got[2];
    uint64_t last;
    static const char *const texts[] = {"",        "10",
                                        "10 0",    "x 0 1",
                                        "10 0 1",  "10 0 0 1",
                                        "10 -1 0", "10 0 99999999999999999999",
                                        "10  0 0", "18446744073709551626 0 0"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_false(straggler_steps_parse(texts[i], strlen(texts[i]), got, 2, &last));
    assert_true(straggler_steps_parse("10 0 0", 6, got, 2, &last));
    char two_in_one[256] = "10 0 1 4294967300"; /* its first nine digits are a number, and so is the rest */
    for (int i = 0; i < 3 * STRAGGLER_STEPS; i++)
        strcat(two_in_one, " 1");
    assert_false(straggler_steps_parse(two_in_one, strlen(two_in_one), got, 2, &last));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_steps_are_read_and_no_others),
        cmocka_unit_test(hours_of_compute_are_no_moment),
        cmocka_unit_test(text_is_read_as_it_was_written),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests_name("straggler_steps", tests, NULL, NULL);
}
