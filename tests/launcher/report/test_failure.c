/* The failure report: who is blamed, what is told of whom, and where cores are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/report/core_path.h"
#include "launcher/report/failure.h"

static struct failure_worker killed(int rank, unsigned order, int signo)
{
    return (struct failure_worker){.rank = rank,
                                   .local_rank = rank,
                                   .pid = 100 + rank,
                                   .ended = true,
                                   .order = order,
                                   .ended_ns = order * 1000000,
                                   .ending = {.signaled = true, .value = signo}};
}

static struct failure_worker exited(int rank, unsigned order, int code)
{
    struct failure_worker w = killed(rank, order, 0);
    w.ending = (struct ending){.value = code};
    return w;
}

static void the_first_death_is_the_culprit(void **state)
{
    struct failure_worker w[] = {exited(0, 3, 1), killed(1, 2, SIGKILL), exited(2, 1, 0)};
    assert_int_equal(failure_first(w, 3), 1);
}

static void workers_that_we_stopped_or_that_ended_well_or_still_run_are_no_culprits(void **state)
{
    struct failure_worker w[] = {killed(0, 1, SIGTERM), exited(1, 2, 0), exited(2, 0, 7)};
    w[0].told_to_stop = true;
    w[2].ended = false;
    assert_int_equal(failure_first(w, 3), -1);
}

static void a_worker_that_hung_is_the_culprit_whatever_its_stop_made_of_it(void **state)
{
    struct failure_worker w[] = {killed(0, 2, SIGTERM), killed(1, 1, SIGKILL)};
    w[0].told_to_stop = w[1].told_to_stop = true;
    strcpy(w[1].hung, "hung at step 9");
    assert_int_equal(failure_first(w, 2), 1);
    w[1].ended = false; /* it is told of before it is gone */
    assert_int_equal(failure_first(w, 2), 1);
}

static cJSON *one(const struct failure_worker *w, struct failure_words words)
{
    cJSON *all = cJSON_CreateArray();
    words.host = words.host ? words.host : "h";
    words.node = words.node ? words.node : words.host;
    assert_true(cJSON_AddItemToArray(all, failure_describe(w, &words)));
    return all;
}

static void add(cJSON *all, const struct failure_worker *w, struct failure_words words)
{
    cJSON *list = one(w, words);
    char *text = failure_encode(list, NULL, true);
    bool final = false;
    assert_true(failure_merge(all, NULL, "n", text, strlen(text), &final));
    assert_true(final);
    free(text);
    cJSON_Delete(list);
}

static void renders(const struct failure_job *j, const cJSON *all, const char *expected)
{
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(failure_render(j, all, &out), 0);
    assert_string_equal(out.data, expected);
    buf_free(&out);
}

static const struct failure_job job = {
    .run_id = "j", .program = "p", .round = 2, .restarts = 1, .max_restarts = 1, .cause = "", .culprit = -1};

static void the_report_names_culprit_followers_message_and_last_lines(void **state)
{
    struct failure_worker culprit = killed(1, 1, SIGSEGV), near = exited(2, 2, 1), far = exited(5, 1, 3);
    struct lines_tail tail = {0};
    culprit.ending.core = true;
    lines_tail_add(&tail, "bad", 3);
    lines_tail_add(&tail, "worse\x1b[0m", 9);
    cJSON *all = one(&far, (struct failure_words){.host = "g", .time = 9.75});
    add(all, &near, (struct failure_words){.time = 10.001});
    add(all, &culprit,
        (struct failure_words){.message = "it broke",
                               .message_from = "error.json",
                               .core = "/tmp/core.101",
                               .gpu = "3",
                               .phase = "checkpoint",
                               .step = 3000000000,
                               .tail = &tail,
                               .time = 10});
    struct failure_job j = job;
    j.cause = "rank 1 on h killed by SIGSEGV";
    j.culprit = 1;
    j.unheard = 1;
    failure_sort(all, 1);
    renders(&j, all,
            "crun: p failed: rank 1 killed by SIGSEGV (core dumped)\n"
            "  job       j, round 2, 1 of 1 restarts used\n"
            "  culprit   rank 1 (local rank 1), pid 101 on h\n"
            "  progress  step 3000000000, phase checkpoint\n"
            "  gpu       3\n"
            "  core      /tmp/core.101\n"
            "  message   it broke (error.json)\n"
            "  then      rank 5 (pid 105 on g) exited with code 3, 250.0 ms earlier by its node's clock\n"
            "  then      rank 2 (pid 102) exited with code 1, 1.0 ms later\n"
            "  unheard   1 node reported nothing\n"
            "  stderr    last lines:\n"
            "    | bad\n"
            "    | worse?[0m\n");
    cJSON_Delete(all);
    lines_tail_free(&tail);
}

