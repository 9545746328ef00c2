/* The rungs of trainer gpu-doctor, climbed by a stand-in for trainer: a script that leaves a loss where it is told to
 * log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/cli/gpu_ladder.h"

#define PATIENCE_MS 60000

/* Losses are 1.5, but with one option. */
static const char stand_in[] =
    "#!/bin/sh\n"
    "loss=1.5\n"
    "for a in \"$@\"; do\n"
    "  case \"$a\" in\n"
    "  --log-dir=*) dir=\"${a#--log-dir=}\" ;;\n"
    "  --sync-bn) loss=3.5; echo the stand-in says so ;;\n"
    "  esac\n"
    "done\n"
    "[ -z \"$dir\" ] || echo \"{\\\"step\\\":1,\\\"loss\\\":$loss,\\\"lr\\\":0.1}\" >\"$dir/metrics.jsonl\"\n";

static struct gpu_ladder ladder(void **state, int gpus)
{
    const char *self = scratch(state, "a program");
    scratch_write(self, stand_in, sizeof stand_in - 1);
    assert_int_equal(chmod(self, 0755), 0);
    return (struct gpu_ladder){.out = scratch(state, "a folder"),
                               .self = self,
                               .deadline_ms = clock_deadline(PATIENCE_MS),
                               .gpus = gpus,
                               .steps = 3,
                               .batch = 2,
                               .arch = "resnet18",
                               .image_size = 32};
}

static void rungs_run_in_folders_of_any_name_and_the_first_that_differs_is_named(void **state)
{
    struct gpu_ladder l = ladder(state, 2);
    struct err why = {0}, e = {0};
    const char *failed = NULL;
    assert_int_equal(gpu_ladder_climb(&l, &failed, &why, &e), 0);
    assert_non_null(failed);
    assert_string_equal(failed, "two ranks");
    assert_non_null(strstr(why.text, "its last loss is 3.5000, that of plain convolutions 1.5000"));
}

static void a_rung_that_takes_too_long_is_ended(void **state)
{
    static const char sleeps[] = "#!/bin/sh\nexec sleep 1000\n";
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    const char *failed = NULL;
    scratch_write(l.self, sleeps, sizeof sleeps - 1);
    l.deadline_ms = clock_deadline(50);
    assert_int_equal(gpu_ladder_climb(&l, &failed, &why, &e), 0);
    assert_string_equal(failed, "device");
    assert_int_equal(why.code, -ETIMEDOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rungs_run_in_folders_of_any_name_and_the_first_that_differs_is_named,
                                        scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_rung_that_takes_too_long_is_ended, scratch_make, scratch_drop),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
