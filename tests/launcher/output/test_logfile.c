/* One log file: whole lines through rotation, cap and full disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/output/process/logfile.h"

/* A disk of this many bytes stands before that of the C library; < 0: without end. */
static int64_t room = -1;
static int broken_fd = -1;
ssize_t write(int fd, const void *data, size_t n)
{
    if (fd != broken_fd || room < 0)
        return syscall(SYS_write, fd, data, n);
    if (room == 0) {
        errno = ENOSPC;
        return -1;
    }
    const ssize_t w = syscall(SYS_write, fd, data, (int64_t)n < room ? n : (size_t)room);
    room -= w;
    return w;
}

/* Time stands still unless a test moves it. */
static int64_t now_ms = 1000;
int64_t clock_ms(void)
{
    return now_ms;
}
int64_t clock_deadline(int64_t timeout_ms)
{
    return now_ms + timeout_ms;
}
int clock_left(int64_t deadline_ms)
{
    return deadline_ms > now_ms ? (int)(deadline_ms - now_ms) : 0;
}

static char folder[] = "/tmp/logfile-XXXXXX";
static char path[64];

static int setup(void **state)
{
    (void)state;
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    room = -1;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/f", folder);
    return 0;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void begin(struct logfile *f, struct logfile_limits limits)
{
    struct err e;
    assert_int_equal(logfile_open(f, AT_FDCWD, 0, path, &limits, &e), 0);
    broken_fd = f->fd;
}

static int put(struct logfile *f, const char *text)
{
    return logfile_write(f, text, strlen(text));
}

static void expect(int number, const char *text)
{
    char name[80], got[1000] = "";
    snprintf(name, sizeof name, number ? "%s.%d" : "%s", path, number);
    FILE *in = fopen(name, "r");
    if (!in)
        fail_msg("%s is missing", name);
    got[fread(got, 1, sizeof got - 1, in)] = '\0';
    fclose(in);
    assert_string_equal(got, text);
}

static bool exists(int number)
{
    char name[80];
    snprintf(name, sizeof name, "%s.%d", path, number);
    return access(name, F_OK) == 0;
}

static void what_was_there_stays(void **state)
{
    struct logfile f;
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(&f, (struct logfile_limits){0});
        assert_int_equal(put(&f, i ? "two" : "one\n"), 0);
        logfile_close(&f);
    }
    expect(0, "one\ntwo");
    assert_int_equal(put(&f, "closed"), 0);
}

static void a_line_that_an_earlier_job_left_without_its_end_is_ended(void **state)
{
    struct logfile f;
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(&f, (struct logfile_limits){0});
        put(&f, i ? "two\n" : "one");
        logfile_close(&f);
    }
    expect(0, "one\ntwo\n");
}

/* Rotated, the file cannot be begun anew: told with the line that finds it so. */
static void a_rotation_that_cannot_go_on_is_told_at_once(void **state)
{
    struct logfile f;
    struct rlimit before, none;
    (void)state;
    begin(&f, (struct logfile_limits){.rotate_bytes = 8});
    assert_int_equal(put(&f, "aaa\nbbb\n"), 0);
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const int told = put(&f, "ccc\n");
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(told, -EMFILE);
    assert_int_equal(put(&f, "ddd\n"), 0); /* once */
    logfile_close(&f);
    expect(1, "aaa\nbbb\n");
    expect(0, "crun: 8 bytes are missing here (Too many open files)\n");
}

static void files_are_rotated_between_lines(void **state)
{
    struct logfile f;
    (void)state;
    begin(&f, (struct logfile_limits){.rotate_bytes = 10});
    put(&f, "aaa\nbbb\ncc");
    put(&f, "c\nthis one is longer than ten\nd\n");
    put(&f, "e\n");
    logfile_close(&f);
    expect(1, "aaa\nbbb\nccc\n"); /* the line had begun */
    expect(2, "this one is longer than ten\n");
    expect(0, "d\ne\n");
}

static void old_files_of_others_are_never_removed(void **state)
{
    struct logfile f;
    (void)state;
    for (int job = 0; job < 2; job++) {
        begin(&f, (struct logfile_limits){.rotate_bytes = 4, .rotate_keep = 2});
        put(&f, "1aa\n2aa\n3aa\n4aa\n5aa\n");
        logfile_close(&f);
    }
    /* job 1 left .3 and .4 and "5aa", which became .5 of job 2 */
    assert_true(!exists(1) && !exists(2) && exists(3) && exists(4));
    expect(0, "5aa\n");
    expect(4, "4aa\n");
}

static void a_cap_ends_the_file_between_lines_and_counts(void **state)
{
    struct logfile f;
    (void)state;
    begin(&f, (struct logfile_limits){.max_bytes = 10});
    put(&f, "aaaa\nbb");
    put(&f, "bbbbbbb\ncc\n");
    put(&f, "dd\n");
    logfile_close(&f);
    expect(0, "aaaa\ncrun: 10 bytes are the most a file may hold (--log-max-size); what follows is left out\n"
              "crun: 16 bytes were left out\n");
}

