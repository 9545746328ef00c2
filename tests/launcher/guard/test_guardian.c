/* The guardian and the proof of death: what the other end of the rendezvous connection sees when which process dies.
 * Each case runs a guardian in a process of its own; this process is the rendezvous. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/lease.h"
#include "launcher/guard/patience.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/stuck.h"

#define WAIT_MS 20000
#define LEASE_MS 1500

/* What the processes of a case tell each other. */
static struct case_board {
    _Atomic pid_t agent, worker;
    _Atomic int go, outputs;
} * board;
static struct sockaddr_in where;
static char slow_dir[] = "/tmp/crun-test-guardian-XXXXXX";
static int listener;

/* --- the agent's process */

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&where, sizeof where) == 0 ? fd : -1;
}

/* A worker that daemonizes: out of reach of its parent's signals and of PDEATHSIG. */
static void spawn(void)
{
    if (fork() == 0) {
        setsid();
        board->worker = getpid();
        closefrom(3);
        for (;;)
            pause();
    }
    while (!board->worker)
        usleep(1000);
}

static void stay(void)
{
    board->agent = getpid();
    for (;;)
        pause();
}

static int holds(const struct guardian_link *l, int argc, char **argv)
{
    guardian_hold(l, dial());
    spawn();
    stay();
    return 0;
}

static int holds_two(const struct guardian_link *l, int argc, char **argv)
{
    int first = dial();
    guardian_hold(l, first);
    guardian_hold(l, dial());
    close(first);
    spawn();
    stay();
    return 0;
}

/* Its cgroup.kill, a pipe that nobody reads, holds up whoever writes to it. */
static int has_slow_cgroup(const struct guardian_link *l, int argc, char **argv)
{
    spawn();
    snprintf(l->cgroup_dir, GUARDIAN_PATH_MAX, "%s", slow_dir);
    stay();
    return 0;
}

static int drops(const struct guardian_link *l, int argc, char **argv)
{
    int fd = dial();
    guardian_hold(l, fd);
    guardian_hold(l, -1);
    close(fd);
    stay();
    return 0;
}

static int leases(const struct guardian_link *l, int argc, char **argv)
{
    guardian_hold(l, dial());
    spawn();
    guardian_lease(l, clock_ms() + 300);
    board->agent = getpid();
    raise(SIGSTOP);
    while (!board->go)
        usleep(1000);
    return 7;
}

/* Its loop turns; the workers only take their time to end. */
static int fences(const struct guardian_link *l, int argc, char **argv)
{
    guardian_hold(l, dial());
    spawn();
    guardian_lease(l, clock_ms());
    for (const int64_t end = clock_deadline(GUARDIAN_LATE_MS + 500); clock_left(end);) {
        board_turned(l->board, clock_ms());
        usleep(1000);
    }
    return 7;
}

static int leases_on(const struct guardian_link *l, int argc, char **argv)
{
    guardian_hold(l, dial());
    spawn();
    board->agent = getpid();
    for (const int64_t end = clock_deadline(LEASE_MS + 500); clock_left(end);) {
        guardian_lease(l, clock_ms() + LEASE_MS);
        usleep(10000);
    }
    guardian_lease(l, 0);
    usleep((LEASE_MS + GUARDIAN_LATE_MS + 250) * 1000);
    return kill(board->worker, 0) == 0 ? 7 : 8;
}

/* Its socket to the output process ends first, and it takes its time to follow. */
static int parts(const struct guardian_link *l, int argc, char **argv)
{
    guardian_start_output(l);
    close(l->output_fd);
    while (!board->go)
        usleep(1000);
    usleep(100000);
    return 7;
}

static int writes_all(const struct guardian_output *o)
{
    char byte;
    board->outputs++;
    while (recv(o->agent_fd, &byte, 1, 0) > 0)
        ;
    guardian_output_is_done(o, false);
    board->go = 1;
    return 0;
}

/* --- this process */

static pid_t start_with_output(int (*agent)(const struct guardian_link *, int, char **),
                               int (*output)(const struct guardian_output *))
{
    memset(board, 0, sizeof *board);
    pid_t pid = fork();
    if (pid == 0)
        _exit(guardian_run(&(struct guardian_programs){.agent = agent, .output = output}, 0, NULL));
    return pid;
}

static pid_t start(int (*agent)(const struct guardian_link *, int, char **))
{
    return start_with_output(agent, NULL);
}

static int take(void)
{
    struct pollfd p = {listener, POLLIN, 0};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

static void await(_Atomic pid_t *p)
{
    int64_t end = clock_deadline(WAIT_MS);
    while (!*p && clock_left(end))
        usleep(1000);
    assert_true(*p > 0);
}

/* How the connection ends: 0 in good order, else errno. */
static int end_of(int fd)
{
    char byte;
    struct pollfd p = {fd, POLLIN, 0};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    ssize_t n = recv(fd, &byte, 1, 0);
    int why = n < 0 ? errno : 0;
    close(fd);
    return why;
}

/* As in /proc; 'X' where there is none. */
static char state_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 'X';
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *state = strrchr(text, ')');
    return state ? state[2] : 'X';
}

