#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/sets/dataset.h"

static int asked; /* calls of stat() from worker/data, which this replaces */

int stat64(const char *path, struct stat64 *ret)
{
    asked++;
    return fstatat64(AT_FDCWD, path, ret, 0);
}

static void put(const char *dir, const char *name)
{
    fixture_file(dir, name, name, strlen(name));
}

static void add_folder(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(mkdir(path, 0777), 0);
}

static void open_fails(const char *dir, char *const *names, int classes, const char *word)
{
    struct err e = {0};
    struct dataset *d = NULL;
    int rc = dataset_open_folder(&d, dir, names, classes, &e);
    if (rc != ERR_DATA || !strstr(e.text, word))
        fail_msg("got %s '%s', expected ERR_DATA with '%s'", err_name(rc), e.text, word);
    assert_null(d);
}

static void check_sample(struct dataset *d, size_t i, int want_label, const char *want)
{
    struct buf b = {0};
    struct err e = {0};
    int label = -1;
    if (d->ops->read(d, i, &b, &label, &e) != 0)
        fail_msg("sample %zu: %s", i, e.text);
    if (label != want_label || b.len != strlen(want) || memcmp(b.data, want, b.len) != 0)
        fail_msg("sample %zu is '%.*s' of class %d, expected '%s' of class %d", i, (int)b.len, b.data, label, want,
                 want_label);
    size_t n = strlen(d->ops->sample_name(d, i)), k = strlen(want);
    assert_string_equal(d->ops->sample_name(d, i) + n - k, want);
    buf_free(&b);
}

