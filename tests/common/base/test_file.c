/* Whole files, and what is not quite one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"

/* A file of n bytes, at its beginning. */
static int file_of(size_t n)
{
    char *text = calloc(1, n + 1);
    const int fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + i % 26);
    assert_int_equal(file_write_all(fd, text, n), 0);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), n);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    free(text);
    return fd;
}

static void files_of_all_sizes_are_read_whole(void **state)
{
    static const size_t sizes[] = {0, 1, 25, 4096, 16384, 300001};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct buf b = {.max = sizes[i] + 7}; /* what it holds is just what it may */
        const int fd = file_of(sizes[i]);
        assert_int_equal(buf_addstr(&b, "before "), 0);
        assert_int_equal(file_read_all(fd, &b), 0);
        assert_int_equal(b.len, 7 + sizes[i]);
        assert_int_equal(strlen(b.data), b.len);
        assert_int_equal(b.data[b.len - 1], sizes[i] ? 'a' + (char)((sizes[i] - 1) % 26) : ' ');
        close(fd);
        buf_free(&b);
    }
}

static void what_has_no_size_is_read_to_its_end(void **state)
{
    struct buf b = {0};
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(file_write_all(ends[1], "through a pipe", 14), 0);
    close(ends[1]);
    assert_int_equal(file_read_all(ends[0], &b), 0);
    assert_string_equal(b.data, "through a pipe");
    close(ends[0]);
    buf_clear(&b);
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    assert_int_equal(file_read_all(fd, &b), 0);
    assert_non_null(strstr(b.data, "Pid:"));
    close(fd);
    buf_free(&b);
}

static void more_than_the_limit_is_refused(void **state)
{
    struct buf b = {.max = 99};
    const char text[100] = "";
    int ends[2];
    (void)state;
    const int fd = file_of(100);
    assert_int_equal(file_read_all(fd, &b), -E2BIG);
    close(fd);
    buf_clear(&b);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(file_write_all(ends[1], text, sizeof text), 0);
    close(ends[1]);
    assert_int_equal(file_read_all(ends[0], &b), -E2BIG);
    close(ends[0]);
    buf_free(&b);
}

static void errors_are_told(void **state)
{
    struct buf b = {0};
    (void)state;
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC), folder = open("/", O_RDONLY | O_CLOEXEC);
    assert_int_equal(file_write_all(full, "x", 1), -ENOSPC);
    assert_int_equal(file_write_all(full, "", 0), 0);
    assert_int_equal(file_read_all(folder, &b), -EISDIR);
    assert_int_equal(file_read_all(-1, &b), -EBADF);
    close(full);
    close(folder);
    buf_free(&b);
}

static void small_files_are_read_by_their_paths(void **state)
{
    const char *text = "12 of them\nand more\n";
    char out[16], path[64];
    const int fd = memfd_create("small", MFD_CLOEXEC);
    assert_int_equal(file_write_all(fd, text, strlen(text)), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)state;
    assert_int_equal(file_read_text(out, sizeof out, "/proc/self/fd/%d", fd), sizeof out - 1);
    assert_string_equal(out, "12 of them\nand ");
    assert_int_equal(file_read_line(out, sizeof out, "%s", path), 10);
    assert_string_equal(out, "12 of them");
    assert_int_equal(file_read_line(out, 4, "%s", path), 3);
    assert_int_equal(file_read_int(-1, "%s", path), 12);
    assert_int_equal(file_read_line(out, sizeof out, "%s/none", path), -ENOTDIR);
    assert_string_equal(out, "");
    assert_int_equal(file_read_int(-1, "%s/none", path), -1);
    assert_int_equal(file_read_line(out, sizeof out, "%5000s", path), -ENAMETOOLONG);
    close(fd);
}

static void what_is_no_regular_file_is_not_waited_for(void **state)
{
    char dir[] = "/tmp/crun-file.XXXXXX", path[64];
    struct err e;
    FILE *f = NULL;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/x", dir);
    assert_int_equal(file_open_regular(path, ERR_DATA, &e), -ENOENT);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_open_regular(path, ERR_DATA, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "/x is not a regular file, but a named pipe"));
    assert_int_equal(file_stream_regular(&f, path, ERR_CORRUPT, &e), ERR_CORRUPT);
    assert_null(f);
    unlink(path);
    assert_int_equal(file_open_regular("/dev/null", ERR_DATA, &e), ERR_DATA);
    assert_string_equal(e.text, "/dev/null is not a regular file, but a device");
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(file_write_all(fd, "abc", 3), 0);
    close(fd);
    assert_int_equal(file_stream_regular(&f, path, ERR_CORRUPT, &e), 0);
    assert_int_equal(getc(f), 'a');
    fclose(f);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_all_sizes_are_read_whole),
        cmocka_unit_test(what_has_no_size_is_read_to_its_end),
        cmocka_unit_test(more_than_the_limit_is_refused),
        cmocka_unit_test(errors_are_told),
        cmocka_unit_test(small_files_are_read_by_their_paths),
        cmocka_unit_test(what_is_no_regular_file_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
