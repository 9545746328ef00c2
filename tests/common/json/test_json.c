/* Files that are JSON, that are not, and records of failures in them. */
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
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/job/failure_record.h"
#include "common/json/json.h"

static char path[] = "/tmp/test_json_XXXXXX";
static struct err error;

static void put_bytes(const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

static void put(const char *text)
{
    put_bytes(text, strlen(text));
}

static void members_are_read_with_their_types(void **state)
{
    cJSON *t;
    const char *s;
    int64_t i;
    double d;
    put("{\"s\": \"x\", \"i\": -9007199254740992, \"d\": 0.5, \"big\": 1e300}\n");
    assert_int_equal(json_read_file(path, 100, &t, &error), 0);
    assert_int_equal(json_str(t, "s", &s, &error), 0);
    assert_string_equal(s, "x");
    assert_int_equal(json_i64(t, "i", &i, &error), 0);
    assert_true(i == -9007199254740992);
    assert_int_equal(json_f64(t, "d", &d, &error), 0);
    assert_true(d == 0.5);
    assert_int_equal(json_i64(t, "d", &i, &error), ERR_CORRUPT);
    assert_int_equal(json_i64(t, "big", &i, &error), ERR_CORRUPT);
    assert_int_equal(json_str(t, "i", &s, &error), ERR_CORRUPT);
    assert_string_equal(error.text, "member 'i' is not a string");
    assert_int_equal(json_str(t, "S", &s, &error), ERR_CORRUPT);
    assert_string_equal(error.text, "member 'S' is missing");
    cJSON_Delete(t);
}

static void what_is_not_json_is_refused(void **state)
{
    cJSON *t;
    static const char *const bad[] = {"", "{", "{} x", "{\"a\": 1", "nul"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i]);
        assert_int_equal(json_read_file(path, 100, &t, &error), ERR_CORRUPT);
    }
    put_bytes("{}\0{}", 5);
    assert_int_equal(json_read_file(path, 100, &t, &error), ERR_CORRUPT);
    put("{}        ");
    assert_int_equal(json_read_file(path, 10, &t, &error), 0);
    cJSON_Delete(t);
    assert_int_equal(json_read_file(path, 9, &t, &error), -E2BIG);
    assert_int_equal(json_read_file("/nonexistent/x", 9, &t, &error), -ENOENT);
    assert_int_equal(json_read_file("/", 9, &t, &error), -EISDIR);
}

static void a_text_that_is_made_to_fill_memory_is_refused(void **state)
{
    enum { N = 1 << 18 };
    cJSON *t;
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, '[', N);
    for (size_t i = 1; i + 2 < N; i += 3)
        memcpy(text + i, "],[", 3);
    put_bytes(text, N);
    assert_int_equal(json_read_file(path, N, &t, &error), ERR_CORRUPT);
    assert_non_null(strstr(error.text, "too many values for its 262144 bytes"));
    memset(text, ',', N); /* within a string they are no values */
    text[0] = text[N - 1] = '"';
    put_bytes(text, N);
    assert_int_equal(json_read_file(path, N, &t, &error), 0);
    cJSON_Delete(t);
    free(text);
}

static void a_fifo_holds_nobody_up(void **state)
{
    cJSON *t;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20);
    assert_int_equal(json_read_file(path, 100, &t, &error), ERR_CORRUPT);
    alarm(0);
    unlink(path);
}

static void a_record_is_read_back_whatever_its_message_holds(void **state)
{
    struct failure_record r, w = {.timestamp = 1763732797, .exitcode = 65, .rank = 3, .step = 120};
    static const char *const messages[][2] = {
        {"plain", "plain"},
        {"\"quotes\" and \\ and\nlines\tand \x01", "\"quotes\" and \\ and\nlines\tand \x01"},
        {"Gr\xc3\xbc\xc3\x9f"
         "e \xf0\x9f\x98\x80",
         "Gr\xc3\xbc\xc3\x9f"
         "e \xf0\x9f\x98\x80"},
        {"broken \xff \xc3( \xc0\x80 \xed\xa0\x80 \xc3", "broken ? ?( ?? ??? ?"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        snprintf(w.message, sizeof w.message, "%s", messages[i][0]);
        assert_int_equal(failure_record_write(path, &w, &error), 0);
        assert_int_equal(failure_record_read(path, &r, &error), 0);
        assert_string_equal(r.message, messages[i][1]);
        assert_int_equal(r.timestamp, 1763732797);
        assert_int_equal(r.exitcode, 65);
        assert_int_equal(r.rank, 3);
        assert_int_equal(r.step, 120);
    }
}

/* It shows py_callstack in place of the message where there is one, even an empty one. */
static void torchrun_shows_the_message_of_a_record(void **state)
{
    const struct failure_record w = {.message = "it broke", .timestamp = 17, .exitcode = 1, .rank = 0, .step = -1};
    cJSON *t;
    assert_int_equal(failure_record_write(path, &w, &error), 0);
    assert_int_equal(json_read_file(path, 1000, &t, &error), 0);
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(t, "message");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "message")), "it broke");
    assert_null(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(message, "extraInfo"), "py_callstack"));
    cJSON_Delete(t);
}