/* As of many nodes that lose all of their workers at once; the sort must not cost the square of that. */
static void failures_of_many_workers_are_in_the_order_of_their_deaths(void **state)
{
    enum { N = 20000, TIMES = 100, CULPRIT = 777 };
    cJSON *all = cJSON_CreateArray();
    int before = -1;
    (void)state;
    for (int i = 0; i < N; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "rank", i);
        cJSON_AddNumberToObject(o, "time", i * 7919 % TIMES);
        cJSON_AddItemToArray(all, o);
    }
    failure_sort(all, CULPRIT);
    assert_int_equal(cJSON_GetArraySize(all), N);
    assert_int_equal(cJSON_GetObjectItem(all->child, "rank")->valueint, CULPRIT);
    for (const cJSON *o = all->child->next; o; o = o->next) { /* by time, and those of one time as they stood */
        const int now = cJSON_GetObjectItem(o, "time")->valueint * N + cJSON_GetObjectItem(o, "rank")->valueint;
        assert_true(now > before);
        before = now;
    }
    cJSON_Delete(all);
}

static void a_culprit_that_told_nothing_is_named_in_the_rendezvous_words(void **state)
{
    struct failure_worker w = exited(0, 1, 1);
    cJSON *all = one(&w, (struct failure_words){0});
    struct failure_job j = job;
    j.cause = "node b is gone";
    renders(&j, all,
            "crun: p failed: node b is gone\n"
            "  job       j, round 2, 1 of 1 restarts used\n"
            "  then      rank 0 (pid 100 on h) exited with code 1\n");
    cJSON_Delete(all);
}

static void a_hang_is_named_in_the_words_of_its_cause_and_has_no_signal(void **state)
{
    struct failure_worker w = killed(1, 1, SIGTERM);
    strcpy(w.hung, "hung at step 9");
    cJSON *all = one(&w, (struct failure_words){.message = "no rank has progressed", .message_from = "seen by crun"});
    struct failure_job j = job;
    j.cause = "all ranks of a node hung at step 9";
    j.culprit = 1;
    renders(&j, all,
            "crun: p failed: all ranks of a node hung at step 9\n"
            "  job       j, round 2, 1 of 1 restarts used\n"
            "  culprit   rank 1 (local rank 1), pid 101 on h\n"
            "  message   no rank has progressed (seen by crun)\n"
            "  stderr    (nothing)\n");
    assert_string_equal(cJSON_GetObjectItem(all->child, "ending")->valuestring, "hung at step 9");
    assert_int_equal(cJSON_GetObjectItem(all->child, "exit_code")->valueint, 124);
    assert_null(cJSON_GetObjectItem(all->child, "signal"));
    cJSON_Delete(all);
}

static void the_json_twin_says_the_same_and_is_utf8(void **state)
{
    struct failure_worker w = killed(1, 1, SIGABRT);
    struct lines_tail tail = {0};
    lines_tail_add(&tail, "a\xff\xc3\xa9z", 5);
    cJSON *all =
        one(&w, (struct failure_words){.message = "b\xc0\xaf", .message_from = "error.json", .tail = &tail, .time = 5});
    struct failure_job j = job;
    j.exit_code = 134;
    char *text = failure_json(&j, all);
    cJSON *o = cJSON_Parse(text), *f = cJSON_GetObjectItem(o, "failures")->child;
    assert_int_equal(cJSON_GetObjectItem(o, "exit_code")->valueint, 134);
    assert_string_equal(cJSON_GetObjectItem(o, "run_id")->valuestring, "j");
    assert_int_equal(cJSON_GetObjectItem(f, "rank")->valueint, 1);
    assert_string_equal(cJSON_GetObjectItem(f, "signal")->valuestring, "SIGABRT");
    assert_string_equal(cJSON_GetObjectItem(f, "message")->valuestring, "b??");
    assert_string_equal(cJSON_GetObjectItem(f, "stderr")->child->valuestring, "a?\xc3\xa9z");
    assert_null(cJSON_GetObjectItem(f, "core"));
    cJSON_Delete(o);
    free(text);
    cJSON_Delete(all);
    lines_tail_free(&tail);
}

