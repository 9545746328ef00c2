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
        assert_int_equal(r, chosen((struct gpu_choice){.local_rank = r, .local_world = 8}, 8));
    assert_int_equal(0, chosen((struct gpu_choice){0}, 4));
}

static void more_ranks_than_gpus_are_refused_and_both_counts_named(void **state)
{
    refused((struct gpu_choice){.local_rank = 0, .local_world = 4}, 2, "4 ranks", "2 GPUs");
    refused((struct gpu_choice){.local_rank = 0, .local_world = 2}, 1, "2 ranks", "1 GPU ");
}

static void ranks_share_gpus_in_turn_where_that_is_asked_for(void **state)
{
    const int want[] = {0, 1, 2, 0, 1};
    for (int r = 0; r < 5; r++)
        assert_int_equal(want[r],
                         chosen((struct gpu_choice){.local_rank = r, .local_world = 5, .oversubscribe = true}, 3));
}

static void a_list_names_the_gpu_of_each_rank(void **state)
{
    assert_int_equal(0, chosen((struct gpu_choice){.local_rank = 0, .local_world = 2, .list = "0,2"}, 3));
    assert_int_equal(2, chosen((struct gpu_choice){.local_rank = 1, .local_world = 2, .list = "0,2"}, 3));
    assert_int_equal(11, chosen((struct gpu_choice){.local_rank = 0, .local_world = 1, .list = "11"}, 12));
}

static void a_gpu_that_is_not_there_is_refused(void **state)
{
    refused((struct gpu_choice){.local_rank = 1, .local_world = 2, .list = "0,5"}, 2, "--gpus 0,5", "2 GPUs");
    refused((struct gpu_choice){.local_rank = 0, .local_world = 1, .list = "1"}, 1, "--gpus 1", "1 GPU can");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_takes_the_gpu_of_its_local_number),
        cmocka_unit_test(more_ranks_than_gpus_are_refused_and_both_counts_named),
        cmocka_unit_test(ranks_share_gpus_in_turn_where_that_is_asked_for),
        cmocka_unit_test(a_list_names_the_gpu_of_each_rank),
        cmocka_unit_test(a_gpu_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests_name("choice of a GPU", tests, NULL, NULL);
}