static void torchruns_records_are_read_in_both_forms(void **state)
{
    struct failure_record r;
    put("{\"message\": {\"message\": \"ValueError: x\", \"extraInfo\": {\"py_callstack\": \"...\", \"timestamp\": "
        "\"17\"}}}");
    assert_int_equal(failure_record_read(path, &r, &error), 0);
    assert_string_equal(r.message, "ValueError: x");
    assert_int_equal(r.timestamp, 17);
    assert_int_equal(r.exitcode, -1);
    assert_int_equal(r.rank, -1);
    assert_int_equal(r.step, -1);
    put("{\"message\": \"lost\", \"timestamp\": 18}");
    assert_int_equal(failure_record_read(path, &r, &error), 0);
    assert_string_equal(r.message, "lost");
    assert_int_equal(r.timestamp, 18);
}

static void a_record_that_is_none_is_an_error(void **state)
{
    struct failure_record r;
    static const char *const bad[] = {"[]", "{}", "{\"message\": 1}", "{\"message\": {}}",
                                      "{\"message\": {\"message\": []}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i]);
        assert_int_equal(failure_record_read(path, &r, &error), ERR_CORRUPT);
        assert_int_equal(failure_record_read(path, &r, NULL), ERR_CORRUPT);
    }
    assert_int_equal(failure_record_read("/nonexistent/x", &r, &error), -ENOENT);
    assert_int_equal(failure_record_write("/nonexistent/x", &r, &error), -ENOENT);
    assert_int_equal(failure_record_write(NULL, &r, &error), 0);
    assert_int_equal(failure_record_write("", &r, &error), 0);
}

static void a_record_is_no_link(void **state)
{
    struct failure_record r;
    char link[512];
    put("{\"message\": \"the secret\", \"timestamp\": 18}");
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink(path, link), 0);
    assert_true(failure_record_look(AT_FDCWD, path, path, &r));
    assert_string_equal(r.message, "the secret");
    assert_true(failure_record_look(AT_FDCWD, link, link, &r));
    assert_string_equal(r.message, "its error record is a symbolic link, which is not read");
    assert_int_equal(r.timestamp, 0);
    assert_int_equal(unlink(link), 0);
    assert_false(failure_record_look(AT_FDCWD, link, link, &r));
}

static void a_long_message_is_cut_between_characters(void **state)
{
    struct failure_record r;
    for (int odd = 0; odd < 2; odd++) { /* the limit falls between two characters, then inside one */
        char text[2048] = "{\"message\": \"";
        strcat(text, odd ? "" : "x");
        for (int i = 0; i < 400; i++)
            strcat(text, "\xc3\xbc");
        strcat(text, "\"}");
        put(text);
        assert_int_equal(failure_record_read(path, &r, &error), 0);
        assert_int_equal(strlen(r.message), odd ? 510 : 511);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_read_with_their_types),
        cmocka_unit_test(what_is_not_json_is_refused),
        cmocka_unit_test(a_text_that_is_made_to_fill_memory_is_refused),
        cmocka_unit_test(a_fifo_holds_nobody_up),
        cmocka_unit_test(a_record_is_read_back_whatever_its_message_holds),
        cmocka_unit_test(torchrun_shows_the_message_of_a_record),
        cmocka_unit_test(torchruns_records_are_read_in_both_forms),
        cmocka_unit_test(a_record_that_is_none_is_an_error),
        cmocka_unit_test(a_record_is_no_link),
        cmocka_unit_test(a_long_message_is_cut_between_characters),
    };
    close(mkstemp(path));
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
