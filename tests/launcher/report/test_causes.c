/* Causes of a death: the kernel's own records, and last words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/base/oom.h"
#include "launcher/report/causes.h"
#include "launcher/report/failure.h"

static void take(struct kernel_log *k, const char *const *lines)
{
    for (; *lines; lines++)
        kernel_log_take(k, *lines);
}

/* Of Linux 6.1, shortened. */
static const char *const of_a_group[] = {
    "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "memory: usage 64906854kB, limit 65011712kB, failcnt 49",
    "Tasks state (memory values in pages):",
    "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
    "[    900]     0   900  9000000  9000000       32      536         0    40960        0             0 another",
    "[    101]     0   101   131498    10693     9312     1381         0   143360        0             0 python3",
    "[    112]     0   112     8618    72390     5824     1415         0   106496        0             0 python3",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,task=python3,pid=101,uid=0",
    "Memory cgroup out of memory: Killed process 101 (python3) total-vm:525992kB, anon-rss:37248kB",
    NULL};
/* Of the machine; before Linux 6.8 without columns for kinds of pages. */
static const char *const of_the_machine[] = {
    "stress invoked oom-killer: gfp_mask=0x140dca, order=0, oom_score_adj=0",
    "[    112]     0   112     8618    72390   106496        0             0 python3",
    "Out of memory: Killed process 112 (python3) total-vm:525992kB, anon-rss:37248kB", NULL};

static struct failure_worker worker(int rank, int pid)
{
    return (struct failure_worker){
        .rank = rank, .pid = pid, .ended = true, .ending = {.signaled = true, .oom = true, .value = SIGKILL}};
}

static void the_kernel_says_how_full_it_was_and_who_held_most(void **state)
{
    const struct failure_worker w[] = {worker(9, 101), worker(12, 112)};
    const struct oom_kills none = {.fd = -1};
    const pid_t pids[] = {101, 112};
    struct causes c = {.log = {.fd = -1, .pids = pids, .n = 2}, .largest = -1};
    char text[CAUSES_TEXT_MAX], all[CAUSES_TEXT_MAX];
    (void)state;
    take(&c.log, of_a_group);
    causes_memory(&c, &none, &w[0], w, 2, text);
    assert_string_equal(text, " (61.9 of 62 GiB; the largest: rank 12)");
    causes_memory(&c, &none, &w[1], w, 2, all); /* of that death it says nothing */
    assert_null(strstr(all, "61.9"));
    take(&c.log, of_the_machine); /* a second death of the round: the first one is the cause */
    causes_memory(&c, &none, &w[0], w, 2, text);
    assert_string_equal(text, " (61.9 of 62 GiB; the largest: rank 12)");
    c = (struct causes){.log = {.fd = -1, .pids = pids, .n = 2}, .largest = -1};
    take(&c.log, of_the_machine);
    causes_memory(&c, &none, &w[1], w, 2, text);
    assert_memory_equal(text, " (of ", 5); /* as much as this machine has */
    assert_non_null(strstr(text, "; the largest: rank 12)"));
    causes_memory(&c, &none, &w[1], &w[1], 1, text);
    assert_null(strstr(text, "largest"));
}

