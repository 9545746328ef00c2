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

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/image/image.h"
#include "worker/data/sets/dataset.h"
#include "worker/data/sets/shapes.h"

static uint64_t fnv(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* The values stand for "the same on every machine"; whoever changes the drawing raises "drawing" in shapes.c and these
 * with it. */
static void pictures_have_their_golden_values(void **state)
{
    static const struct {
        int cls, size;
        uint64_t seed, index, want;
    } cases[] = {
        {0, 64, 0, 0, 0xe123c7da8bc764b1u},
        {6, 64, 0, 4006, 0xb8367c80545b094cu},
        {9, 33, 7, 123456789, 0x61f85f3b9ba94134u},
    };
    static uint8_t px[64 * 64 * 3];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = (size_t)cases[i].size * (size_t)cases[i].size * 3;
        shapes_draw(cases[i].cls, cases[i].seed, cases[i].index, cases[i].size, px);
        uint64_t got = fnv(px, n);
        if (got != cases[i].want)
            fail_msg("picture %zu hashes to 0x%jx, expected 0x%jx", i, (uintmax_t)got, (uintmax_t)cases[i].want);
    }
}

static double mean_of(const uint8_t *px, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += px[i];
    return sum / (double)n;
}

static void the_shape_is_brighter_than_its_background(void **state)
{
    static uint8_t px[64 * 64 * 3];
    for (int i = 0; i < 50; i++) {
        size_t bright = 0;
        shapes_draw(i % 10, 3, (uint64_t)i, 64, px);
        for (size_t k = 0; k < sizeof px; k += 3)
            bright += mean_of(px + k, 3) > 130;
        double share = (double)bright / (64 * 64);
        /* a square of 0.36 to 0.48 of the side covers 0.13 to 0.23 */
        if (share < 0.1 || share > 0.26)
            fail_msg("picture %d: %g of it is bright, expected 0.1 to 0.26", i, share);
    }
}

static struct shapes_options small(const char *out)
{
    return (struct shapes_options){
        .out = out, .classes = 3, .train_images = 10, .test_images = 5, .image_size = 32, .seed = 5};
}

static int make_quietly(const struct shapes_options *o, struct err *e)
{
    int saved = fixture_capture_stderr();
    int rc = shapes_make(o, e);
    fixture_captured_bytes(saved);
    return rc;
}

static void make(const struct shapes_options *o)
{
    struct err e = {0};
    if (make_quietly(o, &e) != 0)
        fail_msg("%s", e.text);
}

/* Bytes of all files in order. */
static void read_set(const char *dir, const char *part, size_t want, struct buf *out)
{
    char path[4096];
    struct err e = {0};
    struct dataset *d = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, part);
    if (dataset_open_folder(&d, path, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->n, want);
    assert_int_equal(d->classes, 3);
    for (size_t i = 0; i < d->n; i++) {
        int label;
        assert_int_equal(d->ops->read(d, i, out, &label, NULL), 0);
    }
    dataset_close(d);
}

static void a_set_is_a_folder_tree_of_decodable_pictures(void **state)
{
    struct shapes_options o = small(*state);
    struct dataset *d = NULL;
    struct buf b = {0};
    struct image im;
    char path[4096];
    int label;
    make(&o);
    snprintf(path, sizeof path, "%s/val", (char *)*state);
    assert_int_equal(dataset_open_folder(&d, path, NULL, 0, NULL), 0);
    assert_int_equal(d->n, 5);
    assert_string_equal(d->class_names[0], "circle");
    assert_int_equal(d->ops->read(d, 0, &b, &label, NULL), 0);
    assert_int_equal(image_decode(b.data, b.len, 3, &im, NULL), 0);
    assert_int_equal(im.w, 32);
    assert_int_equal(im.h, 32);
    image_free(&im);
    buf_free(&b);
    dataset_close(d);
}

static void a_run_that_was_killed_is_completed_with_the_same_bytes(void **state)
{
    char path[4096], part[4096];
    struct shapes_options o = small(*state);
    struct buf first = {0}, second = {0};
    make(&o);
    read_set(*state, "train", 10, &first);
    snprintf(path, sizeof path, "%s/train/circle/00000003.jpg", (char *)*state);
    assert_int_equal(unlink(path), 0);
    fixture_file(*state, "train/circle/00000003.jpg.4711~", "half", 4);
    snprintf(path, sizeof path, "%s/dataset.json", (char *)*state);
    snprintf(part, sizeof part, "%s/dataset.json.part", (char *)*state);
    assert_int_equal(rename(path, part), 0);
    make(&o);
    assert_int_equal(access(path, F_OK), 0);
    read_set(*state, "train", 10, &second);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
    buf_free(&first);
    buf_free(&second);
}

