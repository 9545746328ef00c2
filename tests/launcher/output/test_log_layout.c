/* Where log files lie: nothing of an earlier round or job is met again in the layout of torchrun. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/process/logfile.h"

static char folder[] = "/tmp/layout-XXXXXX";

static int setup(void **state)
{
    (void)state;
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void open_layout(struct log_layout *l, int kind)
{
    const struct log_conf c = {.dir = folder, .layout = kind};
    struct err e;
    assert_int_equal(log_layout_choose(l, &c, "job", &e), 0);
    if (l->torchrun)
        assert_int_equal(log_layout_make_root(l, &e), 0);
}

static void jobs_of_different_names_have_different_folders(void **state)
{
    static const struct {
        const char *id, *folder;
    } cases[] = {{"a_b", "/a_b"}, {"a/b", "/a%2Fb"}, {"a%2Fb", "/a%252Fb"}, {"a b", "/a b"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct log_layout l;
        struct err e;
        assert_int_equal(log_layout_plan(&l, &(struct log_conf){.dir = folder}, cases[i].id, &e), 0);
        assert_string_equal(strrchr(l.root, '/'), cases[i].folder);
    }
}

static void expect_path(const struct log_layout *l, int local, int rank, enum log_file kind, const char *tail)
{
    char path[LOG_PATH_MAX], expected[LOG_PATH_MAX + 64];
    snprintf(expected, sizeof expected, "%s/%s", l->root, tail);
    assert_string_equal(log_layout_path(l, local, rank, kind, path), expected);
}

static void make_round(const struct log_layout *l)
{
    struct err e;
    const int root = log_layout_open_root(l, &e);
    assert_true(root >= 0);
    assert_int_equal(log_layout_make_round(l, root, 2, &e), 0);
    close(root);
}

static void files_are_found_by_round_and_rank(void **state)
{
    struct log_layout l;
    char path[LOG_PATH_MAX];
    (void)state;
    open_layout(&l, LOG_LAYOUT_CRUN);
    log_layout_name_round(&l, 12, 3);
    make_round(&l);
    assert_int_equal(access(l.round, W_OK), 0);
    expect_path(&l, 1, 9, LOG_FILE_OUT, "round-12/rank-9.out");
    expect_path(&l, 1, 9, LOG_FILE_ERR, "round-12/rank-9.err");
    expect_path(&l, 1, 9, LOG_FILE_ERROR, "round-12/rank-9.error.json");
    assert_non_null(strstr(log_layout_filtered(&l, 2, LOG_FILE_ERR, path), "/job/round-12/filtered-2.err"));
}

static void a_round_that_counts_as_no_restart_gets_an_attempt_of_its_own(void **state)
{
    static const struct {
        int restarts;
        const char *path;
    } rounds[] = {{0, "attempt_0/1/stdout.log"}, /* start */
                  {0, "attempt_1/1/stdout.log"}, /* a node came */
                  {0, "attempt_2/1/stdout.log"},
                  {1, "attempt_3/1/stdout.log"}, /* a worker failed */
                  {5, "attempt_5/1/stdout.log"}};
    struct log_layout l;
    (void)state;
    open_layout(&l, LOG_LAYOUT_TORCHRUN);
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        log_layout_name_round(&l, i + 1, rounds[i].restarts);
        make_round(&l);
        expect_path(&l, 1, 9, LOG_FILE_OUT, rounds[i].path);
    }
}

static void a_root_of_a_random_name_is_nobody_elses(void **state)
{
    struct log_layout l, other;
    struct err e;
    (void)state;
    open_layout(&l, LOG_LAYOUT_TORCHRUN);
    open_layout(&other, LOG_LAYOUT_TORCHRUN);
    assert_string_not_equal(l.root, other.root);
    assert_int_equal(log_layout_make_root(&l, &e), ERR_OUTPUT);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode;
}

static void in_a_shared_folder_a_job_makes_its_own(void **state)
{
    char shared[128], parent[2048];
    snprintf(shared, sizeof shared, "%s/torchelastic_XXXXXX", folder);
    const struct log_conf c = {.dir = shared, .dir_is_private = true, .layout = LOG_LAYOUT_TORCHRUN};
    struct log_layout l, other;
    struct err e;
    (void)state;
    assert_int_equal(log_layout_choose(&l, &c, "job", &e), 0);
    assert_int_equal(log_layout_choose(&other, &c, "job", &e), 0);
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(l.root, '/') - l.root), l.root);
    assert_null(strstr(l.root, "XXXXXX"));
    assert_int_not_equal(strncmp(l.root, other.root, strlen(parent)), 0);
    assert_int_equal(log_layout_make_root(&l, &e), 0);
    assert_int_equal(mode_of(parent), S_IFDIR | 0700);
    assert_int_equal(mode_of(l.root), S_IFDIR | 0700);
}