static void who_was_killed_for_want_of_memory_is_known_or_counted(void **state)
{
    static const char mine[] = "Memory cgroup out of memory: Killed process 101 (python3)",
                      loader[] = "Memory cgroup out of memory: Killed process 555 (python3)";
    struct failure_worker w[] = {worker(9, 101), worker(12, 112)};
    struct causes c = {.log = {.fd = -1}, .largest = -1};
    char text[CAUSES_TEXT_MAX];
    (void)state;
    for (int i = 0; i < 2; i++) {
        w[i].ending.oom = false;
        w[i].kills = 1;
        w[i].order = (unsigned)i + 1;
    }
    assert_true(causes_is_oom(&c, &w[0], w, 2)); /* nothing is logged */
    w[0].ending.oom = true;
    assert_false(causes_is_oom(&c, &w[1], w, 2)); /* the only kill was the other's */
    assert_null(causes_kills(&c, &w[1], w, 2, text));
    w[0].ending.oom = false;
    w[0].kills = 2;
    assert_false(causes_is_oom(&c, &w[0], w, 2));
    assert_string_equal(causes_kills(&c, &w[0], w, 2, text),
                        ", after the kernel killed 2 processes of its cgroup (out of memory)");
    w[0].kills = 1;
    kernel_log_take(&c.log, loader);
    assert_false(causes_is_oom(&c, &w[0], w, 2)); /* somebody else sent its SIGKILL */
    assert_string_equal(causes_kills(&c, &w[0], w, 2, text),
                        "; the kernel also killed 1 process of its cgroup for want of memory");
    w[0].kills = 2;
    assert_int_equal(kernel_log_killed(&c.log, 101, 2), -1); /* one is not there yet */
    kernel_log_take(&c.log, mine);
    assert_true(causes_is_oom(&c, &w[0], w, 2));
    c.log.foreign = true;
    assert_false(causes_is_oom(&c, &w[0], w, 2));
    causes_begin_round(&c);
    c.log.foreign = false;
    assert_int_equal(kernel_log_killed(&c.log, 101, 1), -1);
    w[0].ending = (struct ending){.value = 1};
    w[0].kills = 1;
    assert_string_equal(causes_kills(&c, &w[0], w, 2, text),
                        ", after the kernel killed 1 process of its cgroup (out of memory)");
    w[0].kills = 0;
    assert_null(causes_kills(&c, &w[0], w, 2, text));
}

static void where_the_kernel_cannot_be_read_others_are_measured(void **state)
{
    struct failure_worker w[] = {worker(9, 101), worker(12, getpid()), worker(13, 999999999)};
    const struct oom_kills none = {.fd = -1};
    struct causes c = {.log = {.fd = -1}, .largest = -1};
    char text[CAUSES_TEXT_MAX];
    (void)state;
    w[1].ended = w[2].ended = false;
    causes_note_memory(&c, w, 3);
    assert_int_equal(c.largest, 12);
    causes_memory(&c, &none, &w[0], w, 3, text);
    assert_non_null(strstr(text, "; of the others rank 12 held most, "));
}

/* Of a failure at that time of the tests' clock. */
static const char *fault_at(const struct causes *c, int64_t ms)
{
    static char text[CAUSES_TEXT_MAX];
    double before_s;
    const char *found = causes_fault(c, ms, false, &before_s);
    if (found && before_s > 0)
        snprintf(text, sizeof text, "%.1f s after %.200s", before_s, found);
    return found && before_s > 0 ? text : found;
}

static const char *fault(const struct causes *c)
{
    return fault_at(c, 2000);
}

static void the_newest_fault_of_a_gpu_is_told(void **state)
{
    static const char *const lines[][2] = {
        {"NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
         "Xid 79 on PCI:0000:3b:00: GPU has fallen off the bus."},
        {"NVRM: Xid (PCI:0000:86:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error",
         "Xid 48 on PCI:0000:86:00: An uncorrectable double bit error"},
        {"NVRM: Xid (PCI:0000:86:00): 31, Ch 00000010", "Xid 31 on PCI:0000:86:00: Ch 00000010"},
        {"NVRM: Xid (PCI:0000:86:00): 94", "Xid 94 on PCI:0000:86:00: no more is said"}};
    struct causes c = {.log = {.fd = -1}};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        kernel_log_take(&c.log, lines[i][0]);
        kernel_log_take(&c.log, "NVRM: Xid (PCI:");
        assert_string_equal(fault(&c), lines[i][1]);
    }
    struct causes_machine m = {.xid_ms = 2000, .xid = 13, .xid_pci = "0000:3b:00.0"};
    c.round_ms = 1000;
    causes_read(&c, &m, NULL, 0); /* the kernel says more */
    assert_string_equal(fault(&c), lines[3][1]);
    c.log.xid[0] = '\0';
    m.xid = 79;
    causes_read(&c, &m, NULL, 0);
    assert_string_equal(fault(&c), "Xid 79 on 0000:3b:00.0: it has fallen off the bus");
    c.log.xid[0] = '\0';
    m.xid = 7;
    causes_read(&c, &m, NULL, 0);
    assert_string_equal(fault(&c), "Xid 7 on 0000:3b:00.0: see NVIDIA's list of Xids");
    causes_begin_round(&c);
    char text[CAUSES_XIDS_MAX];
    causes_read(&c, &m, NULL, 0); /* it came in a round before */
    assert_null(fault(&c));
    assert_string_equal(causes_xids(&c, text), "none in this round; before it Xid 7 on 0000:3b:00.0");
}

