/* What the suite of tests/conformance cannot show: bad addresses, servers that lie, name-spaces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/store/store.h"

enum { LATE_MS = 2000 }; /* a loaded machine */

static struct store *s;
static struct buf value;
static struct err error;

/* A server that answers STORE.PING rightly and the next request with `answer`, then closes or stays silent. */
static struct liar {
    pthread_t thread;
    int listener, port;
    const char *answer;
    size_t len;
    bool stay;
    int held;
} liar;

static void serve_one(int fd)
{
    char request[4096];
    if (recv(fd, request, sizeof request, 0) > 0)
        (void)!send(fd, "+STORE\r\n", 8, MSG_NOSIGNAL);
    if (recv(fd, request, sizeof request, 0) > 0)
        (void)!send(fd, liar.answer, liar.len, MSG_NOSIGNAL);
}

static void *lie(void *arg)
{
    for (int fd; (fd = accept(liar.listener, NULL, NULL)) >= 0;) {
        serve_one(fd);
        if (liar.stay)
            liar.held = fd;
        else
            close(fd);
    }
    return NULL;
}

/* A socket with a port of its own, which nobody listens at. */
static int bound_socket(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void start_liar(const char *answer, size_t len, bool stay)
{
    char url[64];
    liar = (struct liar){.answer = answer, .len = len, .stay = stay, .held = -1};
    liar.listener = bound_socket(&liar.port);
    assert_int_equal(listen(liar.listener, 8), 0);
    assert_int_equal(pthread_create(&liar.thread, NULL, lie, NULL), 0);
    snprintf(url, sizeof url, "resp://localhost:%d", liar.port);
    if (store_open(&s, url, NULL, &error) < 0)
        fail_msg("%s", error.text);
}

static void stop_liar(void)
{
    store_close(s);
    shutdown(liar.listener, SHUT_RDWR);
    pthread_join(liar.thread, NULL);
    close(liar.listener);
    if (liar.held >= 0)
        close(liar.held);
}

static void bad_urls_are_refused_with_a_sentence(void **state)
{
    static const char *const bad[] = {"",          "x",           "redis://h:x",    "resp://",        "resp://h",
                                      "resp://:1", "resp://h:",   "resp://h:65536", "resp://h:x",     "resp://::1:80",
                                      "resp:/h:1", "resp://h:-1", "resp://[]:1",    "resp://h:000001"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = store_open(&s, bad[i], NULL, &error);
        if (rc != -EINVAL)
            fail_msg("'%s' gave %d", bad[i], rc);
        assert_non_null(strstr(error.text, "expected"));
    }
    assert_int_equal(store_open(&s, "udp://h:1", NULL, &error), -EINVAL);
    assert_string_equal(error.text,
                        "store 'udp://h:1': unknown kind, expected one of resp://, tcp://, mem://, redis://, "
                        "rediss://, redis+sentinel://, rediss+sentinel://");
}

static void a_closed_port_is_retried_until_the_connect_timeout(void **state)
{
    char url[64];
    int port, closed = bound_socket(&port);
    snprintf(url, sizeof url, "resp://127.0.0.1:%d", port);
    int64_t before = clock_ms();
    assert_int_equal(store_open(&s, url, &(struct store_options){.connect_timeout_ms = 150}, &error), -ECONNREFUSED);
    int64_t ms = clock_ms() - before;
    if (ms < 149 || ms > 150 + LATE_MS)
        fail_msg("took %lld ms, expected 150", (long long)ms);
    assert_int_equal(store_open(&s, url, &(struct store_options){.connect_timeout_ms = 1}, NULL), -ECONNREFUSED);
    close(closed);
}

static void lies_are_errors_and_never_more(void **state)
{
#define LIE(text, code)                                                                                                \
    {                                                                                                                  \
        text, sizeof(text) - 1, code                                                                                   \
    }
    static const struct {
        const char *answer;
        size_t len;
        int code;
    } cases[] = {
        LIE(":5\r\n", -EPROTO),    LIE("+OK\r\n", -EPROTO),         LIE("*1\r\n$1\r\nx\r\n", -EPROTO),
        LIE("hello\r\n", -EPROTO), LIE("$x\r\n", -EPROTO),          LIE("*1000000000\r\n", -EPROTO),
        LIE("*-5\r\n", -EPROTO),   LIE("-ERR no\r\n", ERR_REFUSED), LIE("-WRONGTYPE Operation\r\n", -EINVAL),
        LIE("$-1\r\n", -ENOENT),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start_liar(cases[i].answer, cases[i].len, true);
        int rc = store_get(s, "k", &value, 5000, &error);
        stop_liar();
        if (rc != cases[i].code)
            fail_msg("'%s' gave %d (%s), expected %d", cases[i].answer, rc, error.text, cases[i].code);
        assert_int_equal(value.len, 0);
    }
}

static void a_reply_that_never_ends_runs_into_the_deadline(void **state)
{
    start_liar("$100\r\nabc", 9, true);
    int64_t before = clock_ms();
    assert_int_equal(store_get(s, "k", &value, 100, &error), -ETIMEDOUT);
    assert_in_range(clock_ms() - before, 99, 100 + LATE_MS);
    stop_liar();
}

static void what_may_have_happened_is_not_repeated(void **state)
{
    int64_t v;
    start_liar(":1", 2, false);
    assert_int_equal(store_add(s, "k", 1, &v, 5000, &error), -ECONNRESET);
    assert_non_null(strstr(error.text, "may or may not have happened"));
    stop_liar();
    start_liar("$3\r\nab", 6, false);
    assert_int_equal(store_get(s, "k", &value, 300, &error), -ETIMEDOUT); /* repeated, in vain */
    stop_liar();
}

static void *abort_in_thread(void *store)
{
    store_abort(store);
    return NULL;
}

static void abort_ends_a_call_that_hangs_on_the_server(void **state)
{
    pthread_t t;
    start_liar("", 0, true);
    int64_t before = clock_ms();
    assert_int_equal(pthread_create(&t, NULL, abort_in_thread, s), 0);
    assert_int_equal(store_get(s, "k", &value, 20000, &error), -ECANCELED);
    assert_in_range(clock_ms() - before, 0, LATE_MS);
    pthread_join(t, NULL);
    stop_liar();
}

static void named_memory_is_shared_and_unnamed_is_not(void **state)
{
    struct store *a, *b, *c, *d;
    assert_int_equal(store_open(&a, "mem://x", NULL, &error), 0);
    assert_int_equal(store_open(&b, "mem://x", NULL, &error), 0);
    assert_int_equal(store_open(&c, "mem://", NULL, &error), 0);
    assert_int_equal(store_open(&d, "mem://y", NULL, &error), 0);
    assert_int_equal(store_set(a, "k", "1", 1, 0, &error), 0);
    assert_int_equal(store_get(b, "k", &value, 0, &error), 0);
    assert_int_equal(store_get(c, "k", &value, 0, &error), -ENOENT);
    assert_int_equal(store_get(d, "k", &value, 0, &error), -ENOENT);
    store_close(a);
    store_close(b);
    assert_int_equal(store_open(&a, "mem://x", NULL, &error), 0);
    assert_int_equal(store_get(a, "k", &value, 0, &error), -ENOENT); /* the last user took it along */
    store_close(a);
    store_close(c);
    store_close(d);
    store_close(NULL);
}

static void prefixes_keep_names_apart_and_nest(void **state)
{
    struct store *base, *one, *two;
    assert_int_equal(store_open(&base, "mem://", NULL, &error), 0);
    assert_int_equal(store_open_prefix(&one, base, "1/", &error), 0);
    assert_int_equal(store_open_prefix(&two, one, "2/", &error), 0);
    assert_int_equal(store_set(two, "k", "v", 1, 0, &error), 0);
    assert_int_equal(store_get(one, "k", &value, 0, &error), -ENOENT);
    assert_string_equal(error.text, "store: get 'k': no such key");
    buf_clear(&value);
    assert_int_equal(store_get(base, "1/2/k", &value, 0, &error), 0);
    assert_string_equal(value.data, "v");
    store_close(two);
    store_close(one);
    store_close(base);
}

static void deadlines_saturate(void **state)
{
    assert_true(clock_deadline(INT64_MAX) == INT64_MAX);
    assert_int_equal(clock_left(INT64_MAX), INT32_MAX);
    assert_int_equal(clock_left(0), 0);
    assert_int_equal(clock_left(clock_deadline(-5)), 0);
}

static int forget_value(void **state)
{
    buf_free(&value);
    return 0;
}

int main(void)
{
#define CASE(f) cmocka_unit_test_teardown(f, forget_value)
    const struct CMUnitTest tests[] = {
        CASE(bad_urls_are_refused_with_a_sentence),
        CASE(a_closed_port_is_retried_until_the_connect_timeout),
        CASE(lies_are_errors_and_never_more),
        CASE(a_reply_that_never_ends_runs_into_the_deadline),
        CASE(what_may_have_happened_is_not_repeated),
        CASE(abort_ends_a_call_that_hangs_on_the_server),
        CASE(named_memory_is_shared_and_unnamed_is_not),
        CASE(prefixes_keep_names_apart_and_nest),
        CASE(deadlines_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
