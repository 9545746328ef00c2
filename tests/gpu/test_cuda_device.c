/* The GPU suite: skipped, with the reason, where there is no device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "worker/device/device.h"

static void the_cuda_device_opens_or_says_in_one_sentence_why_not(void **state)
{
    (void)state;
    struct device *d = NULL;
    struct err e = {0};
    struct device_options o = {.threads = 1};
    int rc = device_open(&d, "cuda", &o, &e);
    if (rc < 0) {
        assert_int_equal(rc, -ENODEV);
        assert_true(strlen(e.text) > 0 && !strchr(e.text, '\n'));
        print_message("# %s\n", e.text);
        skip();
    }
    d->ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cuda_device_opens_or_says_in_one_sentence_why_not),
    };
    return cmocka_run_group_tests_name("gpu", tests, NULL, NULL);
}
