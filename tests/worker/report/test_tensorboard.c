/* The bytes: what a reader makes of them is tests/e2e/trainer/test_reports.py's matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/report/tensorboard.h"

static size_t contents(const char *path, uint8_t *out, size_t cap)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(out, 1, cap, f);
    fclose(f);
    return n;
}

static uint64_t little(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

/* Data of the record at *at; moves *at behind it. */
static const uint8_t *record(const uint8_t *file, size_t n, size_t *at, size_t *ret_n)
{
    assert_true(*at + 16 <= n);
    const uint8_t *r = file + *at;
    size_t len = (size_t)little(r, 8);
    assert_true(*at + 16 + len <= n);
    uint32_t crc[2] = {crc32c(0, r, 8), crc32c(0, r + 12, len)};
    for (int i = 0; i < 2; i++)
        crc[i] = ((crc[i] >> 15) | (crc[i] << 17)) + 0xa282ead8U;
    assert_int_equal(little(r + 8, 4), crc[0]);
    assert_int_equal(little(r + 12 + len, 4), crc[1]);
    *at += 16 + len;
    *ret_n = len;
    return r + 12;
}

static void a_file_begins_with_its_version_and_a_session_at_its_first_step(void **state)
{
    struct tensorboard *t;
    uint8_t file[4096];
    size_t at = 0, len;
    assert_int_equal(tensorboard_open(&t, *state, 0, NULL), 0);
    size_t n = contents(tensorboard_path(t), file, sizeof file);
    const uint8_t *r = record(file, n, &at, &len);
    assert_int_equal(r[0], 0x09); /* field 1, double: wall time */
    assert_int_equal(r[9], 0x1a); /* field 3, string */
    assert_memory_equal(r + 10,
                        "\x0d"
                        "brain.Event:2",
                        14);
    r = record(file, n, &at, &len);
    static const uint8_t start[] = {0x10, 0x01, 0x3a, 0x02, 0x08, 0x01}; /* step 1, session log: start */
    assert_int_equal(len, 9 + sizeof start);
    assert_memory_equal(r + 9, start, sizeof start);
    assert_int_equal(at, n);
    tensorboard_close(t);
}

static void a_scalar_is_a_summary_value_of_its_step(void **state)
{
    struct tensorboard *t;
    uint8_t file[4096];
    size_t at = 0, len;
    const struct tensorboard_scalar v[] = {{"nan", NAN}, {"a", 1.5}, {"inf", INFINITY}};
    assert_int_equal(tensorboard_open(&t, *state, 0, NULL), 0);
    assert_int_equal(tensorboard_add(t, 300, v, 3, NULL), 0);
    size_t n = contents(tensorboard_path(t), file, sizeof file);
    record(file, n, &at, &len);
    record(file, n, &at, &len); /* version, session */
    const uint8_t *r = record(file, n, &at, &len);
    static const uint8_t expected[] = {0x10, 0xac, 0x02,                                /* step 300 */
                                       0x2a, 0x0a, 0x0a, 0x08,                          /* summary, one value */
                                       0x0a, 0x01, 'a',  0x15, 0x00, 0x00, 0xc0, 0x3f}; /* tag, 1.5f */
    assert_int_equal(len, 9 + sizeof expected);
    assert_memory_equal(r + 9, expected, sizeof expected);
    tensorboard_close(t);
}

static void a_run_that_goes_on_starts_a_session_at_its_next_step_in_a_file_of_its_own(void **state)
{
    struct tensorboard *t, *u;
    uint8_t file[4096];
    size_t at = 0, len;
    assert_int_equal(tensorboard_open(&t, *state, 7, NULL), 0);
    assert_int_equal(tensorboard_open(&u, *state, 7, NULL), 0);
    assert_string_not_equal(tensorboard_path(t), tensorboard_path(u));
    size_t n = contents(tensorboard_path(u), file, sizeof file);
    record(file, n, &at, &len);
    const uint8_t *r = record(file, n, &at, &len);
    static const uint8_t expected[] = {0x10, 0x08, 0x3a, 0x02, 0x08, 0x01}; /* step 8, session log: start */
    assert_memory_equal(r + 9, expected, sizeof expected);
    tensorboard_close(t);
    tensorboard_close(u);
}

/* TensorBoard reads files in the order of their names: also on a host whose clock is behind. */
static void a_run_that_goes_on_has_the_last_name(void **state)
{
    struct tensorboard *t;
    char there[4096];
    snprintf(there, sizeof there, "%s/events.out.tfevents.%lld.zz.9.0", (char *)*state, (long long)time(NULL) + 60);
    FILE *f = fopen(there, "wb");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(tensorboard_open(&t, *state, 7, NULL), 0);
    assert_true(strcmp(tensorboard_path(t), there) > 0);
    tensorboard_close(t);
}

static void a_folder_that_cannot_be_written_is_named(void **state)
{
    struct tensorboard *t;
    struct err e;
    char path[4200];
    snprintf(path, sizeof path, "%s/file", (const char *)*state);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(tensorboard_open(&t, path, 0, &e), ERR_OUTPUT);
    assert_non_null(strstr(e.text, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_begins_with_its_version_and_a_session_at_its_first_step, scratch_make,
                                        scratch_drop),
        cmocka_unit_test_setup_teardown(a_scalar_is_a_summary_value_of_its_step, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_run_that_goes_on_starts_a_session_at_its_next_step_in_a_file_of_its_own,
                                        scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_run_that_goes_on_has_the_last_name, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_written_is_named, scratch_make, scratch_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
