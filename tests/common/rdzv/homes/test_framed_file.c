/* Files of one frame each, as nodes find them in a shared folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/rdzv/homes/framed_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];
static int dir_fd;

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/framed-file-XXXXXX");
    dir_fd = mkdtemp(dir) ? open(dir, O_RDONLY | O_DIRECTORY) : -1;
    return dir_fd < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    char command[96];
    (void)state;
    close(dir_fd);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void put(const char *text)
{
    assert_int_equal(framed_file_write(dir_fd, "f", 0, false, text, strlen(text)), 0);
}

static void put_bytes(const char *bytes, size_t n)
{
    const int fd = openat(dir_fd, "f", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

static void what_was_written_last_is_read(void **state)
{
    static const char *const texts[] = {"a longer text", "short", "", "again a longer one\nof two lines\n"};
    struct buf b = {0};
    (void)state;
    assert_int_equal(framed_file_read(dir_fd, "f", &b), -ENOENT);
    put_bytes("", 0);
    assert_int_equal(framed_file_read(dir_fd, "f", &b), -ENOENT); /* made, and nothing written yet */
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(texts[i]);
        assert_int_equal(framed_file_read(dir_fd, "f", &b), 0);
        assert_string_equal(b.data, texts[i]);
    }
    buf_free(&b);
}

static void a_torn_file_is_known(void **state)
{
    struct buf b = {0};
    (void)state;
    put("some text");
    assert_int_equal(framed_file_read(dir_fd, "f", &b), 0);
    const int fd = openat(dir_fd, "f", O_WRONLY);
    assert_int_equal(ftruncate(fd, 31), 0);
    close(fd);
    assert_int_equal(framed_file_read(dir_fd, "f", &b), -EAGAIN);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_last_is_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_torn_file_is_known, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
