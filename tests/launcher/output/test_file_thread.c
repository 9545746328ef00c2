/* Log files on a thread of their own: what a disk that stands still costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/err.h"
#include "launcher/output/process/queued_file.h"

#define LINE 1000

/* A disk that stands still before that of the C library. */
static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;
static atomic_int arrived; /* lines that have come to it */
static pthread_t tester;
ssize_t write(int fd, const void *data, size_t n)
{
    if (pthread_equal(pthread_self(), tester))
        return syscall(SYS_write, fd, data, n);
    arrived += n >= LINE; /* the loop is woken by a write too */
    pthread_mutex_lock(&disk);
    const ssize_t w = syscall(SYS_write, fd, data, n);
    pthread_mutex_unlock(&disk);
    return w;
}

static uv_loop_t loop;
static struct file_thread *files;
static char path[] = "/tmp/file-thread-XXXXXX";
static char said[2][512];
static int n_said;

static void print(void *arg, const char *text)
{
    (void)arg;
    snprintf(said[n_said++ % 2], sizeof *said, "%s", text);
}

static void moved(void *arg)
{
    (void)arg;
}

static int set_up(void **state)
{
    const struct file_thread_options o = {.disk = "the disk", .meanwhile = "it waits", .print = print, .moved = moved};
    (void)state;
    tester = pthread_self();
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) < 0 || uv_loop_init(&loop) < 0 || file_thread_create(&files, &loop, &o, NULL) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

struct opening {
    struct file_job job;
    struct queued_file *file;
    int rc;
};

static void open_now(struct file_job *job)
{
    struct opening *o = (struct opening *)job;
    o->rc = queued_file_open_now(o->file, AT_FDCWD, NULL);
}

static struct queued_file *open_file(void)
{
    static struct opening o;
    const struct logfile_limits none = {0};
    assert_int_equal(truncate(path, 0), 0);
    o = (struct opening){.job = {.work = open_now}, .file = queued_file_create(files, path, 0, &none)};
    file_thread_add(files, &o.job);
    return o.file;
}

static void await_idle(void)
{
    while (!file_thread_is_idle(files))
        uv_run(&loop, UV_RUN_ONCE);
}

/* Lines with their numbers, LINE bytes each. */
static void write_lines(struct queued_file *f, int from, int to)
{
    char line[LINE + 1];
    for (int i = from; i < to; i++) {
        snprintf(line, sizeof line, "%0*d\n", LINE - 1, i);
        queued_file_write(f, line, LINE);
    }
}

/* Lines that are there, all in order; bytes told as missing. */
static int read_lines(unsigned long long *ret_missing)
{
    char line[LINE + 64];
    int n = 0, last = -1;
    FILE *f = fopen(path, "re");
    *ret_missing = 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "crun: ", 6) == 0) {
            *ret_missing += strtoull(line + 6, NULL, 10);
            assert_non_null(strstr(line, " bytes are missing here (the disk did not take them in time)\n"));
            continue;
        }
        assert_int_equal(strlen(line), LINE);
        assert_true(atoi(line) > last);
        last = atoi(line);
        n++;
    }
    fclose(f);
    return n;
}

static void what_waits_is_bounded_and_the_rest_is_counted(void **state)
{
    const int lines = 3 * (int)FILE_WAITS_MAX / LINE;
    unsigned long long missing;
    (void)state;
    struct queued_file *f = open_file();
    await_idle();
    pthread_mutex_lock(&disk);
    write_lines(f, 0, lines);
    assert_true(queued_file_is_full(f));
    assert_true(queued_files_waiting(files).bytes <= FILE_WAITS_MAX);
    const uint64_t lost = queued_files_lost(files);
    assert_int_equal(lost + queued_files_waiting(files).bytes, (uint64_t)lines * LINE);
    pthread_mutex_unlock(&disk);
    await_idle();
    write_lines(f, lines, lines + 10); /* it works again */
    queued_file_close(f);
    await_idle();
    const int there = read_lines(&missing);
    assert_int_equal(missing, lost);
    assert_int_equal((uint64_t)there * LINE + missing, (uint64_t)(lines + 10) * LINE);
}

static void a_line_whose_end_is_dropped_goes_as_a_whole(void **state)
{
    static char half[FILE_WAITS_MAX - 10];
    unsigned long long missing;
    (void)state;
    struct queued_file *f = open_file();
    await_idle();
    pthread_mutex_lock(&disk);
    const int before = arrived;
    write_lines(f, 0, 1);
    while (arrived == before) /* what comes from now on is not in hand */
        uv_run(&loop, UV_RUN_NOWAIT);
    memset(half, 'x', sizeof half);
    queued_file_write(f, half, sizeof half - LINE);
    queued_file_write(f, half, sizeof half); /* and its end, in what does not fit */
    queued_file_write(f, "\n", 1);
    pthread_mutex_unlock(&disk);
    await_idle();
    queued_file_close(f);
    await_idle();
    assert_int_equal(read_lines(&missing), 1);
    assert_int_equal(missing, 2 * sizeof half - LINE + 1);
}

static void a_disk_that_stands_still_is_told_and_so_is_its_return(void **state)
{
    (void)state;
    struct queued_file *f = open_file();
    await_idle();
    n_said = 0;
    pthread_mutex_lock(&disk);
    write_lines(f, 0, 1);
    while (n_said < 1)
        uv_run(&loop, UV_RUN_ONCE);
    assert_non_null(strstr(said[0], path));
    pthread_mutex_unlock(&disk);
    queued_file_close(f);
    await_idle();
    while (n_said < 2)
        uv_run(&loop, UV_RUN_ONCE);
    assert_non_null(strstr(said[1], "answers again"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_waits_is_bounded_and_the_rest_is_counted),
        cmocka_unit_test(a_line_whose_end_is_dropped_goes_as_a_whole),
        cmocka_unit_test(a_disk_that_stands_still_is_told_and_so_is_its_return),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