/* A process that is gone, or dead and not reaped. */
static int dead(pid_t pid)
{
    const char state = state_of(pid);
    return state == 'Z' || state == 'X';
}

static int code_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void end_of_file_says_that_every_worker_is_dead(void **state)
{
    (void)state;
    pid_t guardian = start(holds);
    int fd = take();
    await(&board->agent);
    assert_int_equal(send(fd, "unread", 6, 0), 6); /* what the agent did not come to read must not make a reset of it */
    kill(board->agent, SIGKILL);
    assert_int_equal(end_of(fd), 0);
    assert_true(dead(board->worker));
    assert_int_equal(code_of(guardian), 128 + SIGKILL);
}

static void only_the_newest_connection_is_the_proof(void **state)
{
    (void)state;
    pid_t guardian = start(holds_two);
    int first = take(), second = take();
    await(&board->agent);
    assert_int_equal(end_of(first), ECONNRESET);
    assert_false(dead(board->worker));
    kill(board->agent, SIGKILL);
    assert_int_equal(end_of(second), 0);
    assert_true(dead(board->worker));
    code_of(guardian);
}

static void a_connection_given_up_ends_with_a_reset(void **state)
{
    (void)state;
    pid_t guardian = start(drops);
    assert_int_equal(end_of(take()), ECONNRESET);
    await(&board->agent);
    kill(board->agent, SIGKILL);
    code_of(guardian);
}

/* The guardian's child that is not the agent. */
static pid_t deputy_of(pid_t guardian)
{
    for (const int64_t end = clock_deadline(WAIT_MS); clock_left(end); usleep(1000)) {
        struct procs ps;
        pid_t deputy = 0;
        assert_true(procs_below(&ps, guardian));
        for (size_t i = 0; i < ps.n; i++)
            if (ps.v[i].parent == guardian && ps.v[i].pid != board->agent)
                deputy = ps.v[i].pid;
        procs_free(&ps);
        if (deputy)
            return deputy;
    }
    fail_msg("no deputy");
    return -1;
}

static void stop(pid_t pid)
{
    kill(pid, SIGSTOP);
    for (const int64_t end = clock_deadline(WAIT_MS); state_of(pid) != 'T' && clock_left(end);)
        usleep(1000);
    assert_int_equal(state_of(pid), 'T');
}

static void both_dead_at_once_prove_nothing(void **state)
{
    (void)state;
    pid_t guardian = start(holds);
    int fd = take();
    await(&board->agent);
    const pid_t deputy = deputy_of(guardian);
    stop(guardian); /* so that neither outlives the other, and nobody acts in between */
    stop(deputy);
    kill(board->agent, SIGKILL);
    kill(guardian, SIGKILL);
    kill(deputy, SIGCONT);
    assert_int_equal(end_of(fd), ECONNRESET);
    assert_false(dead(board->worker));
    kill(board->worker, SIGKILL);
    code_of(guardian);
}

static void workers_die_before_a_slow_cgroup_is_told(void **state)
{
    (void)state;
    char path[64], word;
    assert_non_null(mkdtemp(slow_dir));
    snprintf(path, sizeof path, "%s/cgroup.kill", slow_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    pid_t guardian = start(has_slow_cgroup);
    await(&board->agent);
    kill(board->agent, SIGKILL);
    int64_t end = clock_deadline(WAIT_MS);
    while (!dead(board->worker) && clock_left(end))
        usleep(1000);
    const int died = dead(board->worker), fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, &word, 1), 1);
    close(fd);
    assert_int_equal(code_of(guardian), 128 + SIGKILL);
    unlink(path);
    rmdir(slow_dir);
    assert_true(died);
}

static void a_stopped_agent_cannot_keep_its_workers(void **state)
{
    (void)state;
    pid_t guardian = start(leases);
    int fd = take();
    await(&board->agent);
    int64_t end = clock_deadline(WAIT_MS);
    while ((!dead(board->worker) || state_of(board->agent) != 'T') && clock_left(end))
        usleep(1000);
    assert_true(dead(board->worker));
    assert_int_equal(state_of(board->agent), 'T');
    board->go = 1;
    kill(board->agent, SIGCONT);
    assert_int_equal(code_of(guardian), 7);
    assert_int_equal(end_of(fd), 0);
}

