/* libcrun with a real page: a memfd and an eventfd, as the launcher makes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "common/job/failure_record.h"

static int page_fd = -1, notify_fd = -1;
static struct crun_page *page;
static struct crun_info info;

static int make_page(void **state)
{
    char text[16];
    page_fd = memfd_create("page", 0);
    notify_fd = eventfd(0, EFD_NONBLOCK);
    if (page_fd < 0 || notify_fd < 0 || ftruncate(page_fd, CRUN_PAGE_BYTES) < 0)
        return -1;
    page = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    page->magic = CRUN_PAGE_MAGIC;
    page->version = CRUN_PAGE_VERSION;
    page->notify_fd = notify_fd;
    page->wake_fd = -1;
    snprintf(text, sizeof text, "%d", page_fd);
    setenv("CRUN_PAGE_FD", text, 1);
    return 0;
}

static int free_page(void **state)
{
    crun_finish();
    munmap(page, CRUN_PAGE_BYTES);
    close(page_fd);
    close(notify_fd);
    unsetenv("CRUN_PAGE_FD");
    return 0;
}

static void everything_works_without_crun(void **state)
{
    unsetenv("CRUN_PAGE_FD");
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(info.rank, 0);
    assert_int_equal(info.world_size, 1);
    assert_string_equal(info.store, "");
    assert_string_equal(info.run_id, "");
    crun_progress(1);
    assert_int_equal(crun_stop_reason(), CRUN_STOP_NONE);
    crun_record_error(1, "x");
    crun_finish();
    crun_finish();
}

static void the_environment_is_handed_over(void **state)
{
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("CRUN_ROUND", "5", 1);
    setenv("CRUN_STORE", "resp://h:1", 1);
    setenv("TORCHELASTIC_RUN_ID", "j1", 1);
    assert_int_equal(crun_init(&info), 0);
    setenv("CRUN_STORE", "changed", 1);
    assert_int_equal(info.rank, 1);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(info.round, 5);
    assert_string_equal(info.store, "resp://h:1");
    assert_string_equal(info.run_id, "j1");
    setenv("RANK", "2", 1);
    assert_int_equal(crun_init(&info), -EINVAL);
    static const char *const names[] = {"RANK", "WORLD_SIZE", "CRUN_ROUND", "CRUN_STORE", "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < 5; i++)
        unsetenv(names[i]);
}

static void progress_is_seen_and_the_first_one_wakes_the_launcher(void **state)
{
    uint64_t wakes = 0;
    assert_int_equal(page->attached, 0);
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(page->attached, 1);
    int64_t before = clock_ns();
    assert_int_equal(read(notify_fd, &wakes, 8), -1);
    for (uint64_t step = 7; step < 10; step++)
        crun_progress(step);
    assert_int_equal(page->step, 9);
    assert_int_equal(read(notify_fd, &wakes, 8), 8);
    assert_int_equal(wakes, 1);
    assert_true(page->first_step_ns >= before && page->first_step_ns <= page->last_step_ns);
    assert_true(page->last_step_ns <= clock_ns());
    crun_finish();
    assert_int_equal(page->attached, 0);
}

static void metrics_are_told_as_they_are(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(page->has_metrics, 0);
    crun_metrics(310.25, 2.5e-7);
    assert_int_equal(page->has_metrics, 1);
    assert_true(crun_page_real(&page->images_per_s) == 310.25 && crun_page_real(&page->loss) == 2.5e-7);
    crun_finish();
}

static void figures_are_told_one_by_one_and_waits_add_up(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    crun_figure(CRUN_FIGURE_ACCURACY, 0.75);
    crun_figure(CRUN_FIGURE_LOSS, NAN);
    crun_figure((enum crun_figure)99, 1);
    assert_int_equal(page->figures_set, 1u << CRUN_FIGURE_ACCURACY);
    assert_true(crun_page_real(&page->figure[CRUN_FIGURE_ACCURACY]) == 0.75);
    crun_figure(CRUN_FIGURE_WAIT_S, 0.25);
    crun_figure(CRUN_FIGURE_WAIT_S, 0.5);
    crun_figure(CRUN_FIGURE_WAIT_S, 1e300);
    crun_figure(CRUN_FIGURE_WAIT_S, -1);
    assert_int_equal(page->wait_ns, 750000000);
    assert_int_equal(page->has_metrics, 0);
    crun_finish();
}

static void what_a_step_was_made_of_is_told_with_it(void **state)
{
    uint32_t us[CRUN_PAGE_PARTS];
    assert_int_equal(crun_init(&info), 0);
    crun_progress(1);
    assert_int_equal(crun_page_read_row(page, 1, us), 0); /* nothing was told */
    crun_spent(CRUN_PART_DATA, 0.001);
    crun_spent(CRUN_PART_DATA, 0.002);
    crun_spent(CRUN_PART_UPDATE, NAN);
    crun_spent(CRUN_PART_UPDATE, -1);
    crun_spent(CRUN_PART_FORWARD, 1e9);
    crun_figure(CRUN_FIGURE_WAIT_S, 0.25);
    crun_spent((enum crun_part)99, 1);
    assert_int_equal(crun_page_read_row(page, 2, us), 0);
    crun_progress(2);
    assert_int_equal(crun_page_read_row(page, 2, us), 1);
    assert_in_range(us[CRUN_PART_DATA], 2999, 3000);
    assert_int_equal(us[CRUN_PART_WAIT], 250000);
    assert_int_equal(us[CRUN_PART_UPDATE], 0);
    assert_true(us[CRUN_PART_FORWARD] == UINT32_MAX);
    crun_progress(3); /* parts are of one step */
    assert_int_equal(crun_page_read_row(page, 3, us), 1);
    assert_int_equal(us[CRUN_PART_DATA], 0);
    crun_progress(2 + CRUN_PAGE_ROWS);
    assert_int_equal(crun_page_read_row(page, 2, us), 0);
    assert_int_equal(atomic_load(&page->link_us[0]), 0);
    crun_links(0.0001, 0.02);
    crun_links(-1, NAN);
    assert_in_range(atomic_load(&page->link_us[0]), 100, 101);
    assert_in_range(atomic_load(&page->link_us[1]), 20000, 20001);
    assert_string_equal(crun_part_name(CRUN_PART_BACKWARD), "backward");
    assert_string_equal(crun_part_name((enum crun_part)99), "unknown");
    crun_finish();
}

