/* The asker and the watchdog over an NCCL that is not there: neither they nor an abort wait for a call of CUDA that
 * does not come back, nor for who reads the log; and a process that is stopped is no GPU that hangs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/must.h"
#include "tests/worker/comm/nccl/fake_nccl.h"
#include "worker/comm/nccl/nccl_comm.h"

extern const struct comm_ops comm_nccl_ops;

enum { TIMEOUT_MS = 20000, SHORT_MS = 400, PATIENCE_MS = 2000 };

/* A world of one. */
static int open_alone(struct comm **ret, struct err *e)
{
    return comm_nccl_ops.open(ret, &(struct comm_options){.world = 1, .name = "nccl", .timeout_ms = TIMEOUT_MS}, e);
}

/* Opening has the long one. */
static void set_timeout(struct comm *c, int64_t ms)
{
    struct nccl *n = nccl_of(c);
    pthread_mutex_lock(&n->lock);
    n->timeout_ms = ms;
    pthread_mutex_unlock(&n->lock);
}

static int sum(struct comm *c, struct err *e)
{
    float x = 1;
    return c->ops->all_reduce(c, COMM_GRADIENTS, &x, 1, DT_F32, COMM_SUM, NULL, e);
}

/* --- who stands: in a call of CUDA, as behind the kernels that an abort ends, or in writing a line */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the next four */
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static bool stands, aborted, checked, gave_up;

static void say(bool *what)
{
    pthread_mutex_lock(&lock);
    *what = true;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

static void stand_until(const bool *what)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += TIMEOUT_MS / 1000;
    pthread_mutex_lock(&lock);
    while (!*what && !gave_up)
        gave_up = pthread_cond_timedwait(&change, &lock, &until) == ETIMEDOUT;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

static void stand(void)
{
    say(&stands);
    stand_until(&aborted);
}

static void free_those_who_stand(void)
{
    say(&aborted);
}

static void stand_in_a_line(void *arg, const char *line, size_t n)
{
    (void)arg, (void)line, (void)n;
    stand_until(&checked);
}

static void wait_for(const bool *what)
{
    pthread_mutex_lock(&lock);
    while (!*what && !gave_up)
        pthread_cond_wait(&change, &lock);
    const bool freed = !gave_up;
    pthread_mutex_unlock(&lock);
    assert_true(freed);
}

static int begin_to_stand(void **state)
{
    (void)state;
    stands = aborted = checked = gave_up = false;
    fake_nccl_at_abort(free_those_who_stand);
    return 0;
}

static int nobody_stands(void **state)
{
    (void)state;
    fake_nccl_at_abort(NULL);
    fake_nccl_at_query(NULL);
    fake_nccl_at_record(NULL);
    log_redirect(NULL, NULL);
    return 0;
}

static void an_abort_passes_whoever_asks_about_an_event(void **state)
{
    (void)state;
    struct comm *c;
    struct err why;
    MUST(open_alone(&c, e));
    fake_nccl_at_query(stand);
    MUST(sum(c, e));
    wait_for(&stands);
    c->ops->abort(c);
    wait_for(&aborted);
    assert_int_equal(c->ops->check(c, &why), -ECANCELED);
    c->ops->close(c);
    assert_false(gave_up);
}

static void *abort_one_that_stands(void *arg)
{
    struct comm *c = arg;
    wait_for(&stands);
    c->ops->abort(c);
    return NULL;
}

static void an_abort_passes_whoever_records_an_event(void **state)
{
    (void)state;
    struct comm *c;
    pthread_t other;
    struct err why;
    MUST(open_alone(&c, e));
    fake_nccl_at_record(stand);
    assert_int_equal(pthread_create(&other, NULL, abort_one_that_stands, c), 0);
    (void)sum(c, &why);
    pthread_join(other, NULL);
    assert_int_equal(c->ops->check(c, &why), -ECANCELED);
    c->ops->close(c);
    assert_false(gave_up);
}

/* Nor does anybody wait until the words about it are read. */
static void a_deadline_passes_where_cuda_does_not_answer(void **state)
{
    (void)state;
    struct comm *c;
    struct err why = {0};
    MUST(open_alone(&c, e));
    fake_nccl_at_query(stand);
    MUST(sum(c, e));
    wait_for(&stands);
    log_redirect(stand_in_a_line, NULL);
    set_timeout(c, SHORT_MS);
    wait_for(&aborted);
    assert_int_equal(c->ops->check(c, &why), -ETIMEDOUT);
    say(&checked);
    assert_string_equal(why.text,
                        "NCCL: all-reduce of 1 values (nccl, gradients) has not ended within 400 ms, nor has CUDA "
                        "answered: another rank hangs or is gone");
    c->ops->close(c);
    assert_false(gave_up);
}

/* --- what does not end */

static atomic_int asked;

static void count(void)
{
    asked++;
}

static void nap(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void a_deadline_passes_what_does_not_end(void **state)
{
    (void)state;
    struct comm *c;
    struct err why = {0};
    MUST(open_alone(&c, e));
    fake_nccl_end(false);
    set_timeout(c, SHORT_MS);
    MUST(sum(c, e));
    wait_for(&aborted);
    assert_int_equal(c->ops->check(c, &why), -ETIMEDOUT);
    assert_string_equal(why.text, "NCCL: all-reduce of 1 values (nccl, gradients) has not ended within 400 ms: another "
                                  "rank hangs or is gone");
    c->ops->close(c);
    fake_nccl_end(true);
}

/* Asked about n times more: 0, or what check() gives before. */
static int wait_until_asked(struct comm *c, int n, struct err *e)
{
    const int before = asked;
    int rc = 0;
    while (rc == 0 && asked - before < n) {
        nap(5);
        rc = c->ops->check(c, e);
    }
    return rc;
}

/* Something is under way, which it says; and after a byte, too? */
static pid_t collect_in_a_child(int go_on, int says)
{
    struct comm *c;
    struct err e = {0};
    char byte;
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    fake_nccl_end(false);
    fake_nccl_at_query(count);
    if (open_alone(&c, &e) < 0)
        _exit(2);
    set_timeout(c, PATIENCE_MS);
    if (sum(c, &e) < 0 || wait_until_asked(c, 1, &e) < 0 || write(says, "", 1) != 1 || read(go_on, &byte, 1) != 1)
        _exit(2);
    _exit(wait_until_asked(c, 2, &e) == 0 ? 0 : 1);
}

/* Ctrl-Z, a coffee, fg: the other ranks were stopped, too. */
static void a_process_that_is_stopped_does_not_wait(void **state)
{
    (void)state;
    int go_on[2], says[2], status;
    char byte;
    assert_int_equal(pipe(go_on), 0);
    assert_int_equal(pipe(says), 0);
    const pid_t pid = collect_in_a_child(go_on[0], says[1]);
    assert_int_equal(read(says[0], &byte, 1), 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    nap(PATIENCE_MS + 500);
    assert_int_equal(write(go_on[1], "", 1), 1);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    for (int i = 0; i < 2; i++) {
        close(go_on[i]);
        close(says[i]);
    }
}

#define STANDS(f) cmocka_unit_test_setup_teardown(f, begin_to_stand, nobody_stands)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_is_stopped_does_not_wait), /* first: it forks */
        STANDS(an_abort_passes_whoever_asks_about_an_event),       STANDS(an_abort_passes_whoever_records_an_event),
        STANDS(a_deadline_passes_where_cuda_does_not_answer),      STANDS(a_deadline_passes_what_does_not_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