static void a_link_counts_while_it_is_down_and_in_the_round_that_saw_it_change(void **state)
{
    const struct failure_worker w = {.ended_ns = INT64_C(5500000000)};
    struct causes c = {.log = {.fd = -1}, .round_ms = 2000};
    struct causes_machine m = {0};
    char text[CAUSES_TEXT_MAX];
    (void)state;
    causes_read(&c, &m, NULL, 0);
    assert_null(fault(&c));
    assert_null(causes_link(&c, &w, text));
    m = (struct causes_machine){.link_ms = 3000, .link = "eth0 went down and came back"};
    causes_read(&c, &m, NULL, 0);
    assert_string_equal(fault(&c), m.link);
    assert_string_equal(causes_link(&c, &w, text), "eth0 went down and came back (seen 2.5 s earlier)");
    c.round_ms = 4000;
    assert_null(fault(&c));
    assert_string_equal(causes_link(&c, &w, text),
                        "eth0 went down and came back (seen 2.5 s earlier, in another round)");
    m.link_down = true;
    causes_read(&c, &m, NULL, 0);
    assert_string_equal(fault(&c), m.link);
    m.xid_ms = 5000;
    m.xid = 74;
    causes_read(&c, &m, NULL, 0);
    assert_memory_equal(fault(&c), "Xid 74 ", 7);
}

static void a_fault_has_an_age_and_an_old_one_is_no_cause(void **state)
{
    struct causes c = {.log = {.fd = -1, .xid = "Xid 79", .xid_ms = 10000}, .round_ms = 1000};
    double before_s;
    (void)state;
    c.machine = (struct causes_machine){.link_ms = 20000, .link = "e0 went down", .link_down = true};
    assert_string_equal(fault_at(&c, 9000), "Xid 79"); /* the look was late */
    assert_string_equal(fault_at(&c, 12000), "Xid 79");
    assert_string_equal(fault_at(&c, 12001), "2.0 s after Xid 79");
    assert_string_equal(fault_at(&c, 70000), "60.0 s after Xid 79");
    assert_string_equal(fault_at(&c, 70001), "50.0 s after e0 went down");
    assert_null(fault_at(&c, 80001));
    assert_string_equal(causes_fault(&c, 80001, true, &before_s), "Xid 79"); /* it hung: nobody knows for how long */
    assert_true(before_s > 70 && before_s < 71);
}