static void stop_reasons_arrive_and_have_names(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(crun_stop_reason(), CRUN_STOP_NONE);
    page->stop_reason = CRUN_STOP_DRAIN;
    assert_int_equal(crun_stop_reason(), CRUN_STOP_DRAIN);
    page->stop_reason = 77;
    assert_int_equal(crun_stop_reason(), CRUN_STOP_ABORT);
    assert_string_equal(crun_stop_reason_name(CRUN_STOP_RESIZE), "resize");
    assert_string_equal(crun_stop_reason_name((enum crun_stop_reason)77), "unknown");
}

static void the_first_error_is_recorded_in_page_and_file(void **state)
{
    char path[] = "/tmp/test_crun_XXXXXX", longtext[2000];
    struct failure_record r;
    struct err e;
    close(mkstemp(path));
    setenv("TORCHELASTIC_ERROR_FILE", path, 1);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    memset(longtext, 'x', sizeof longtext - 1);
    longtext[sizeof longtext - 1] = 0;
    assert_int_equal(crun_init(&info), 0);
    crun_progress(12);
    crun_record_error(65, "no \"classes\"");
    crun_record_error(70, longtext);
    assert_int_equal(page->error_code, 65);
    assert_string_equal(page->error_text, "no \"classes\"");
    assert_int_equal(failure_record_read(path, &r, &e), 0);
    assert_string_equal(r.message, "no \"classes\"");
    assert_int_equal(r.exitcode, 65);
    assert_int_equal(r.rank, 1);
    assert_int_equal(r.step, 12);
    assert_true(r.timestamp > 0);
    assert_int_equal(crun_init(&info), 0);
    crun_record_error(70, longtext);
    assert_int_equal(strlen(page->error_text), sizeof page->error_text - 1);
    unlink(path);
    unsetenv("TORCHELASTIC_ERROR_FILE");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void descriptors_are_not_inherited_further(void **state)
{
    assert_int_equal(crun_init(&info), 0);
    assert_true(fcntl(page_fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(notify_fd, F_GETFD) & FD_CLOEXEC);
}

static void expect_no_page(void)
{
    assert_int_equal(crun_init(&info), 0);
    crun_progress(1);
    crun_metrics(1, 1);
    crun_record_error(1, "x");
    assert_int_equal(crun_stop_reason(), CRUN_STOP_NONE);
}

static void a_garbage_descriptor_means_no_launcher(void **state)
{
    static const char *const garbage[] = {"", "x", "-1", "9999", "0", "1", "99999999999999999999"};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        setenv("CRUN_PAGE_FD", garbage[i], 1);
        expect_no_page();
    }
}

static void a_page_of_another_kind_is_left_alone(void **state)
{
    struct crun_page before;
    page->stop_reason = CRUN_STOP_ABORT;
    page->magic ^= 1;
    before = *page;
    expect_no_page();
    assert_memory_equal(page, &before, sizeof before);
    page->magic ^= 1;
    page->version = 0;
    expect_no_page();
    page->version = 1;
    assert_int_equal(ftruncate(page_fd, 100), 0);
    expect_no_page();
}

static int64_t steps_counted(void)
{
    int64_t n = 0;
    for (unsigned i = 0; i < CRUN_PAGE_BUCKETS; i++)
        n += page->steps[i];
    return n;
}

static void buckets_hold_what_they_say(void **state)
{
    assert_int_equal(crun_page_bucket(0), 0);
    assert_int_equal(crun_page_bucket(INT64_MAX), CRUN_PAGE_BUCKETS - 1);
    for (unsigned i = 1; i < CRUN_PAGE_BUCKETS; i++) {
        const int64_t begin = crun_page_bucket_begin(i);
        assert_int_equal(crun_page_bucket(begin), i);
        assert_int_equal(crun_page_bucket(begin - 1), i - 1);
    }
}

/* The first step begins before the library knows when; a checkpoint is no step. */
static void steps_are_counted_by_their_time_and_phases_apart(void **state)
{
    const int64_t start = clock_ns();
    assert_int_equal(crun_init(&info), 0);
    crun_progress(1);
    assert_int_equal(steps_counted(), 0);
    crun_progress(2);
    assert_int_equal(steps_counted(), 1);
    crun_phase(CRUN_PHASE_CHECKPOINT);
    assert_int_equal(page->phase, CRUN_PHASE_CHECKPOINT);
    const int64_t entered = page->phase_ns;
    usleep(20000);
    crun_phase(CRUN_PHASE_STEP);
    assert_true(page->phase_ns - entered >= 20000000);
    assert_int_equal(page->longest_ns[CRUN_PHASE_CHECKPOINT], page->phase_ns - entered);
    crun_progress(3);
    assert_int_equal(steps_counted(), 2);
    assert_true(page->longest_ns[CRUN_PHASE_STEP] <= clock_ns() - start - page->longest_ns[CRUN_PHASE_CHECKPOINT]);
    assert_string_equal(crun_phase_name(CRUN_PHASE_CLOSING), "closing");
    assert_string_equal(crun_phase_name((enum crun_phase)99), "unknown");
}

static void without_a_store_there_are_no_keys(void **state)
{
    size_t n;
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(crun_set("k", "v", 1), -ENOTCONN);
    assert_int_equal(crun_get("k", NULL, 0, &n, 0.1), -ENOTCONN);
    assert_int_equal(crun_get("k", NULL, 0, &n, -1), -EINVAL);
    assert_int_equal(crun_get("", NULL, 0, &n, 1), -EINVAL);
    assert_int_equal(crun_add("k", 1, NULL), -ENOTCONN);
    assert_int_equal(crun_delete(""), -EINVAL);
    assert_int_equal(crun_barrier("b", 1), 0);
}

/* --- a store that does as it is told */

static void begin_at_store(int listener)
{
    char url[64];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    snprintf(url, sizeof url, "resp://127.0.0.1:%d", ntohs(at.sin_port));
    setenv("CRUN_STORE", url, 1);
    assert_int_equal(crun_init(&info), 0);
    unsetenv("CRUN_STORE");
}

struct resetting_store {
    int listener, go, gone; /* eventfds */
};

/* Answer one request on each of two connections; reset the first when it is told to. */
static void *answer_and_reset(void *arg)
{
    const struct resetting_store *s = arg;
    const struct linger at_once = {.l_onoff = 1};
    char request[4096];
    eventfd_t n;
    for (int i = 0; i < 2; i++) {
        const int fd = accept(s->listener, NULL, NULL);
        if (recv(fd, request, sizeof request, 0) > 0)
            send(fd, "+OK\r\n", 5, MSG_NOSIGNAL);
        if (i == 0)
            eventfd_read(s->go, &n);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, i == 0 ? sizeof at_once : 0);
        close(fd);
        eventfd_write(s->gone, 1);
    }
    return NULL;
}

