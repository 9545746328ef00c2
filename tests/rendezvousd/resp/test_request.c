/* The request parser: what comes out must not depend on how the bytes were cut, and no announced length may take
 * memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "rendezvousd/resp/request.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct request_limits limits = {.max_bytes = 4096, .max_args = 16};

/* Write what the parser gives for these bytes, fed in pieces of at most `piece`, the first one of `first` bytes. */
static void parse(const char *bytes, size_t n, size_t first, size_t piece, struct buf *out)
{
    struct request_parser p;
    struct request rq;
    struct err e;
    request_parser_init(&p, &limits);
    buf_clear(out);
    for (size_t at = 0, len = first; at < n; at += len, len = piece) {
        if (len > n - at)
            len = n - at;
        assert_int_equal(request_feed(&p, bytes + at, len), 0);
        int rc;
        while ((rc = request_next(&p, &rq, &e)) == 1) {
            for (size_t i = 0; i < rq.argc; i++) {
                buf_printf(out, "%zu:", rq.argv[i].n);
                buf_add(out, rq.argv[i].p, rq.argv[i].n);
                buf_addstr(out, ",");
            }
            buf_addstr(out, ";");
        }
        if (rc < 0) {
            assert_int_equal(rc, -EPROTO);
            buf_addstr(out, e.text);
            break;
        }
    }
    request_parser_free(&p);
}

static void gives(const char *bytes, size_t n, const char *expected)
{
    struct buf out = {0};
    parse(bytes, n, n, n, &out);
    assert_string_equal(out.data ? out.data : "", expected);
    for (size_t cut = 1; cut < n; cut++) {
        parse(bytes, n, cut, n, &out);
        if (strcmp(out.data ? out.data : "", expected) != 0)
            fail_msg("cut after %zu bytes: '%s', expected '%s'", cut, out.data, expected);
    }
    parse(bytes, n, 1, 1, &out);
    assert_string_equal(out.data ? out.data : "", expected);
    buf_free(&out);
}

#define GIVES(bytes, expected) gives(bytes, sizeof(bytes) - 1, expected)

static void requests_do_not_depend_on_how_the_bytes_are_cut(void **state)
{
    (void)state;
    GIVES("*1\r\n$4\r\nPING\r\n", "4:PING,;");
    GIVES("PING\r\n", "4:PING,;");
    GIVES("PING\n", "4:PING,;");
    GIVES("  set  a   b \r\n", "3:set,1:a,1:b,;");
    GIVES("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
          "3:SET,1:a,2:\r\n,;3:GET,1:a,;");
    GIVES("*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$4\r\nPING\r\n", "4:PING,;4:PING,;4:PING,;");
    GIVES("*2\r\n$3\r\nGET\r\n$0\r\n\r\n", "3:GET,0:,;");
    GIVES("\r\n\r\n*0\r\n*-1\r\nPING\r\n", "4:PING,;");
}

static void quotes_and_escapes_of_inline_requests_are_understood(void **state)
{
    (void)state;
    GIVES("set 'a b' \"c\\x41\\n\\\"\"\r\n", "3:set,3:a b,4:cA\n\",;");
    GIVES("set '' \"\"\r\n", "3:set,0:,0:,;");
    GIVES("set 'a\\'b' \"\\xzz\"\r\n", "3:set,3:a'b,3:xzz,;");
    GIVES("set 'a\r\n", "Protocol error: unbalanced quotes in request");
    GIVES("set \"a\"b\r\n", "Protocol error: unbalanced quotes in request");
}

static void lengths_are_taken_only_within_their_limits(void **state)
{
    static const char *const bad[] = {"-1",
                                      "4097",
                                      "2147483648",
                                      "4294967296",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "18446744073709551616",
                                      "01",
                                      "00",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "",
                                      "abc",
                                      "0x10",
                                      "1.0",
                                      "--1",
                                      "-"};
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int n = snprintf(text, sizeof text, "*1\r\n$%s\r\n", bad[i]);
        gives(text, (size_t)n, "Protocol error: invalid bulk length");
    }
    for (size_t i = 1; i < sizeof bad / sizeof *bad; i++) { /* -1 means no request */
        int n = snprintf(text, sizeof text, "*%s\r\n", bad[i]);
        gives(text, (size_t)n, "Protocol error: invalid multibulk length");
    }
    GIVES("*17\r\n", "Protocol error: invalid multibulk length");
    GIVES("*1111111111111111111111111111111111", "Protocol error: too big mbulk count string");
    GIVES("*1\r\n$1111111111111111111111111111111111", "Protocol error: too big bulk count string");
}