static void classes_and_files_are_numbered_in_byte_order(void **state)
{
    static const char *const files[] = {"b/2.jpg", "b/10.JPEG", "b/deep/er/x.jpeg", "Z/1.Jpg", "a/only.jpg"};
    struct err e = {0};
    struct dataset *d = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        put(*state, files[i]);
    put(*state, "a/notes.txt");
    put(*state, "a/.hidden.jpg");
    put(*state, ".cache/x.jpg");
    put(*state, "stray.jpg");
    if (dataset_open_folder(&d, *state, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->classes, 3);
    assert_string_equal(d->class_names[0], "Z");
    assert_string_equal(d->class_names[2], "b");
    assert_int_equal(d->n, 5);
    check_sample(d, 0, 0, "Z/1.Jpg");
    check_sample(d, 1, 1, "a/only.jpg");
    check_sample(d, 2, 2, "b/10.JPEG");
    check_sample(d, 3, 2, "b/2.jpg");
    check_sample(d, 4, 2, "b/deep/er/x.jpeg");
    dataset_close(d);
}

static void validation_takes_its_labels_from_the_training_classes(void **state)
{
    char *names[] = {"ant", "bee", "cat"};
    struct err e = {0};
    struct dataset *d = NULL;
    put(*state, "cat/1.jpg");
    put(*state, "ant/1.jpg");
    if (dataset_open_folder(&d, *state, names, 3, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->classes, 3);
    check_sample(d, 0, 0, "ant/1.jpg");
    check_sample(d, 1, 2, "cat/1.jpg");
    dataset_close(d);
    put(*state, "zebra/1.jpg");
    open_fails(*state, names, 3, "has a class 'zebra' that the training data lacks");
}

static void pictures_of_other_formats_are_told(void **state)
{
    struct err e = {0};
    struct dataset *d = NULL;
    static const char *const files[] = {"ant/1.jpg", "ant/2.heic", "ant/deep/3.HeiC", "bee/1.jpg", "bee/2.Tiff"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        put(*state, files[i]);
    put(*state, "bee/notes.txt");
    put(*state, "bee/._3.heic");
    if (dataset_open_folder(&d, *state, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->n, 2);
    assert_non_null(d->left_out);
    assert_non_null(
        strstr(d->left_out, "3 pictures of other formats are left out: 1 .tiff, 2 .heic; readable are .jpg"));
    dataset_close(d);
    put(*state, "cat/1.gif");
    open_fails(*state, NULL, 0, "class 'cat'");
    open_fails(*state, NULL, 0, "), but 1 of other formats");
}

static void nothing_is_told_where_nothing_is_left_out(void **state)
{
    struct err e = {0};
    struct dataset *d = NULL;
    put(*state, "ant/1.jpg");
    put(*state, "ant/readme");
    if (dataset_open_folder(&d, *state, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
    assert_null(d->left_out);
    dataset_close(d);
}

static void a_missing_folder_is_named(void **state)
{
    open_fails("/nonexistent/train", NULL, 0, "'/nonexistent/train' does not exist");
}

static void a_file_is_no_folder(void **state)
{
    char path[4096];
    put(*state, "x");
    snprintf(path, sizeof path, "%s/x", (char *)*state);
    open_fails(path, NULL, 0, "cannot read the folder");
}

static void a_folder_without_classes_is_refused(void **state)
{
    open_fails(*state, NULL, 0, "holds no class folders");
    put(*state, "1.jpg");
    open_fails(*state, NULL, 0, "holds 1 picture itself, and no class folders");
}

static void a_class_without_images_is_named(void **state)
{
    put(*state, "ant/1.jpg");
    put(*state, "bee/readme.txt");
    open_fails(*state, NULL, 0, "class 'bee'");
}

static void a_validation_set_without_any_image_is_refused(void **state)
{
    char *names[] = {"ant", "bee"};
    add_folder(*state, "ant");
    open_fails(*state, names, 2, "holds no image");
}

/* Does this file system tell what a folder's entries are? */
static bool types_are_told(const char *path)
{
    bool told = true;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (const struct dirent *d; (d = readdir(dir));)
        told = told && d->d_type != DT_UNKNOWN;
    closedir(dir);
    return told;
}

/* On a network's disk a question for each file takes longer than the first epoch. */
static void files_are_listed_without_a_question_each(void **state)
{
    char name[32], from[4096], to[4096];
    struct err e = {0};
    struct dataset *d = NULL;
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "ant/%03d.jpg", i);
        put(*state, name);
    }
    if (!types_are_told(*state))
        skip();
    snprintf(from, sizeof from, "%s/bee", (char *)*state);
    snprintf(to, sizeof to, "%s/ant/link.jpg", (char *)*state);
    assert_int_equal(symlink("ant", from), 0);
    assert_int_equal(symlink("001.jpg", to), 0);
    asked = 0;
    if (dataset_open_folder(&d, *state, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->n, 202);
    assert_int_equal(asked, 3); /* the links: bee, and link.jpg in both folders */
    dataset_close(d);
}

static void training_classes_come_in_any_order(void **state)
{
    static char *names[] = {"cat", "ant", "dog", "bee"};
    struct err e = {0};
    struct dataset *d = NULL;
    put(*state, "bee/1.jpg");
    put(*state, "cat/2.jpg");
    put(*state, "dog/3.jpg");
    if (dataset_open_folder(&d, *state, names, 4, &e) != 0)
        fail_msg("%s", e.text);
    check_sample(d, 0, 3, "bee/1.jpg");
    check_sample(d, 1, 0, "cat/2.jpg");
    check_sample(d, 2, 2, "dog/3.jpg");
    dataset_close(d);
    names[3] = "cat";
    open_fails(*state, names, 4, "'bee' that the training data lacks");
    names[3] = "dog";
    names[1] = "bee";
    open_fails(*state, names, 4, "'dog' that the training data has twice");
}

static void a_loop_of_links_ends_in_a_sentence(void **state)
{
    char link[4096];
    put(*state, "ant/1.jpg");
    snprintf(link, sizeof link, "%s/ant/again", (char *)*state);
    assert_int_equal(symlink(".", link), 0);
    open_fails(*state, NULL, 0, "folders deep");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(classes_and_files_are_numbered_in_byte_order),
        CASE(validation_takes_its_labels_from_the_training_classes),
        CASE(pictures_of_other_formats_are_told),
        CASE(nothing_is_told_where_nothing_is_left_out),
        CASE(a_missing_folder_is_named),
        CASE(a_file_is_no_folder),
        CASE(a_folder_without_classes_is_refused),
        CASE(a_class_without_images_is_named),
        CASE(a_validation_set_without_any_image_is_refused),
        CASE(files_are_listed_without_a_question_each),
        CASE(training_classes_come_in_any_order),
        CASE(a_loop_of_links_ends_in_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
