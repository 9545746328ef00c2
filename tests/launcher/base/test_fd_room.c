/* Room in the table of descriptors: what /proc shows of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "launcher/base/fd_room.h"

static int table_size(void)
{
    char line[200];
    int size = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "FDSize: %d", &size);
    if (f)
        fclose(f);
    return size;
}

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 2048; fd++)
        n += dup2(fd, fd) == fd;
    return n;
}

static void the_table_has_room_and_nothing_stays_open(void **state)
{
    const int before = open_files();
    (void)state;
    fd_room_make();
    assert_in_range(table_size(), 1024, 1 << 20);
    assert_int_equal(open_files(), before);
}

static void a_small_limit_is_no_error(void **state)
{
    int status = -1;
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit small = {.rlim_cur = 100, .rlim_max = 100};
        setrlimit(RLIMIT_NOFILE, &small);
        fd_room_make();
        _exit(table_size() >= 100 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_table_has_room_and_nothing_stays_open),
                                       cmocka_unit_test(a_small_limit_is_no_error)};
    return cmocka_run_group_tests_name("room for descriptors", tests, NULL, NULL);
}
