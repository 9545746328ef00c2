#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "worker/data/loader/left_out.h"
#include "worker/data/sets/dataset.h"

enum { MINUTE = 60000 };

static const char *name(struct dataset *d, size_t i)
{
    return "a sample";
}

static const struct dataset_ops ops = {.name = "test", .sample_name = name};
static struct dataset set = {.ops = &ops, .n = 100000, .classes = 10};
static const struct err why = {.text = "why"};

static bool is_told(struct left_out *o, uint32_t id, int label, int64_t now_ms)
{
    const int saved = fixture_capture_stderr();
    left_out_tell(o, &set, id, label, &why, now_ms);
    return fixture_captured_bytes(saved) > 0;
}

static void a_damaged_sample_is_told_once(void **state)
{
    struct left_out o;
    assert_int_equal(left_out_init(&o, set.n, 1, NULL), 0);
    assert_true(is_told(&o, 7, 0, 0) && is_told(&o, 8, 9, 0) && is_told(&o, 99999, 0, 0));
    assert_true(!is_told(&o, 7, 0, 0) && !is_told(&o, 99999, 0, 100 * MINUTE));
    left_out_know(&o, 11);
    assert_true(!is_told(&o, 11, 0, 0)); /* by another rank */
    assert_int_equal(o.n_items, 3);
    assert_int_equal(o.items[1].id, 8);
    assert_string_equal(o.items[1].why, "why");
    left_out_forget(&o);
    assert_true(!is_told(&o, 7, 0, 0) && o.n_items == 0);
    left_out_finish(&o);
}

static void after_twenty_names_damaged_samples_are_counted(void **state)
{
    for (int ranks = 1; ranks <= 64; ranks *= 4) {
        struct left_out o;
        int told = 0;
        const int names = (LEFT_OUT_NAMES + ranks - 1) / ranks;
        assert_int_equal(left_out_init(&o, set.n, ranks, NULL), 0);
        for (uint32_t i = 0; i < 1000; i++)
            told += is_told(&o, i, 0, 5);
        assert_int_equal(told, names);
        assert_true(is_told(&o, 1000, 0, 5 + MINUTE) && !is_told(&o, 1001, 0, 6 + MINUTE));
        assert_int_equal(o.damaged.n, 1002);
        assert_int_equal(o.n_items, 1002);
        left_out_finish(&o);
    }
}

static void labels_that_are_no_class_are_told_after_pauses_that_grow(void **state)
{
    struct left_out o;
    int told = 0;
    assert_int_equal(left_out_init(&o, set.n, 1, NULL), 0);
    for (uint32_t second = 0; second < 31 * 60; second++)
        told += is_told(&o, second, second % 2 ? -1 : 10, (int64_t)second * 1000);
    assert_int_equal(told, 5); /* at 0, 1, 3, 7 and 15 minutes */
    assert_int_equal(o.labels.n, 31 * 60);
    assert_int_equal(o.most, 10);
    assert_true(!is_told(&o, 5, 11, 200 * MINUTE)); /* counted already */
    assert_true(is_told(&o, 90000, 3, 0));          /* of another kind */
    left_out_finish(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_sample_is_told_once),
        cmocka_unit_test(after_twenty_names_damaged_samples_are_counted),
        cmocka_unit_test(labels_that_are_no_class_are_told_after_pauses_that_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