static void what_another_node_tells_is_bounded_and_checked(void **state)
{
    static const char *const bad[] = {"", "[]", "{", "{\"failures\": 3}", "null"};
    cJSON *all = cJSON_CreateArray();
    bool final;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(failure_merge(all, NULL, "n", bad[i], strlen(bad[i]), &final));
    static char long_text[FAILURE_TEXT_MAX + 1];
    memset(long_text, ' ', sizeof long_text);
    memcpy(long_text, "{\"failures\":[]}", 15);
    assert_false(failure_merge(all, NULL, "n", long_text, sizeof long_text, &final));
    static const char odd[] =
        "{\"failures\": [1, {}, {\"rank\": -3}, {\"rank\": 1e99}, {\"rank\": 4, \"host\": [], \"stderr\": [7]}]}";
    assert_true(failure_merge(all, NULL, "n", odd, strlen(odd), &final));
    assert_false(final);
    assert_int_equal(cJSON_GetArraySize(all), 1);
    renders(&job, all,
            "crun: p failed: rank 4 \n"
            "  job       j, round 2, 1 of 1 restarts used\n"
            "  culprit   rank 4 (local rank -1), pid -1 on \n"
            "  stderr    last lines:\n"
            "    | \n");
    cJSON_Delete(all);
}

static void faults_of_machines_stand_in_the_first_line(void **state)
{
    const struct failure_worker w = exited(3, 1, 1);
    cJSON *all = one(&w, (struct failure_words){.host = "a", .because = ", after eth0 went down"});
    cJSON *faults = cJSON_CreateArray(), *none = cJSON_CreateArray();
    struct failure_job j = job;
    bool final;
    (void)state;
    failure_add_fault(faults, "a", "eth0 went down");
    failure_add_fault(faults, "b", NULL);
    static const char *const others[] = {"port 1 of mlx5_0 went down", "Xid\x1b 79", "eth1 went down",
                                         "eth2 went down"};
    for (int i = 0; i < 4; i++) {
        const char node[] = {(char)('c' + i), '+', '1', 0};
        char *text = failure_encode(none, others[i], true);
        assert_true(failure_merge(all, faults, node, text, strlen(text), &final));
        free(text);
    }
    j.faults = faults;
    renders(&j, all,
            "crun: p failed: rank 3 exited with code 1, after eth0 went down; on c: port 1 of mlx5_0 went down; on d: "
            "Xid? 79; on e: eth1 went down; and on 1 more\n"
            "  job       j, round 2, 1 of 1 restarts used\n"
            "  culprit   rank 3 (local rank 3), pid 103 on a\n"
            "  stderr    (nothing)\n");
    struct failure_worker hung = exited(3, 1, 0);
    strcpy(hung.hung, "hung at step 9");
    cJSON *stands = one(&hung, (struct failure_words){.host = "a", .because = ", after eth0 went down"});
    assert_string_equal(cJSON_GetObjectItem(stands->child, "ending")->valuestring,
                        "hung at step 9, after eth0 went down");
    j.cause = "rank 3 has stood at step 9";
    j.culprit = 3;
    cJSON_DeleteItemFromArray(faults, 4);
    cJSON_DeleteItemFromArray(faults, 3);
    cJSON_DeleteItemFromArray(faults, 2);
    renders(&j, stands,
            "crun: p failed: rank 3 has stood at step 9; on a: eth0 went down; on c: port 1 of mlx5_0 went down\n"
            "  job       j, round 2, 1 of 1 restarts used\n"
            "  culprit   rank 3 (local rank 3), pid 103 on a\n"
            "  stderr    (nothing)\n");
    char *text = failure_json(&j, all);
    cJSON *o = cJSON_Parse(text);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(o, "faults")), 2);
    cJSON_Delete(o);
    free(text);
    cJSON_Delete(stands);
    cJSON_Delete(all);
    cJSON_Delete(faults);
    cJSON_Delete(none);
}

static void a_tail_is_cut_at_a_line(void **state)
{
    struct failure_worker w = exited(0, 1, 1);
    struct lines_tail tail = {0};
    char line[500];
    memset(line, 'x', sizeof line);
    for (int i = 0; i < 7; i++)
        lines_tail_add(&tail, line, sizeof line);
    cJSON *all = one(&w, (struct failure_words){.tail = &tail});
    const cJSON *lines = cJSON_GetObjectItem(all->child, "stderr"), *l;
    assert_int_equal(cJSON_GetArraySize(lines), 4);
    cJSON_ArrayForEach(l, lines) assert_int_equal(strlen(l->valuestring), sizeof line);
    cJSON_Delete(all);
    lines_tail_free(&tail);
}

