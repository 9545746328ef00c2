/* What agent and output process say to each other arrives as it was said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "launcher/output/output_wire.h"

static struct output_message got;

static void a_setup_keeps_its_strings_and_those_that_are_not_there(void **state)
{
    struct output_setup back, s = {.conf = {.dir = "/logs", .template = "[$rank]", .rate = 5},
                                   .max_workers = 8,
                                   .role = "",
                                   .host = "h",
                                   .run_id = "job",
                                   .event_log = "/events"};
    struct buf body = {0};
    (void)state;
    assert_int_equal(output_setup_pack(&s, &body), 0);
    memcpy(got.body, body.data, body.len);
    got.n = body.len;
    assert_true(output_setup_unpack(&got, &back));
    assert_string_equal(back.conf.dir, "/logs");
    assert_string_equal(back.conf.template, "[$rank]");
    assert_null(back.conf.out_filters);
    assert_string_equal(back.role, "");
    assert_string_equal(back.run_id, "job");
    assert_null(back.scratch);
    assert_string_equal(back.event_log, "/events");
    assert_int_equal(back.conf.rate, 5);
    assert_int_equal(back.max_workers, 8);
    got.n = sizeof s + 3;
    assert_false(output_setup_unpack(&got, &back));
    buf_free(&body);
}

static void a_text_is_claimed_once_and_in_order(void **state)
{
    struct output_page page = {0};
    (void)state;
    assert_false(output_claim(&page, 2));
    assert_true(output_claim(&page, 1));
    assert_false(output_claim(&page, 1));
    assert_true(output_claim(&page, 2));
}

static void what_the_socket_does_not_take_waits_with_its_descriptors(void **state)
{
    static char body[OUTPUT_BODY_MAX];
    struct output_head head = {.word = OUTPUT_STREAMS};
    struct output_out out;
    uv_loop_t loop;
    int ends[2], pipes[2], sent = 0, received = 0;
    (void)state;
    uv_loop_init(&loop);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(output_out_open(&out, &loop, ends[0], NULL), 0);
    for (; sent < 3 || !out.first; sent++) {
        head.number = sent;
        assert_int_equal(output_send(&out, &head, body, sizeof body, pipes, 1), 0);
    }
    assert_int_equal(output_send(&out, &head, body, PTRDIFF_MAX / 2, NULL, 0), -ENOMEM); /* and nothing of it waits */
    assert_int_equal(write(pipes[1], "x", 1), 1);
    while (received < sent) {
        const int rc = output_receive(ends[1], &got);
        assert_true(rc >= 0);
        if (rc == 0) {
            uv_run(&loop, UV_RUN_NOWAIT);
            continue;
        }
        assert_int_equal(got.head.number, received++);
        assert_int_equal(got.n, sizeof body);
        assert_int_equal(got.n_fds, 1);
        if (received == sent) {
            char byte;
            assert_int_equal(read(got.fds[0], &byte, 1), 1);
        }
        output_drop_fds(&got);
    }
    output_out_close(&out);
    close(ends[0]);
    assert_int_equal(output_receive(ends[1], &got), -EPIPE);
    close(ends[1]);
    close(pipes[0]);
    close(pipes[1]);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_setup_keeps_its_strings_and_those_that_are_not_there),
        cmocka_unit_test(a_text_is_claimed_once_and_in_order),
        cmocka_unit_test(what_the_socket_does_not_take_waits_with_its_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