/* As another user can, who may write into the folder above the root. */
static void another_folder_in_the_place_of_the_root_gets_nothing(void **state)
{
    char moved[2048 + 8], path[LOG_PATH_MAX];
    struct log_layout l;
    struct logfile f;
    struct err e;
    (void)state;
    open_layout(&l, LOG_LAYOUT_TORCHRUN);
    const int root = log_layout_open_root(&l, &e);
    snprintf(moved, sizeof moved, "%s.moved", l.root);
    assert_int_equal(rename(l.root, moved), 0);
    assert_int_equal(mkdir(l.root, 0777), 0);
    log_layout_name_round(&l, 1, 0);
    assert_int_equal(log_layout_make_round(&l, root, 1, &e), 0);
    log_layout_path(&l, 0, 0, LOG_FILE_OUT, path);
    assert_int_equal(logfile_open(&f, root, log_layout_root_bytes(&l), path, &(struct logfile_limits){0}, &e), 0);
    logfile_close(&f);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/attempt_0/0/stdout.log", moved);
    assert_int_equal(mode_of(path) & S_IFMT, S_IFREG);
    close(root);
}

static void a_link_in_the_place_of_a_file_or_folder_is_refused(void **state)
{
    char path[LOG_PATH_MAX];
    struct log_layout l;
    struct logfile f;
    struct err e;
    (void)state;
    open_layout(&l, LOG_LAYOUT_CRUN);
    log_layout_name_round(&l, 1, 0);
    make_round(&l);
    const int root = log_layout_open_root(&l, &e);
    log_layout_path(&l, 0, 0, LOG_FILE_OUT, path);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(logfile_open(&f, root, log_layout_root_bytes(&l), path, &(struct logfile_limits){0}, &e),
                     ERR_OUTPUT);
    assert_non_null(strstr(e.text, "symbolic link"));
    log_layout_name_round(&l, 2, 0);
    assert_int_equal(symlink("/tmp", l.round), 0);
    assert_int_equal(log_layout_make_round(&l, root, 1, &e), ERR_OUTPUT);
    close(root);
}

/* Our own may lead to another disk. */
static void a_link_in_the_place_of_the_root_is_followed_if_it_is_ours(void **state)
{
    char other[64], path[LOG_PATH_MAX];
    struct log_layout l;
    struct err e;
    (void)state;
    open_layout(&l, LOG_LAYOUT_CRUN);
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(mkdir(other, 0777), 0);
    assert_int_equal(symlink("other", l.root), 0);
    log_layout_name_round(&l, 1, 0);
    make_round(&l);
    snprintf(path, sizeof path, "%s/round-1", other);
    assert_int_equal(mode_of(path) & S_IFMT, S_IFDIR);
    if (geteuid() != 0)
        return;
    assert_int_equal(lchown(l.root, 65534, 65534), 0);
    assert_int_equal(log_layout_open_root(&l, &e), ERR_OUTPUT);
    assert_non_null(strstr(e.text, "is a symbolic link of another user"));
}

static void without_a_folder_nothing_is_made(void **state)
{
    const struct log_conf c = {0};
    struct log_layout l;
    struct err e;
    (void)state;
    assert_int_equal(log_layout_choose(&l, &c, "job", &e), 0);
    assert_int_equal(log_layout_make_round(&l, -1, 1, &e), 0);
    assert_string_equal(l.root, "");
}

static void a_path_that_is_too_long_is_refused(void **state)
{
    char dir[2048];
    struct log_layout l;
    struct err e;
    (void)state;
    memset(dir, 'x', sizeof dir - 1);
    dir[0] = '/';
    dir[sizeof dir - 1] = '\0';
    const struct log_conf c = {.dir = dir};
    assert_int_equal(log_layout_choose(&l, &c, "job", &e), ERR_OUTPUT);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(jobs_of_different_names_have_different_folders),
        CASE(files_are_found_by_round_and_rank),
        CASE(a_round_that_counts_as_no_restart_gets_an_attempt_of_its_own),
        CASE(a_root_of_a_random_name_is_nobody_elses),
        CASE(in_a_shared_folder_a_job_makes_its_own),
        CASE(another_folder_in_the_place_of_the_root_gets_nothing),
        CASE(a_link_in_the_place_of_a_file_or_folder_is_refused),
        CASE(a_link_in_the_place_of_the_root_is_followed_if_it_is_ours),
        CASE(without_a_folder_nothing_is_made),
        CASE(a_path_that_is_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
