#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/gpu_choice.h"

static int chosen(struct gpu_choice c, int visible)
{
    struct err e = {0};
    int index = -1;
    if (gpu_choose(&c, visible, &index, &e) < 0)
        fail_msg("%s", e.text);
    return index;
}

static void refused(struct gpu_choice c, int visible, const char *one, const char *other)
{
    struct err e = {0};
    int index;
    assert_int_equal(-ENODEV, gpu_choose(&c, visible, &index, &e));
    if (!strstr(e.text, one) || !strstr(e.text, other))
        fail_msg("'%s' does not say '%s' and '%s'", e.text, one, other);
}

static void a_rank_takes_the_gpu_of_its_local_number(void **state)
{
    for (int r = 0; r < 8; r++)
        assert_int_equal(r, chosen((struct gpu_choice){.local_rank = r}, 8));
    assert_int_equal(0, chosen((struct gpu_choice){0}, 4));
}

/* Whether they are the same for all is known once the ranks have met. */
static void more_ranks_than_a_rank_sees_gpus_take_them_in_turn(void **state)
{
    const int want[] = {0, 1, 2, 0, 1};
    for (int r = 0; r < 5; r++)
        assert_int_equal(want[r], chosen((struct gpu_choice){.local_rank = r}, 3));
}

static void a_list_names_the_gpu_of_each_rank(void **state)
{
    assert_int_equal(0, chosen((struct gpu_choice){.list = "0,2"}, 3));
    assert_int_equal(2, chosen((struct gpu_choice){.local_rank = 1, .list = "0,2"}, 3));
    assert_int_equal(11, chosen((struct gpu_choice){.list = "11"}, 12));
}

static void a_gpu_that_is_not_there_is_refused(void **state)
{
    refused((struct gpu_choice){.local_rank = 1, .list = "0,5"}, 2, "--gpus 0,5", "2 GPUs");
    refused((struct gpu_choice){.list = "1"}, 1, "--gpus 1", "1 GPU can");
}

#define CHECK(e, ...)                                                                                                  \
    gpu_check_taken((const struct gpu_taken[]){__VA_ARGS__},                                                           \
                    sizeof((const struct gpu_taken[]){__VA_ARGS__}) / sizeof(struct gpu_taken), e)

static void ranks_with_a_gpu_each_go_on(void **state)
{
    struct err e = {0};
    assert_int_equal(0, CHECK(&e, {"one", "a"}, {"one", "b"}, {"two", "c"}));
    assert_int_equal(0, CHECK(&e, {"one", "a"}));
}

/* Boards whose only GPU has no number of its own say the same on every machine. */
static void equal_gpus_of_different_machines_are_two(void **state)
{
    struct err e = {0};
    assert_int_equal(0, CHECK(&e, {"one", "0"}, {"two", "0"}));
}

static void ranks_that_may_share_or_have_no_gpu_are_not_compared(void **state)
{
    struct err e = {0};
    assert_int_equal(0, CHECK(&e, {"one", NULL}, {"one", NULL}, {"one", "a"}));
}

static void two_ranks_on_one_gpu_are_refused_and_named(void **state)
{
    static const char *const words[] = {"ranks 1 and 3 ",       "UUID b7", "start fewer",
                                        "CUDA_VISIBLE_DEVICES", "--gpus",  "--oversubscribe"};
    struct err e = {0};
    assert_int_equal(-ENODEV, CHECK(&e, {"one", "a"}, {"one", "b7"}, {"two", "b7"}, {"one", "b7"}, {"one", "a"}));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(e.text, words[i]))
            fail_msg("'%s' does not say '%s'", e.text, words[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_takes_the_gpu_of_its_local_number),
        cmocka_unit_test(more_ranks_than_a_rank_sees_gpus_take_them_in_turn),
        cmocka_unit_test(a_list_names_the_gpu_of_each_rank),
        cmocka_unit_test(a_gpu_that_is_not_there_is_refused),
        cmocka_unit_test(ranks_with_a_gpu_each_go_on),
        cmocka_unit_test(equal_gpus_of_different_machines_are_two),
        cmocka_unit_test(ranks_that_may_share_or_have_no_gpu_are_not_compared),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused_and_named),
    };
    return cmocka_run_group_tests_name("choice of a GPU", tests, NULL, NULL);
}
