/* Processes started by threads: what is ready starts while the rest is prepared; a failure or a cancellation in the
 * middle leaves no process unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/workers/spawn_thread.h"
#include "tests/launcher/turn.h"

enum { N = 6, PATIENCE_MS = 60000 };

static uv_loop_t loop;
static struct spawn_thread *threads;
static sigset_t no_signals;
static const struct sigaction by_default = {.sa_handler = SIG_DFL};
static const struct rlimit nofile = {64, 64};
static int null_fd;

/* The system has room for so many threads more. */
static int threads_left = 1000;

int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return threads_left-- > 0 ? real(ret, attr, run, arg) : EAGAIN;
}

struct batch {
    struct spawn_batch b;
    struct spawn_request requests[N];
    struct spawned spawned[N];
    bool is_done;
};

static void on_done(struct spawn_batch *b)
{
    ((struct batch *)b)->is_done = true; /* its first member */
}

static void open_batch(struct batch *s)
{
    static char *const argv[] = {"sleep", "1000", NULL};
    static char *const env[] = {NULL};
    *s = (struct batch){.b = {.requests = s->requests, .spawned = s->spawned, .done = on_done}};
    for (int i = 0; i < N; i++)
        s->requests[i] = (struct spawn_request){.path = "/bin/sleep",
                                                .argv = argv,
                                                .envp = env,
                                                .stdio = {null_fd, null_fd, null_fd},
                                                .status_fd = -1,
                                                .mask = &no_signals,
                                                .on_pipe = &by_default,
                                                .on_ttou = &by_default,
                                                .nofile = &nofile,
                                                .cgroup_fd = -1};
    spawn_thread_start(threads, &s->b);
}

static void add(struct batch *s, int n)
{
    for (int i = 0; i < n; i++)
        spawn_thread_add(threads, &s->b);
}

/* Ends those that are there. Returns how many. */
static int end_spawned(struct batch *s)
{
    int n = 0;
    for (int i = 0; i < N; i++) {
        if (!s->spawned[i].pid)
            continue;
        siginfo_t info;
        assert_int_equal(kill(s->spawned[i].pid, SIGKILL), 0);
        assert_int_equal(waitid(P_PIDFD, (id_t)s->spawned[i].pidfd, &info, WEXITED), 0);
        close(s->spawned[i].pidfd);
        n++;
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody else */
    assert_int_equal(errno, ECHILD);
    return n;
}

static void all_of_a_batch_are_started(void **state)
{
    struct batch s;
    open_batch(&s);
    add(&s, N);
    spawn_thread_complete(threads, &s.b, 0, NULL);
    TURN_UNTIL(&loop, PATIENCE_MS, s.is_done);
    assert_true(s.is_done);
    assert_int_equal(s.b.rc, 0);
    assert_true(spawn_thread_is_idle(threads));
    assert_int_equal(end_spawned(&s), N);
}

static void the_first_starts_before_the_last_is_ready(void **state)
{
    struct batch s;
    open_batch(&s);
    add(&s, 1);
    siginfo_t info = {0};
    uv_update_time(&loop);
    TURN_UNTIL(&loop, PATIENCE_MS, waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0); /* there is a child */
    assert_false(s.is_done);
    assert_false(spawn_thread_is_idle(threads));
    add(&s, N - 1);
    spawn_thread_complete(threads, &s.b, 0, NULL);
    TURN_UNTIL(&loop, PATIENCE_MS, s.is_done);
    assert_true(s.is_done);
    assert_int_equal(end_spawned(&s), N);
}

static void one_that_cannot_be_made_fails_the_batch(void **state)
{
    struct batch s;
    open_batch(&s);
    s.requests[1].cgroup_fd = null_fd; /* no cgroup */
    s.requests[1].cgroup_must = true;
    add(&s, N);
    spawn_thread_complete(threads, &s.b, 0, NULL);
    TURN_UNTIL(&loop, PATIENCE_MS, s.is_done);
    assert_true(s.is_done);
    assert_true(s.b.rc < 0);
    assert_non_null(strstr(s.b.e.text, "in a cgroup"));
    assert_int_equal(s.spawned[1].pid, 0);
    assert_true(s.spawned[0].pid > 0);
    end_spawned(&s);
}

static void one_that_cannot_be_prepared_fails_the_batch(void **state)
{
    const struct err e = {.code = -ENOMEM, .text = "no memory for a worker"};
    struct batch s;
    open_batch(&s);
    add(&s, 2);
    spawn_thread_complete(threads, &s.b, e.code, &e);
    TURN_UNTIL(&loop, PATIENCE_MS, s.is_done);
    assert_true(s.is_done);
    assert_int_equal(s.b.rc, -ENOMEM);
    assert_string_equal(s.b.e.text, e.text);
    assert_true(end_spawned(&s) <= 2);
}

static void a_cancelled_batch_ends(void **state)
{
    struct batch s;
    open_batch(&s);
    atomic_store(&s.b.cancelled, true);
    add(&s, N);
    spawn_thread_complete(threads, &s.b, 0, NULL);
    TURN_UNTIL(&loop, PATIENCE_MS, s.is_done);
    assert_true(s.is_done);
    assert_int_equal(s.b.rc, 0);
    assert_int_equal(end_spawned(&s), 0);
}

static void fewer_threads_than_were_wanted_do(void **state)
{
    struct err e = {0};
    struct spawn_thread *others = threads;
    struct batch s;
    threads_left = 1;
    assert_int_equal(spawn_thread_create(&threads, &loop, N, &e), 0);
    threads_left = 1000;
    open_batch(&s);
    add(&s, N);
    spawn_thread_complete(threads, &s.b, 0, NULL);
    TURN_UNTIL(&loop, PATIENCE_MS, s.is_done);
    assert_true(s.is_done);
    assert_int_equal(end_spawned(&s), N);
    spawn_thread_close(threads);
    threads = others;
}

static void without_any_thread_there_is_no_spawner(void **state)
{
    struct err e = {0};
    struct spawn_thread *none = NULL;
    threads_left = 0;
    assert_int_equal(spawn_thread_create(&none, &loop, N, &e), -EAGAIN);
    threads_left = 1000;
    assert_null(none); /* a batch given to it would never end */
}

static int open_threads(void **state)
{
    struct err e = {0};
    sigemptyset(&no_signals);
    uv_loop_init(&loop);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    return spawn_thread_create(&threads, &loop, N, &e);
}

static int close_threads(void **state)
{
    spawn_thread_close(threads);
    uv_run(&loop, UV_RUN_DEFAULT);
    close(null_fd);
    return uv_loop_close(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_a_batch_are_started),
        cmocka_unit_test(the_first_starts_before_the_last_is_ready),
        cmocka_unit_test(one_that_cannot_be_made_fails_the_batch),
        cmocka_unit_test(one_that_cannot_be_prepared_fails_the_batch),
        cmocka_unit_test(a_cancelled_batch_ends),
        cmocka_unit_test(fewer_threads_than_were_wanted_do),
        cmocka_unit_test(without_any_thread_there_is_no_spawner),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, open_threads, close_threads);
}
