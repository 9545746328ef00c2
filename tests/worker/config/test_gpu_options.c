/* From the command line's options to those of the device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/device/device.h"

static struct gpu_options parsed_of(bool alone, int argc, char **argv)
{
    struct train_config c;
    struct arg_result r;
    struct err e = {0};
    struct gpu_options o;
    static char cache[CONFIG_CACHE_BYTES];
    memset(&c, 0, sizeof c);
    if (args_parse(&train_program, argc, argv, &c, &r, &e) < 0)
        fail_msg("%s", e.text);
    train_config_gpu(&c, alone, &o, cache);
    return o;
}
#define PARSED_OF(alone, ...)                                                                                          \
    parsed_of(alone, (int)(sizeof((char *[]){"train", "--train-data", "x", __VA_ARGS__}) / sizeof(char *)),            \
              (char *[]){"train", "--train-data", "x", __VA_ARGS__, NULL})
#define PARSED(...) PARSED_OF(true, __VA_ARGS__)

static void by_default_everything_fast_is_on(void **state)
{
    const struct gpu_options o = PARSED("--arch", "resnet18");
    assert_true(!o.eager && o.tune && o.tf32 && o.fused && !o.deterministic);
    assert_true(o.workspace_limit == 0 && o.tune_seconds == 60);
}

static void each_option_reaches_the_device(void **state)
{
    assert_true(PARSED("--no-cuda-graphs").eager);
    assert_false(PARSED("--autotune=off").tune);
    assert_false(PARSED("--no-tf32").tf32);
    assert_false(PARSED("--no-conv-fusion").fused);
    assert_true(PARSED("--deterministic").deterministic);
    assert_int_equal((size_t)64 << 20, PARSED("--cudnn-workspace-limit-mb", "64").workspace_limit);
    assert_string_equal("/c", PARSED("--plan-cache", "/c").cache_dir);
    assert_null(PARSED("--plan-cache", "none").cache_dir);
    assert_null(PARSED("--plan-cache", "").cache_dir);
    assert_true(PARSED("--tune-seconds", "5").tune_seconds == 5);
    assert_true(PARSED("--tune-seconds", "0").tune_seconds == 0);
}

static void others_do_not_wait_past_their_deadline(void **state)
{
    assert_true(PARSED_OF(false, "--tune-seconds", "10m", "--comm-timeout", "40").tune_seconds == 20);
    assert_true(PARSED_OF(false, "--tune-seconds", "0", "--comm-timeout", "40").tune_seconds == 20);
    assert_true(PARSED_OF(false, "--tune-seconds", "5", "--comm-timeout", "40").tune_seconds == 5);
    assert_true(PARSED("--tune-seconds", "10m", "--comm-timeout", "40").tune_seconds == 600);
}

static void plans_are_kept_in_the_users_cache(void **state)
{
    setenv("HOME", "/home/x", 1);
    setenv("XDG_CACHE_HOME", "/y", 1);
    assert_string_equal("/y/crun/plans", PARSED("--arch", "resnet18").cache_dir);
    unsetenv("XDG_CACHE_HOME");
    assert_string_equal("/home/x/.cache/crun/plans", PARSED("--arch", "resnet18").cache_dir);
    unsetenv("HOME");
    assert_null(PARSED("--arch", "resnet18").cache_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_default_everything_fast_is_on),
        cmocka_unit_test(each_option_reaches_the_device),
        cmocka_unit_test(others_do_not_wait_past_their_deadline),
        cmocka_unit_test(plans_are_kept_in_the_users_cache),
    };
    return cmocka_run_group_tests_name("options of GPUs", tests, NULL, NULL);
}