static void a_connection_that_was_reset_is_not_used_again(void **state)
{
    struct resetting_store s = {socket(AF_INET, SOCK_STREAM, 0), eventfd(0, 0), eventfd(0, 0)};
    pthread_t thread;
    eventfd_t n;
    begin_at_store(s.listener);
    assert_int_equal(pthread_create(&thread, NULL, answer_and_reset, &s), 0);
    assert_int_equal(crun_set("key", "", 0), 0);
    eventfd_write(s.go, 1);
    eventfd_read(s.gone, &n);
    const int rc = crun_set("key", "", 0);
    if (rc < 0) /* for the thread's sake */
        crun_set("key", "", 0);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    close(s.listener);
    close(s.go);
    close(s.gone);
}

/* 8 MiB, what every store takes: a server would close the connection on more. */
static void a_value_that_no_store_takes_is_refused_here(void **state)
{
    static char value[(8 << 20) + 1];
    const int mute = socket(AF_INET, SOCK_STREAM, 0);
    begin_at_store(mute);
    assert_int_equal(CRUN_VALUE_MAX, 8 << 20);
    assert_int_equal(crun_set("key", value, CRUN_VALUE_MAX + 1), -EMSGSIZE);
    close(mute);
}

/* --- crashes */

static void die_of_a_bad_pointer(void)
{
    int *volatile bad = (int *)16; /* volatile: no compiler sees through it */
    *bad = 1;
}