static void a_finished_set_is_left_alone(void **state)
{
    char path[4096];
    struct shapes_options o = small(*state);
    make(&o);
    snprintf(path, sizeof path, "%s/train/circle/00000003.jpg", (char *)*state);
    assert_int_equal(unlink(path), 0);
    make(&o);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void refuse(const struct shapes_options *o, int code, const char *word)
{
    struct err e = {0};
    int rc = make_quietly(o, &e);
    if (rc != code || !strstr(e.text, word))
        fail_msg("got %s '%s', expected %s with '%s'", err_name(rc), e.text, err_name(code), word);
}

static void other_options_are_refused_by_name(void **state)
{
    struct shapes_options o = small(*state);
    make(&o);
    o.seed = 6;
    refuse(&o, ERR_USAGE, "made with seed 5, not 6");
    o.seed = 5;
    o.image_size = 48;
    refuse(&o, ERR_USAGE, "made with image-size 32, not 48");
}

static void a_folder_of_somebody_else_is_refused(void **state)
{
    struct shapes_options o = small(*state);
    fixture_file(*state, "train/cats/1.jpg", "x", 1);
    refuse(&o, ERR_USAGE, "was not made by make-data");
}

static void sizes_out_of_range_are_refused(void **state)
{
    struct shapes_options o = small(*state);
    o.classes = 11;
    refuse(&o, ERR_USAGE, "11 classes");
    o = small(*state);
    o.test_images = 2;
    refuse(&o, ERR_USAGE, "2 test images");
}

static int run_main(char **argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    int saved = fixture_capture_stderr();
    int code = shapes_main(argc, argv);
    if (fixture_captured_bytes(saved) == 0)
        fail_msg("nothing on stderr");
    return code;
}

static void the_command_line_gives_the_right_exit_codes(void **state)
{
    char file[4096], below[4096];
    fixture_file(*state, "file", "x", 1);
    snprintf(file, sizeof file, "%s/file", (char *)*state);
    snprintf(below, sizeof below, "%s/file/set", (char *)*state);
    assert_int_equal(run_main((char *[]){"make-data", "shapes", "--out", below, NULL}), EXIT_CANT_CREATE);
    assert_int_equal(run_main((char *[]){"make-data", "shapes", "--out", file, NULL}), EXIT_CANT_CREATE);
    assert_int_equal(run_main((char *[]){"make-data", "shapes", NULL}), EXIT_USAGE_ERROR);
    assert_int_equal(run_main((char *[]){"make-data", "--out", below, NULL}), EXIT_USAGE_ERROR);
    assert_int_equal(run_main((char *[]){"make-data", "text", "--out", below, NULL}), EXIT_USAGE_ERROR);
    assert_int_equal(run_main((char *[]){"make-data", "text", "--out", below, "--text", file, NULL}), EXIT_CANT_CREATE);
    assert_int_equal(run_main((char *[]){"make-data", "text", "--out", below, "--text", below, NULL}), EXIT_DATA);
    assert_int_equal(run_main((char *[]){"make-data", "cats", "--out", below, NULL}), EXIT_USAGE_ERROR);
    assert_int_equal(run_main((char *[]){"make-data", "shapes", "--out", below, "--classes", "99", NULL}),
                     EXIT_USAGE_ERROR);
    snprintf(below, sizeof below, "%s/new/set", (char *)*state);
    assert_int_equal(run_main((char *[]){"make-data", "shapes", "--out", below, "--train-images", "20", "--test-images",
                                         "10", "--image-size", "16", NULL}),
                     EXIT_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_have_their_golden_values),
        cmocka_unit_test(the_shape_is_brighter_than_its_background),
        CASE(a_set_is_a_folder_tree_of_decodable_pictures),
        CASE(a_run_that_was_killed_is_completed_with_the_same_bytes),
        CASE(a_finished_set_is_left_alone),
        CASE(other_options_are_refused_by_name),
        CASE(a_folder_of_somebody_else_is_refused),
        CASE(sizes_out_of_range_are_refused),
        CASE(the_command_line_gives_the_right_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