static void restarts_outside_the_window_do_not_seem_too_many(void **state)
{
    struct failure_worker culprit = exited(0, 1, 3);
    cJSON *all = one(&culprit, (struct failure_words){.time = 1});
    struct failure_job j = job;
    j.restarts = 5;
    j.max_restarts = 2;
    j.restart_window = 60;
    renders(&j, all,
            "crun: p failed: rank 0 exited with code 3\n"
            "  job       j, round 2, 5 restarts, 2 allowed within 60 s\n"
            "  culprit   rank 0 (local rank 0), pid 100 on h\n"
            "  stderr    (nothing)\n");
    cJSON_Delete(all);
    (void)state;
}

static void a_message_cannot_pass_for_lines_of_ours_nor_steer_a_terminal(void **state)
{
    struct failure_worker w = exited(0, 1, 1);
    cJSON *all =
        one(&w, (struct failure_words){.message = "a\x1b[2J\x7f\ncrun: all is well\n", .message_from = "error.json"});
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(failure_render(&job, all, &out), 0);
    if (!strstr(out.data, "\n  message   a?[2J?\n            crun: all is well (error.json)\n"))
        fail_msg("'%s'", out.data);
    buf_free(&out);
    cJSON_Delete(all);
}

static void a_core_is_where_the_pattern_says(void **state)
{
    static const struct {
        const char *pattern;
        bool uses_pid;
        const char *path;
    } cases[] = {
        {"core", false, "/srv/run/core"},
        {"core", true, "/srv/run/core.42"},
        {"core.%p", true, "/srv/run/core.42"},
        {"/var/c/%e-%s-%t-%h-%%-%d", false, "/var/c/a_program_of_ma-11-7-host-%-%d"},
        {"/c/%E.%P", false, "/c/!opt!a_program_of_many_letters.42"},
        {"|/usr/lib/systemd/systemd-coredump %P %u", false, ""},
        {"", false, ""},
        {"end%", false, "/srv/run/end"},
    };
    const struct core_facts f = {.pid = 42,
                                 .signo = 11,
                                 .program = "/opt/a_program_of_many_letters",
                                 .host = "host",
                                 .folder = "/srv/run",
                                 .time = 7};
    char out[128], small[8];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        core_path_expand(cases[i].pattern, cases[i].uses_pid, &f, out, sizeof out);
        assert_string_equal(out, cases[i].path);
    }
    core_path_expand("/c/%E.%P", true, &f, small, sizeof small); /* cut, not overrun */
    assert_true(strlen(small) < sizeof small);
}

static void endings_are_codes_as_a_shell_sees_them(void **state)
{
    char text[64];
    assert_int_equal(ending_code((struct ending){.value = 3}), 3);
    assert_int_equal(ending_code((struct ending){.signaled = true, .value = SIGKILL}), 137);
    assert_string_equal(ending_text((struct ending){.value = 3}, text, sizeof text), "exited with code 3");
    assert_string_equal(ending_text((struct ending){.signaled = true, .value = SIGRTMIN + 3}, text, sizeof text),
                        "killed by signal 37");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_death_is_the_culprit),
        cmocka_unit_test(workers_that_we_stopped_or_that_ended_well_or_still_run_are_no_culprits),
        cmocka_unit_test(the_report_names_culprit_followers_message_and_last_lines),
        cmocka_unit_test(failures_of_many_workers_are_in_the_order_of_their_deaths),
        cmocka_unit_test(restarts_outside_the_window_do_not_seem_too_many),
        cmocka_unit_test(a_message_cannot_pass_for_lines_of_ours_nor_steer_a_terminal),
        cmocka_unit_test(a_culprit_that_told_nothing_is_named_in_the_rendezvous_words),
        cmocka_unit_test(a_worker_that_hung_is_the_culprit_whatever_its_stop_made_of_it),
        cmocka_unit_test(a_hang_is_named_in_the_words_of_its_cause_and_has_no_signal),
        cmocka_unit_test(the_json_twin_says_the_same_and_is_utf8),
        cmocka_unit_test(what_another_node_tells_is_bounded_and_checked),
        cmocka_unit_test(faults_of_machines_stand_in_the_first_line),
        cmocka_unit_test(a_tail_is_cut_at_a_line),
        cmocka_unit_test(a_core_is_where_the_pattern_says),
        cmocka_unit_test(endings_are_codes_as_a_shell_sees_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