static void die_of_abort(void)
{
    abort();
}

static volatile bool for_ever = true;

static int deeper(volatile char *above)
{
    volatile char here[4096];
    here[0] = above[0];
    return for_ever ? deeper(here) + here[0] : 0;
}

static void die_of_a_deep_stack(void)
{
    char top = 1;
    deeper(&top);
}

static void die_of_a_signal(void)
{
    kill(getpid(), SIGFPE);
}

static void die_of_a_signal_from_outside(void)
{
    siginfo_t from = {.si_signo = SIGFPE, .si_code = SI_QUEUE}; /* si_pid 0: no process of this PID namespace */
    syscall(SYS_rt_sigqueueinfo, getpid(), SIGFPE, &from);
}

/* In a child: die with the handlers installed. Returns what waitpid() says. */
static int death(void (*how)(void), const char *record)
{
    setenv("TORCHELASTIC_ERROR_FILE", record, 1);
    unlink(record);
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        close(STDERR_FILENO);
        for (int s = 1; s < 32; s++)
            signal(s, SIG_DFL); /* cmocka's own, and a sanitizer's */
        crun_init(&info);
        crun_progress(7);
        if (crun_catch_crashes() == 0 && crun_catch_crashes() == 0)
            how();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void a_crash_leaves_a_record_and_the_signal_kills(void **state)
{
    static const struct {
        void (*how)(void);
        int signo;
        const char *message;
    } deaths[] = {{die_of_a_bad_pointer, SIGSEGV, "crashed: SIGSEGV at address 0x10"},
                  {die_of_abort, SIGABRT, "crashed: SIGABRT"},
                  {die_of_a_deep_stack, SIGSEGV, "crashed: SIGSEGV at address 0x7"},
                  {die_of_a_signal, SIGFPE, "crashed: SIGFPE"},
                  {die_of_a_signal_from_outside, SIGFPE, "crashed: SIGFPE sent by a process outside of its container"}};
    char path[64];
    snprintf(path, sizeof path, "/tmp/crun-crash-%d.json", (int)getpid());
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        struct failure_record r;
        struct err e;
        const int status = death(deaths[i].how, path);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), deaths[i].signo);
        if (failure_record_read(path, &r, &e) < 0)
            fail_msg("%s", e.text);
        if (strncmp(r.message, deaths[i].message, strlen(deaths[i].message)) != 0)
            fail_msg("'%s', expected '%s'", r.message, deaths[i].message);
        if (deaths[i].signo == SIGFPE) /* nobody else sent it */
            assert_string_equal(r.message, deaths[i].message);
        assert_int_equal(r.exitcode, 128 + deaths[i].signo);
        assert_int_equal(r.step, 7);
        assert_int_equal(page->error_code, 128 + deaths[i].signo);
        assert_string_equal(page->error_text, r.message);
        assert_int_equal(page->attached, 1);
        page->error_code = 0;
        page->first_step_ns = 0;
    }
    unlink(path);
    unsetenv("TORCHELASTIC_ERROR_FILE");
}

