#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/path.h"

static void folders_are_made_with_those_above_them(void **state)
{
    char dir[] = "/tmp/crun-path-XXXXXX", path[64];
    struct err e;
    struct stat st;
    (void)state;
    assert_non_null(mkdtemp(dir));
    strcat(strcpy(path, dir), "/a/b");
    assert_int_equal(path_make_dirs(path, &e), 0);
    assert_int_equal(path_make_dirs(path, &e), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    rmdir(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(dir);
}

/* Nobody makes a folder in /sys, and the kernel says why: there being no such folder is not the reason. */
static void why_a_folder_cannot_be_made_is_told(void **state)
{
    struct err e;
    char says[200];
    (void)state;
    assert_int_equal(mkdir("/sys/crun-test", 0777), -1);
    snprintf(says, sizeof says, "cannot make folder /sys/crun-test: %s", strerror(errno));
    assert_int_equal(path_make_dirs("/sys/crun-test/a", &e), ERR_OUTPUT);
    assert_string_equal(e.text, says);
    assert_int_equal(path_make_dirs("/dev/null/a", &e), ERR_OUTPUT);
    assert_string_equal(e.text, "cannot make folder /dev/null/a: Not a directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_made_with_those_above_them),
        cmocka_unit_test(why_a_folder_cannot_be_made_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