static void a_full_disk_tears_no_line_and_is_told_once(void **state)
{
    struct logfile f;
    (void)state;
    begin(&f, (struct logfile_limits){0});
    room = 6;
    assert_int_equal(put(&f, "aaa\nbbbb\ncc"), -ENOSPC);
    assert_int_equal(put(&f, "c\n"), 0);
    expect(0, "aaa\n");
    now_ms += 1000;
    assert_int_equal(put(&f, "dd\n"), 0); /* still full */
    room = -1;
    assert_int_equal(put(&f, "ee\n"), 0); /* not yet asked again */
    now_ms += 1000;
    assert_int_equal(put(&f, "f"), 0);
    assert_int_equal(put(&f, "f\n"), 0);
    assert_int_equal((int)f.lost, 15);
    logfile_close(&f);
    expect(0, "aaa\ncrun: 15 bytes are missing here (No space left on device)\nff\n");
}

static void what_is_missing_at_the_end_is_said_if_it_can_be(void **state)
{
    struct logfile f;
    (void)state;
    begin(&f, (struct logfile_limits){0});
    room = 4;
    assert_int_equal(put(&f, "aaa\nbbbb\n"), -ENOSPC);
    room = -1;
    logfile_close(&f);
    expect(0, "aaa\ncrun: 5 bytes are missing here (No space left on device)\n");
}

/* Lines of all lengths in pieces of all lengths onto a disk that comes and goes: what is in the file are whole lines,
 * in order. */
static void whatever_the_disk_does_the_file_holds_whole_lines(void **state)
{
    struct logfile f;
    char stream[20000], line[64];
    size_t n = 0;
    (void)state;
    srand(3);
    for (int i = 0; n < sizeof stream - 64; i++)
        n += (size_t)sprintf(stream + n, "%d:%.*s\n", i, rand() % 40, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
    begin(&f, (struct logfile_limits){.rotate_bytes = 4000});
    for (size_t at = 0, part; at < n; at += part) {
        part = (size_t)rand() % 150 + 1;
        part = part < n - at ? part : n - at;
        room = rand() % 3 ? -1 : rand() % 100;
        now_ms += 400;
        logfile_write(&f, stream + at, part);
        broken_fd = f.fd;
    }
    room = -1;
    logfile_close(&f);
    const char *from = stream;
    uint64_t missing = 0, unused;
    for (int i = 1; i <= f.next; i++) {
        char name[80];
        snprintf(name, sizeof name, i < f.next ? "%s.%d" : "%s", path, i);
        FILE *in = fopen(name, "r");
        assert_non_null(in);
        while (fgets(line, sizeof line, in)) {
            if (sscanf(line, "crun: %llu bytes", (unsigned long long *)&unused) == 1) {
                missing += unused;
                if (!strchr(line, '\n'))
                    fgets(line, sizeof line, in);
                continue;
            }
            const char *found = strstr(from, line);
            if (!found || (found > stream && found[-1] != '\n'))
                fail_msg("torn or out of order: %s", line);
            from = found + strlen(line);
        }
        fclose(in);
    }
    assert_true(missing > 0);
    assert_int_equal(missing, f.lost);
}

static void a_fifo_holds_nobody_up(void **state)
{
    struct logfile f;
    struct err e;
    static char line[70001], got[70001];
    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20);
    assert_int_equal(logfile_open(&f, AT_FDCWD, 0, path, &(struct logfile_limits){0}, &e), ERR_OUTPUT);
    assert_non_null(strstr(e.text, "it is a FIFO that nobody reads"));
    const int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    begin(&f, (struct logfile_limits){0});
    memset(line, 'x', sizeof line - 2);
    line[sizeof line - 2] = '\n';
    assert_int_equal(put(&f, line), -EAGAIN);
    while (read(reader, got, sizeof got) > 0)
        ;
    now_ms += 1000;
    assert_int_equal(put(&f, "next\n"), 0);
    logfile_close(&f);
    memset(got, 0, sizeof got);
    assert_true(read(reader, got, sizeof got - 1) > 0);
    assert_int_equal(strncmp(got, "\ncrun: ", 7), 0);
    assert_non_null(strstr(got, " bytes are missing here (Resource temporarily unavailable)\nnext\n"));
    close(reader);
    alarm(0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_was_there_stays),
        CASE(a_line_that_an_earlier_job_left_without_its_end_is_ended),
        CASE(a_rotation_that_cannot_go_on_is_told_at_once),
        CASE(files_are_rotated_between_lines),
        CASE(old_files_of_others_are_never_removed),
        CASE(a_cap_ends_the_file_between_lines_and_counts),
        CASE(a_full_disk_tears_no_line_and_is_told_once),
        CASE(what_is_missing_at_the_end_is_said_if_it_can_be),
        CASE(whatever_the_disk_does_the_file_holds_whole_lines),
        CASE(a_fifo_holds_nobody_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
