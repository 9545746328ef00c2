/* The figures that an agent shows, as text, from a view of it that was made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/crun/crun_page.h"
#include "launcher/observe/agent_http.h"
#include "launcher/observe/agent_view.h"
#include "launcher/observe/events.h"
#include "launcher/report/failure.h"

static struct crun_page page;

static const struct crun_page *page_of(const void *arg, int local)
{
    return local == 0 ? &page : NULL;
}

static const char *const states[] = {"joining", "running", "stopping"};
static const struct event_figures figures = {.rounds = 2, .restarts = 1, .restart_s = 1.5, .last_s = 1.5};
static const struct failure_worker workers[] = {
    {.rank = 4},
    {.rank = 5, .local_rank = 1, .ended = true},
    {.rank = 6, .local_rank = 2, .ended = true, .ending = {.value = 1}},
    {.rank = 7, .local_rank = 3, .ended = true, .told_to_stop = true, .ending = {.signaled = true, .value = 15}}};

static struct agent_view view_of_a_round(void)
{
    return (struct agent_view){.run_id = "job \"1\"",
                               .node = "n-1",
                               .host = "n",
                               .role = "default",
                               .states = states,
                               .n_states = 3,
                               .state = 1,
                               .round = 3,
                               .in_round = true,
                               .world_size = 8,
                               .nodes = 2,
                               .group_rank = 1,
                               .restarts = 1,
                               .max_restarts = 3,
                               .rendezvous = "tcp",
                               .endpoint = "10.0.0.5:29400",
                               .dials = true,
                               .connected = true,
                               .workers = 4,
                               .list = workers,
                               .started = true,
                               .page = page_of,
                               .figures = &figures};
}

static void expect(const struct agent_view *v, const char *const *lines, bool there)
{
    struct buf text;
    buf_init(&text, 1u << 20);
    assert_int_equal(agent_metrics(v, &text), 0);
    for (; *lines; lines++)
        if ((strstr(text.data, *lines) != NULL) != there)
            fail_msg("%s: '%s' in\n%s", there ? "missing" : "not expected", *lines, text.data);
    buf_free(&text);
}

static void a_round_shows_its_place_in_the_job_and_its_workers_by_state(void **state)
{
    const struct agent_view v = view_of_a_round();
    const char *const lines[] = {"run_id=\"job \\\"1\\\"\",node=\"n-1\"",
                                 "\ncrun_state{state=\"running\"} 1\n",
                                 "\ncrun_state{state=\"joining\"} 0\n",
                                 "\ncrun_round 3\n",
                                 "\ncrun_world_size 8\n",
                                 "\ncrun_nodes 2\n",
                                 "\ncrun_group_rank 1\n",
                                 "\ncrun_rendezvous_info{kind=\"tcp\",endpoint=\"10.0.0.5:29400\",hosted=\"no\"} 1\n",
                                 "\ncrun_rendezvous_connected 1\n",
                                 "\ncrun_workers{state=\"running\"} 1\n",
                                 "\ncrun_workers{state=\"finished\"} 1\n",
                                 "\ncrun_workers{state=\"failed\"} 1\n",
                                 "\ncrun_workers{state=\"stopped\"} 1\n",
                                 "\ncrun_restart_seconds_sum 1.5\n",
                                 "\ncrun_last_restart_seconds 1.5\n",
                                 NULL};
    (void)state;
    expect(&v, lines, true);
}

static void between_rounds_there_is_no_place_and_every_worker_waits(void **state)
{
    struct agent_view v = view_of_a_round();
    v.in_round = v.started = false;
    v.waiting = true;
    v.state = 0;
    const char *const lines[] = {"\ncrun_round 3\n", "\ncrun_world_size 0\n", "\ncrun_group_rank -1\n",
                                 "\ncrun_workers{state=\"waiting\"} 4\n", NULL};
    (void)state;
    expect(&v, lines, true);
}

static void steps_are_shown_of_workers_that_tell_them(void **state)
{
    const struct agent_view v = view_of_a_round();
    const char *const step[] = {"\ncrun_worker_step{rank=\"4\",local_rank=\"0\"} 12\n", NULL};
    const char *const others[] = {"rank=\"5\"", NULL};
    (void)state;
    atomic_store(&page.step, 12);
    expect(&v, step, false); /* none is finished */
    atomic_store(&page.last_step_ns, 1);
    expect(&v, step, true);
    expect(&v, others, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_shows_its_place_in_the_job_and_its_workers_by_state),
        cmocka_unit_test(between_rounds_there_is_no_place_and_every_worker_waits),
        cmocka_unit_test(steps_are_shown_of_workers_that_tell_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