/* What it has said to its console, which is a pipe. */
static void take_text(int fd, char *out, size_t cap)
{
    size_t len = 0;
    ssize_t n;
    while ((n = read(fd, out + len, cap - 1 - len)) > 0)
        len += (size_t)n;
    out[len] = '\0';
    close(fd);
}

static void only_an_agent_that_stands_still_is_said_to(void **state)
{
    (void)state;
    int (*const agents[])(const struct guardian_link *, int, char **) = {fences, leases};
    for (int i = 0; i < 2; i++) {
        char text[1024];
        int ends[2], console = dup(STDERR_FILENO);
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        dup2(ends[1], STDERR_FILENO);
        const pid_t guardian = start(agents[i]);
        dup2(console, STDERR_FILENO);
        close(console);
        close(ends[1]);
        const int fd = take();
        await(&board->worker);
        const int64_t end = clock_deadline(WAIT_MS);
        while (!dead(board->worker) && clock_left(end))
            usleep(1000);
        board->go = 1;
        if (i == 1)
            kill(board->agent, SIGCONT);
        assert_int_equal(code_of(guardian), 7);
        take_text(ends[0], text, sizeof text);
        close(fd);
        assert_int_equal(strstr(text, "has stood still") != NULL, i == 1);
        assert_int_equal(strstr(text, "keep_alive_interval") != NULL, i == 1);
    }
}

static void a_lease_that_is_renewed_or_returned_kills_nobody(void **state)
{
    (void)state;
    pid_t guardian = start(leases_on);
    int fd = take();
    assert_int_equal(code_of(guardian), 7);
    assert_int_equal(end_of(fd), 0);
}

static void an_output_process_that_is_done_is_not_started_again(void **state)
{
    (void)state;
    assert_int_equal(code_of(start_with_output(parts, writes_all)), 7);
    assert_int_equal(board->outputs, 1);
}

static int set_up(void **state)
{
    (void)state;
    socklen_t len = sizeof where;
    signal(SIGPIPE, SIG_IGN);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return board == MAP_FAILED || bind(listener, (struct sockaddr *)&where, sizeof where) < 0 ||
           listen(listener, 8) < 0 || getsockname(listener, (struct sockaddr *)&where, &len) < 0;
}

/* Its beginning took long, but it has only just come to this file; then it has been at it for a second. */
static void a_file_is_named_after_a_second_at_it(void **state)
{
    (void)state;
    struct board b = {0};
    struct file_at at = {.path = "/etc/some-file"};
    const struct guardian_link l = {.board = &b, .at = &at};
    struct stuck s = {.begun_ms = clock_ms() - 60000};
    board_init(&b);
    at.since_ms = clock_ms();
    assert_in_range(stuck_wait_ms(&s, getpid(), &l), 1, 1000);
    assert_false(s.has_looked);
    at.since_ms = clock_ms() - 1000;
    assert_int_equal(stuck_wait_ms(&s, getpid(), &l), -1);
    assert_true(s.has_looked);
}

/* Its margin is made so long that no machine is too slow for this. */
static void the_agent_has_the_first_moments_after_a_lease_to_itself(void **state)
{
    struct board b = {0};
    char cgroup[GUARDIAN_PATH_MAX] = "";
    _Atomic int64_t until = clock_ms() - 500000;
    struct lease s = {.agent = getpid(), .late_ms = 1000000};
    struct file_at at = {0};
    const struct guardian_link l = {.cgroup_dir = cgroup, .lease_ms = &until, .at = &at, .board = &b};
    const pid_t worker = fork();
    (void)state;
    if (worker == 0)
        for (;;)
            pause();
    board_init(&b);
    board_turned(&b, clock_ms());
    assert_in_range(lease_keep(&s, &l), 1, 500000);
    assert_false(dead(worker));
    until = 0;
    assert_int_equal(lease_keep(&s, &l), -1);
    assert_false(dead(worker));
    until = clock_ms() - 1000000;
    lease_keep(&s, &l);
    assert_true(s.lapsed);
    assert_int_equal(code_of(worker), -SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(end_of_file_says_that_every_worker_is_dead),
        cmocka_unit_test(only_the_newest_connection_is_the_proof),
        cmocka_unit_test(a_connection_given_up_ends_with_a_reset),
        cmocka_unit_test(both_dead_at_once_prove_nothing),
        cmocka_unit_test(workers_die_before_a_slow_cgroup_is_told),
        cmocka_unit_test(a_stopped_agent_cannot_keep_its_workers),
        cmocka_unit_test(only_an_agent_that_stands_still_is_said_to),
        cmocka_unit_test(a_lease_that_is_renewed_or_returned_kills_nobody),
        cmocka_unit_test(the_agent_has_the_first_moments_after_a_lease_to_itself),
        cmocka_unit_test(an_output_process_that_is_done_is_not_started_again),
        cmocka_unit_test(a_file_is_named_after_a_second_at_it),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
