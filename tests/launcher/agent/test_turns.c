/* Whether this process stood still: what is told from inside the callbacks of a loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/agent/run.h"
#include "launcher/agent/turns.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/patience.h"

#define WAIT_MS 600 /* beyond RESIDENT_AFTER_MS, which interrupts the first wait */
#define STILL_MS 200

struct rig {
    struct board board;
    struct guardian_link link;
    struct run r;
    uv_timer_t far; /* the loop's wait has an end, and is over before */
    uv_poll_t readable;
    int pipe[2];
    int64_t since_ms, told_ms;
};

static void on_far(uv_timer_t *t)
{
    fail_msg("what was written must have ended the loop (%p)", (void *)t);
}

static void on_readable(uv_poll_t *p, int status, int events)
{
    struct rig *g = p->data;
    (void)status, (void)events;
    g->told_ms = turns_still_ms(&g->r, g->since_ms);
    uv_stop(&g->r.loop);
}

static struct rig *begin(void)
{
    struct err *none = NULL;
    struct rig *g = calloc(1, sizeof *g);
    board_init(&g->board);
    g->link.board = &g->board;
    g->r.link = &g->link;
    assert_int_equal(uv_loop_init(&g->r.loop), 0);
    assert_int_equal(turns_open(&g->r, none), 0);
    assert_int_equal(pipe(g->pipe), 0);
    uv_timer_init(&g->r.loop, &g->far);
    uv_timer_start(&g->far, on_far, 600000, 0);
    uv_poll_init(&g->r.loop, &g->readable, g->pipe[0]);
    g->readable.data = g;
    uv_poll_start(&g->readable, UV_READABLE, on_readable);
    g->since_ms = clock_ms();
    return g;
}

static void end(struct rig *g)
{
    turns_close(&g->r);
    uv_close((uv_handle_t *)&g->far, NULL);
    uv_close((uv_handle_t *)&g->readable, NULL);
    uv_run(&g->r.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&g->r.loop), 0);
    turns_free(&g->r);
    close(g->pipe[0]);
    close(g->pipe[1]);
    free(g);
}

/* In a child, so that the loop really waits. */
static void write_later(const struct rig *g)
{
    if (fork() == 0) {
        poll(NULL, 0, WAIT_MS);
        _exit(write(g->pipe[1], "x", 1) != 1);
    }
}

/* What is told of a loop that has waited for WAIT_MS. */
static int64_t told_after_a_wait(void)
{
    struct rig *g = begin();
    write_later(g);
    const int64_t begun_ms = clock_ms();
    uv_run(&g->r.loop, UV_RUN_DEFAULT);
    assert_true(clock_ms() - begun_ms >= WAIT_MS);
    const int64_t told_ms = g->told_ms;
    end(g);
    return told_ms;
}

/* A busy machine may take the processor away for as long: then again. */
static void a_wait_for_what_others_send_is_no_standstill(void **s)
{
    int64_t told_ms = WAIT_MS;
    (void)s;
    for (int i = 0; i < 20 && told_ms >= STILL_MS; i++)
        told_ms = told_after_a_wait();
    assert_true(told_ms < STILL_MS);
}

static void on_slow(uv_timer_t *t)
{
    (void)t;
    poll(NULL, 0, WAIT_MS);
}

static void a_callback_that_waits_is_one(void **s)
{
    struct rig *g = begin();
    uv_timer_t slow;
    (void)s;
    uv_timer_init(&g->r.loop, &slow);
    uv_timer_start(&slow, on_slow, 1, 0);
    while (uv_is_active((uv_handle_t *)&slow))
        uv_run(&g->r.loop, UV_RUN_ONCE);
    uv_run(&g->r.loop, UV_RUN_NOWAIT);
    assert_true(turns_still_ms(&g->r, g->since_ms) >= WAIT_MS);
    uv_close((uv_handle_t *)&slow, NULL);
    end(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_for_what_others_send_is_no_standstill),
        cmocka_unit_test(a_callback_that_waits_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