static void the_call_stack_is_in_the_record(void **state)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/tmp/crun-stack-%d.json", (int)getpid());
    death(die_of_a_bad_pointer, path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    unlink(path);
    unsetenv("TORCHELASTIC_ERROR_FILE");
    assert_non_null(strstr(text, "\"py_callstack\": \"#0 0x"));
    assert_non_null(strstr(text, "test_crun+0x"));
    assert_non_null(strstr(text, "\\n#1 0x"));
}

static void handler_that_was_there(int signo)
{
    _exit(40 + (atomic_load(&page->error_code) == 128 + signo));
}

static void die_with_a_handler(void)
{
    raise(SIGILL);
}

static void the_handler_that_was_there_comes_next(void **state)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO);
        signal(SIGILL, handler_that_was_there);
        crun_init(&info);
        crun_catch_crashes();
        die_with_a_handler();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 41);
}

/* --- rounds that a process outlives */

static int make_holding_page(void **state)
{
    const int rc = make_page(state);
    page->wake_fd = eventfd(0, EFD_NONBLOCK);
    return rc == 0 && page->wake_fd >= 0 && crun_init(&info) == 0 ? 0 : -1;
}

static int free_holding_page(void **state)
{
    close(page->wake_fd);
    return free_page(state);
}

/* As the launcher does it. */
static void wake_up(void)
{
    atomic_fetch_add(&page->wake, 1);
    syscall(SYS_futex, &page->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void say(enum crun_stop_reason why)
{
    if (why == CRUN_STOP_HOLD)
        atomic_fetch_add(&page->holds, 1);
    const uint64_t one = 1;
    atomic_store(&page->stop_reason, why);
    wake_up();
    if (why != CRUN_STOP_NONE)
        assert_int_equal(write(page->wake_fd, &one, sizeof one), sizeof one);
}

static void tell_round(int round, int rank)
{
    const struct crun_page_round r = {
        .rank = rank, .world_size = 4, .round = round, .restart_count = 1, .store = "resp://[::1]:7"};
    crun_page_tell_round(page, &r);
    say(CRUN_STOP_NONE);
}

static bool is_awake(void)
{
    struct pollfd p = {.fd = crun_wake_fd(), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void the_memory_of_the_node_is_found_where_a_launcher_has_some(void **state)
{
    assert_int_equal(crun_init(&info), 0); /* a page of a launcher that knows of none */
    assert_int_equal(crun_node_memory(), -1);
    const int fd = memfd_create("memory", 0);
    page->memory_fd = fd + 1;
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(crun_node_memory(), fd);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC); /* this process's children have no use for it */
    crun_finish();
    assert_int_equal(crun_node_memory(), -1);
    close(fd);
}

static void without_a_launcher_that_holds_nobody_stays(void **state)
{
    assert_int_equal(crun_init(&info), 0); /* a page that says -1 */
    assert_int_equal(crun_stay(), -ENOTSUP);
    assert_int_equal(crun_stay_growing(), -ENOTSUP);
    assert_int_equal(crun_wake_fd(), -1);
    assert_int_equal(crun_wait_hold(0), -ENOTSUP);
    assert_int_equal(crun_next_round(&info, 0), -ENOTSUP);
    page->version = 1; /* an older one: what lies behind is not for us */
    page->wake_fd = 0;
    assert_int_equal(crun_init(&info), 0);
    assert_int_equal(crun_stay(), -ENOTSUP);
    page->wake_fd = -1;
}

static void a_process_that_is_held_says_so_and_gets_the_next_round(void **state)
{
    assert_int_equal(crun_stay(), 0);
    assert_int_equal(page->stays, 1);
    assert_int_equal(crun_stay_growing(), 0);
    assert_int_equal(page->stays, 2);
    assert_int_equal(crun_next_round(&info, 0), -EAGAIN);
    assert_int_equal(crun_wait_hold(0), -ETIMEDOUT);
    assert_int_equal(crun_wait_hold(-1), -EINVAL);
    assert_int_equal(crun_wait_hold(NAN), -EINVAL);
    assert_int_equal(crun_next_round(&info, INFINITY), -EINVAL);
    crun_progress(7);
    say(CRUN_STOP_HOLD);
    assert_true(is_awake());
    assert_int_equal(crun_wait_hold(0), 0);
    assert_int_equal(page->held, 0);
    assert_int_equal(crun_next_round(&info, 0), -ETIMEDOUT);
    assert_int_equal(page->held, 1);
    tell_round(2, 3);
    assert_int_equal(crun_next_round(&info, 0), 0);
    assert_int_equal(info.round, 2);
    assert_int_equal(info.rank, 3);
    assert_int_equal(info.world_size, 4);
    assert_string_equal(info.store, "resp://[::1]:7");
    assert_false(is_awake());
    assert_int_equal(page->first_step_ns, 0); /* the first step of a round wakes the launcher, again */
    assert_int_equal(page->phase, CRUN_PHASE_STARTING);
    assert_int_equal(crun_next_round(&info, 0), -EAGAIN);
}

/* The process whose parent is `of` and that has this name; 0: there is none. */
static pid_t child_named(pid_t of, const char *name)
{
    char path[64], text[256] = "", has[32] = "";
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)of, (int)of);
    if (file_read_text(text, sizeof text, "%s", path) <= 0 || sscanf(text, "%d", &pid) != 1)
        return 0;
    file_read_line(has, sizeof has, "/proc/%d/comm", pid);
    return strcmp(has, name) == 0 ? pid : 0;
}

static char shared[8] = "before";

static _Noreturn void stay_and_write(void)
{
    if (crun_init(&info) == 0 && crun_stay() == 0 && crun_stay_growing() == 0)
        strcpy(shared, "after");
    for (;;)
        pause();
}

static int count_files(pid_t pid)
{
    char path[32];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void a_process_that_stays_shares_its_memory_with_one_that_has_no_files_and_ends_with_it(void **state)
{
    const int64_t end = clock_deadline(60000);
    page->wake_fd = notify_fd;
    const pid_t pid = fork();
    if (pid == 0)
        stay_and_write();
    pid_t with = 0;
    while (with == 0 && access("/dev/nvidiactl", F_OK) != 0 && clock_left(end))
        with = child_named(pid, CRUN_MEMORY_NAME);
    const int fd = with ? (int)syscall(SYS_pidfd_open, with, 0) : -1;
    if (fd >= 0) { /* else a GPU, or an older kernel */
        char text[sizeof shared] = "";
        const struct iovec here = {text, sizeof text}, there = {shared, sizeof shared};
        while (strcmp(text, "after") != 0 && clock_left(end))
            assert_int_equal(process_vm_readv(with, &here, 1, &there, 1, 0), sizeof text);
        while (count_files(with) > 0 && clock_left(end))
            ;
        assert_string_equal(text, "after");
        assert_int_equal(count_files(with), 0);
        kill(with, SIGTERM); /* blocked: a handler of the worker would run in it */
        struct pollfd ended = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&ended, 1, 0), 0);
        kill(pid, SIGKILL);
        assert_int_equal(poll(&ended, 1, 60000), 1);
        close(fd);
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    page->wake_fd = -1;
}

static void a_round_that_broke_before_it_was_taken_is_passed_over(void **state)
{
    crun_stay();
    say(CRUN_STOP_HOLD);
    assert_int_equal(crun_next_round(&info, 0), -ETIMEDOUT);
    tell_round(2, 1);
    say(CRUN_STOP_HOLD);
    assert_int_equal(crun_next_round(&info, 0), -ETIMEDOUT);
    assert_int_equal(page->held, 2);
    tell_round(3, 1);
    assert_int_equal(crun_next_round(&info, 0), 0);
    assert_int_equal(info.round, 3);
}

/* Others have taken it before, and wait. */
static void a_round_that_was_there_before_all_are_to_save_and_end_is_taken(void **state)
{
    crun_stay();
    say(CRUN_STOP_HOLD);
    assert_int_equal(crun_next_round(&info, 0), -ETIMEDOUT);
    tell_round(2, 1);
    say(CRUN_STOP_DRAIN);
    assert_int_equal(crun_next_round(&info, 0), 0);
    assert_int_equal(info.round, 2);
    assert_int_equal(crun_next_round(&info, 0), -ECANCELED);
}

static void but_not_one_that_broke_and_not_if_nobody_saves(void **state)
{
    crun_stay();
    say(CRUN_STOP_HOLD);
    assert_int_equal(crun_next_round(&info, 0), -ETIMEDOUT);
    tell_round(2, 1);
    say(CRUN_STOP_ABORT);
    assert_int_equal(crun_next_round(&info, 0), -ECANCELED);
    say(CRUN_STOP_HOLD);
    say(CRUN_STOP_DRAIN);
    assert_int_equal(crun_next_round(&info, 0), -ECANCELED);
}

static void who_is_to_end_is_not_held_any_more(void **state)
{
    crun_stay();
    say(CRUN_STOP_HOLD);
    say(CRUN_STOP_DRAIN);
    assert_int_equal(crun_next_round(&info, 10), -ECANCELED);
    assert_int_equal(crun_wait_hold(10), -ECANCELED);
}

enum { LAST_ROUND = 200 };

/* Another thread waits for the hold and takes the round, again and again; one that breaks before it is taken is passed
 * over. */
static void *go_through_rounds(void *arg)
{
    struct crun_info i = {.round = 1};
    while (i.round < LAST_ROUND && crun_wait_hold(60) == 0 && crun_next_round(&i, 60) == 0)
        if (is_awake() && crun_stop_reason() == CRUN_STOP_NONE) /* calls to the store would end */
            break;
    *(int *)arg = i.round;
    return arg;
}

static void no_wake_up_is_lost(void **state)
{
    pthread_t thread;
    int last = 0;
    crun_stay();
    assert_int_equal(pthread_create(&thread, NULL, go_through_rounds, &last), 0);
    for (int round = 2; round <= LAST_ROUND; round++) {
        uint64_t n;
        struct pollfd told = {.fd = notify_fd, .events = POLLIN};
        say(CRUN_STOP_HOLD);
        assert_int_equal(poll(&told, 1, 60000), 1); /* it has acknowledged */
        assert_int_equal(read(notify_fd, &n, sizeof n), sizeof n);
        tell_round(round, 0);
    }
    pthread_join(thread, NULL);
    assert_int_equal(last, LAST_ROUND);
}

static void calls_to_the_store_end_when_there_is_a_reason_to_stop(void **state)
{
    const int mute = socket(AF_INET, SOCK_STREAM, 0); /* never answers */
    begin_at_store(mute);
    assert_int_equal(crun_stay(), 0);
    say(CRUN_STOP_HOLD);
    assert_int_equal(crun_set("key", "", 0), -ECANCELED);
    close(mute);
}

static void the_shared_library_exports_the_api_only(void **state)
{
    const char *path = getenv("LIBCRUN");
    if (!path)
        skip();
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        fail_msg("%s", dlerror());
    static const char *const api[] = {
        "crun_init",         "crun_finish",  "crun_progress",  "crun_stop_reason",  "crun_stop_reason_name",
        "crun_record_error", "crun_metrics", "crun_phase",     "crun_phase_name",   "crun_catch_crashes",
        "crun_set",          "crun_get",     "crun_add",       "crun_delete",       "crun_barrier",
        "crun_stay",         "crun_wake_fd", "crun_wait_hold", "crun_next_round",   "crun_figure",
        "crun_spent",        "crun_links",   "crun_part_name", "crun_stay_growing", "crun_node_memory",
        "crun_keeps",        "crun_done"};
    for (size_t i = 0; i < sizeof api / sizeof *api; i++)
        assert_non_null(dlsym(lib, api[i]));
    assert_null(dlsym(lib, "env_contract_read"));
    assert_null(dlsym(lib, "err_set"));
    assert_null(dlsym(lib, "libcrun_self"));
    dlclose(lib);
}

int main(void)
{
#define WITH_PAGE(f) cmocka_unit_test_setup_teardown(f, make_page, free_page)
#define HELD(f) cmocka_unit_test_setup_teardown(f, make_holding_page, free_holding_page)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_works_without_crun),
        cmocka_unit_test(the_environment_is_handed_over),
        WITH_PAGE(progress_is_seen_and_the_first_one_wakes_the_launcher),
        WITH_PAGE(metrics_are_told_as_they_are),
        WITH_PAGE(the_memory_of_the_node_is_found_where_a_launcher_has_some),
        WITH_PAGE(figures_are_told_one_by_one_and_waits_add_up),
        WITH_PAGE(what_a_step_was_made_of_is_told_with_it),
        WITH_PAGE(stop_reasons_arrive_and_have_names),
        WITH_PAGE(the_first_error_is_recorded_in_page_and_file),
        WITH_PAGE(descriptors_are_not_inherited_further),
        WITH_PAGE(a_garbage_descriptor_means_no_launcher),
        WITH_PAGE(a_page_of_another_kind_is_left_alone),
        cmocka_unit_test(buckets_hold_what_they_say),
        WITH_PAGE(steps_are_counted_by_their_time_and_phases_apart),
        cmocka_unit_test(without_a_store_there_are_no_keys),
        cmocka_unit_test(a_connection_that_was_reset_is_not_used_again),
        cmocka_unit_test(a_value_that_no_store_takes_is_refused_here),
        WITH_PAGE(a_crash_leaves_a_record_and_the_signal_kills),
        WITH_PAGE(the_call_stack_is_in_the_record),
        WITH_PAGE(the_handler_that_was_there_comes_next),
        WITH_PAGE(without_a_launcher_that_holds_nobody_stays),
        HELD(a_process_that_is_held_says_so_and_gets_the_next_round),
        WITH_PAGE(a_process_that_stays_shares_its_memory_with_one_that_has_no_files_and_ends_with_it),
        HELD(a_round_that_broke_before_it_was_taken_is_passed_over),
        HELD(a_round_that_was_there_before_all_are_to_save_and_end_is_taken),
        HELD(but_not_one_that_broke_and_not_if_nobody_saves),
        HELD(who_is_to_end_is_not_held_any_more),
        HELD(no_wake_up_is_lost),
        HELD(calls_to_the_store_end_when_there_is_a_reason_to_stop),
        cmocka_unit_test(the_shared_library_exports_the_api_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
