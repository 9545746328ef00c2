/* Console output: a sink never blocks but in sink_flush(), and that not beyond its deadline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/output/sink.h"

#define SOME (1u << 20) /* more than a pipe or a socket holds */

struct console {
    uv_loop_t loop;
    struct sink sink;
    int theirs, ours; /* the sink's end, the reader's end */
    char *text;
};

static void drained(void *arg)
{
    (void)arg;
}

static void console_open(struct console *c, bool is_socket)
{
    int ends[2];
    assert_int_equal(is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
    c->ours = ends[0];
    c->theirs = ends[1];
    c->text = malloc(SOME);
    assert_non_null(c->text);
    memset(c->text, 'x', SOME);
    uv_loop_init(&c->loop);
    sink_open(&c->sink, &c->loop, c->theirs, drained, c);
    sink_add(&c->sink, c->text, SOME);
}

static void console_close(struct console *c)
{
    sink_close(&c->sink);
    uv_run(&c->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&c->loop), 0);
    close(c->theirs);
    if (c->ours >= 0)
        close(c->ours);
    free(c->text);
}

static const int nobody[2] = {-1, -1};

static void a_kick_takes_what_goes_and_leaves_the_flags_of_others(void **state)
{
    (void)state;
    for (int is_socket = 0; is_socket < 2; is_socket++) {
        struct console c;
        console_open(&c, is_socket);
        sink_kick(&c.sink);
        assert_int_equal(c.sink.error, 0);
        assert_true(c.sink.queue.len > c.sink.written);
        assert_int_equal(fcntl(c.theirs, F_GETFL) & O_NONBLOCK, 0);
        console_close(&c);
    }
}

static void the_loop_writes_on_when_somebody_reads(void **state)
{
    (void)state;
    for (int is_socket = 0; is_socket < 2; is_socket++) {
        struct console c;
        size_t got = 0;
        console_open(&c, is_socket);
        sink_kick(&c.sink);
        const int64_t deadline = clock_deadline(20000);
        while (got < SOME && clock_left(deadline) > 0) {
            ssize_t n = read(c.ours, c.text, SOME);
            assert_true(n > 0);
            got += (size_t)n;
            if (got < SOME)
                uv_run(&c.loop, UV_RUN_ONCE);
        }
        assert_int_equal(got, SOME);
        console_close(&c);
    }
}

static void a_reader_that_went_away_ends_the_sink_and_not_us(void **state)
{
    (void)state;
    for (int is_socket = 0; is_socket < 2; is_socket++) {
        struct console c;
        console_open(&c, is_socket);
        close(c.ours);
        c.ours = -1;
        sink_kick(&c.sink);
        assert_int_equal(c.sink.error, EPIPE);
        assert_int_equal(c.sink.dropped, SOME);
        console_close(&c);
    }
}

struct reader {
    int fd;
    atomic_bool stop;
};

/* A page each 20 ms: there is always progress. Does not wait for more where the flush has ended. */
static void *read_slowly(void *arg)
{
    struct reader *r = arg;
    char page[4096];
    while (!r->stop) {
        poll(NULL, 0, 20);
        ssize_t ignored = read(r->fd, page, sizeof page);
        (void)ignored;
    }
    return NULL;
}

static void the_deadline_of_a_flush_is_that_of_the_whole(void **state)
{
    struct console c;
    pthread_t thread;
    (void)state;
    console_open(&c, false);
    struct reader r = {.fd = c.ours};
    assert_int_equal(fcntl(c.ours, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_slowly, &r), 0);
    const int64_t start = clock_ms();
    int rc = sink_flush(&c.sink, clock_deadline(200), nobody);
    const int64_t took = clock_ms() - start;
    r.stop = true;
    pthread_join(thread, NULL);
    if (rc != -ETIMEDOUT || took < 200 || took > 2000)
        fail_msg("%d after %lld ms", rc, (long long)took);
    assert_true(c.sink.dropped > 0 && c.sink.dropped < SOME);
    console_close(&c);
}

static void either_of_the_stop_descriptors_ends_a_flush(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct console c;
        int ends[2], stop[2] = {-1, -1};
        assert_int_equal(pipe(ends), 0);
        close(ends[1]); /* as that of the guardian when it is gone */
        stop[which] = ends[0];
        console_open(&c, which);
        assert_int_equal(sink_flush(&c.sink, clock_deadline(20000), stop), -EINTR);
        close(ends[0]);
        console_close(&c);
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kick_takes_what_goes_and_leaves_the_flags_of_others),
        cmocka_unit_test(the_loop_writes_on_when_somebody_reads),
        cmocka_unit_test(a_reader_that_went_away_ends_the_sink_and_not_us),
        cmocka_unit_test(the_deadline_of_a_flush_is_that_of_the_whole),
        cmocka_unit_test(either_of_the_stop_descriptors_ends_a_flush),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