static void a_log_is_read_from_now_on_or_whole(void **state)
{
    char path[] = "/tmp/kernel-log-XXXXXX";
    static const char record[] = "4,7,99,-;NVRM: Xid (PCI:0): 13, pid=1, name=x, first\n SUBSYSTEM=pci\n";
    static const char users[] = "12,8,99,-;NVRM: Xid (PCI:0): 14, pid=1, name=x, by a user\n";
    struct kernel_log now, whole;
    const int fd = mkstemp(path);
    (void)state;
    assert_int_equal(write(fd, record, sizeof record - 1), sizeof record - 1);
    kernel_log_open(&now, path, false);
    kernel_log_open(&whole, path, true);
    kernel_log_read(&now, NULL, 0);
    kernel_log_read(&whole, NULL, 0);
    assert_string_equal(now.xid, "");
    assert_string_equal(whole.xid, "Xid 13 on PCI:0: first");
    assert_int_equal(write(fd, users, sizeof users - 1), sizeof users - 1);
    kernel_log_read(&now, NULL, 0);
    assert_string_equal(now.xid, "");
    kernel_log_close(&now);
    kernel_log_close(&whole);
    close(fd);
    unlink(path);
    kernel_log_open(&now, path, false);
    assert_int_equal(now.fd, -1);
    kernel_log_read(&now, NULL, 0);
}

static void a_record_of_the_kernel_has_its_time(void **state)
{
    char path[] = "/tmp/kernel-log-XXXXXX";
    struct kernel_log k;
    struct timespec raw;
    const int fd = mkstemp(path);
    (void)state;
    clock_gettime(CLOCK_MONOTONIC_RAW, &raw);
    const int64_t logged_ms = clock_ms();
    dprintf(fd, "4,7,%" PRId64 ",-;NVRM: Xid (PCI:0): 13, first\n",
            (int64_t)raw.tv_sec * 1000000 + raw.tv_nsec / 1000 - 5000000);
    kernel_log_open(&k, path, true);
    kernel_log_read(&k, NULL, 0);
    assert_true(k.xid_ms <= logged_ms - 4990 && k.xid_ms > logged_ms - 60000); /* a busy machine delays the reader */
    kernel_log_close(&k);
    close(fd);
    unlink(path);
}

static void last_words_count_where_they_can_be_the_last(void **state)
{
    struct failure_worker w = {.ended = true, .ending = {.value = 1}};
    char text[CAUSES_TEXT_MAX];
    (void)state;
    assert_string_equal(causes_words(&w, NULL, "OSError: [Errno 28] No space left on device: '/x'", text),
                        ": a file system without space (it said: No space left on device)");
    assert_string_equal(causes_words(&w, "CUDA out of memory. Tried", "Read-only file system", text),
                        ": the GPU's memory is full (it said: CUDA out of memory)");
    assert_null(causes_words(&w, NULL, NULL, text));
    assert_null(causes_words(&w, "bad batch", "ValueError", text));
    w.ending = (struct ending){.signaled = true, .value = SIGSEGV};
    assert_null(causes_words(&w, NULL, "No space left on device", text));
    assert_string_equal(causes_words(&w, "crashed: SIGSEGV sent by process 4711", NULL, text),
                        ", which process 4711 sent");
    assert_string_equal(causes_words(&w, "crashed: SIGSEGV sent by a process outside of its container", NULL, text),
                        ", which a process outside of its container sent");
    assert_null(causes_words(&w, "crashed: SIGABRT sent by process 4711", NULL, text)); /* it survived that one */
    assert_null(causes_words(&w, "crashed: SIGSEGV at address 0x0", NULL, text));
    assert_null(causes_words(&w, "crashed: SIGSEGV sent by process 4711, as I think", NULL, text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_says_how_full_it_was_and_who_held_most),
        cmocka_unit_test(who_was_killed_for_want_of_memory_is_known_or_counted),
        cmocka_unit_test(where_the_kernel_cannot_be_read_others_are_measured),
        cmocka_unit_test(the_newest_fault_of_a_gpu_is_told),
        cmocka_unit_test(a_link_counts_while_it_is_down_and_in_the_round_that_saw_it_change),
        cmocka_unit_test(a_fault_has_an_age_and_an_old_one_is_no_cause),
        cmocka_unit_test(a_log_is_read_from_now_on_or_whole),
        cmocka_unit_test(a_record_of_the_kernel_has_its_time),
        cmocka_unit_test(last_words_count_where_they_can_be_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