static void a_request_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(void **state)
{
    struct buf b = {0}, out = {0};
    char value[4096];
    (void)state;
    memset(value, 'v', sizeof value);
    size_t header = strlen("*1\r\n$4000\r\n"), most = limits.max_bytes - header;
    buf_printf(&b, "*1\r\n$%zu\r\n%.*s\r\n", most, (int)most, value);
    parse(b.data, b.len, b.len, b.len, &out);
    assert_int_equal(out.len, most + strlen("4085:,;"));
    buf_clear(&b);
    buf_printf(&b, "*1\r\n$%zu\r\n", most + 1);
    parse(b.data, b.len, b.len, b.len, &out);
    assert_string_equal(out.data, "Protocol error: invalid bulk length");
    buf_clear(&b);
    /* many small arguments together count as well */
    buf_printf(&b, "*2\r\n$3000\r\n%.*s\r\n$3000\r\n", 3000, value);
    parse(b.data, b.len, b.len, b.len, &out);
    assert_string_equal(out.data, "Protocol error: invalid bulk length");
    buf_free(&b);
    buf_free(&out);
}

static void other_violations_end_the_connection_with_redis_words(void **state)
{
    (void)state;
    GIVES("*1\r\nPING\r\n", "Protocol error: expected '$', got 'P'");
    GIVES("*1\r\n\001", "Protocol error: expected '$', got '?'");
    GIVES("*1\r\n$4\r\nPINGxx", "Protocol error: expected CRLF after bulk");
    GIVES("*1\n", "Protocol error: invalid multibulk length");
    char *text = malloc(8192);
    memset(text, 'a', 8192);
    gives(text, 4097, "Protocol error: too big inline request");
    GIVES("PING\r\n\0",
          "4:PING,;Protocol error: byte 00 begins no RESP request (is this a client of PyTorch's TCPStore?)");
    free(text);
}

static void an_announced_length_takes_no_memory(void **state)
{
    struct request_parser p;
    struct request rq;
    struct err e;
    const struct request_limits big = {.max_bytes = (size_t)1 << 30, .max_args = 1 << 20};
    static const char text[] = "*1048576\r\n$1000000000\r\nabc";
    (void)state;
    request_parser_init(&p, &big);
    assert_int_equal(request_feed(&p, text, sizeof text - 1), 0);
    assert_int_equal(request_next(&p, &rq, &e), 0);
    assert_true(request_begun(&p));
    assert_true(request_memory(&p) < 1024);
    request_parser_free(&p);
}

static void memory_of_a_large_request_goes_back(void **state)
{
    struct request_parser p;
    struct request rq;
    struct err e;
    const struct request_limits big = {.max_bytes = (size_t)1 << 24, .max_args = 16};
    char *value = calloc(1, 1 << 20);
    char header[64];
    (void)state;
    request_parser_init(&p, &big);
    int n = snprintf(header, sizeof header, "*1\r\n$%d\r\n", 1 << 20);
    request_feed(&p, header, (size_t)n);
    request_feed(&p, value, 1 << 20);
    request_feed(&p, "\r\n", 2);
    assert_int_equal(request_next(&p, &rq, &e), 1);
    assert_true(request_memory(&p) > 1 << 20);
    assert_int_equal(request_next(&p, &rq, &e), 0);
    assert_true(request_memory(&p) < 32 * 1024);
    assert_false(request_begun(&p));
    free(value);
    request_parser_free(&p);
}

static void integers_are_read_as_redis_reads_them(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t v;
    } cases[] = {{"0", true, 0},
                 {"-1", true, -1},
                 {"9223372036854775807", true, INT64_MAX},
                 {"-9223372036854775808", true, INT64_MIN},
                 {"9223372036854775808", false, 0},
                 {"-9223372036854775809", false, 0},
                 {"-0", false, 0},
                 {"01", false, 0},
                 {"", false, 0},
                 {"-", false, 0},
                 {"1a", false, 0},
                 {" 1", false, 0},
                 {"+1", false, 0},
                 {"99999999999999999999999", false, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t v = 0;
        bool ok = request_i64(cases[i].text, strlen(cases[i].text), &v);
        if (ok != cases[i].ok || v != cases[i].v)
            fail_msg("'%s': %d %lld, expected %d %lld", cases[i].text, ok, (long long)v, cases[i].ok,
                     (long long)cases[i].v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_do_not_depend_on_how_the_bytes_are_cut),
        cmocka_unit_test(quotes_and_escapes_of_inline_requests_are_understood),
        cmocka_unit_test(lengths_are_taken_only_within_their_limits),
        cmocka_unit_test(a_request_of_exactly_the_limit_is_taken_and_one_byte_more_is_not),
        cmocka_unit_test(other_violations_end_the_connection_with_redis_words),
        cmocka_unit_test(an_announced_length_takes_no_memory),
        cmocka_unit_test(memory_of_a_large_request_goes_back),
        cmocka_unit_test(integers_are_read_as_redis_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
