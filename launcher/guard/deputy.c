/* The deputy: kills the workers if neither guardian nor agent does (deputy.h). */
#include "launcher/guard/deputy.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/lease.h"
#include "launcher/guard/patience.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/roster.h"
#include "launcher/guard/tree.h"
#include "launcher/stdio/console.h"

#define ACT_MS 50        /* ms for the guardian or the agent to begin: it needs a wake-up */
#define HELP_MS 100      /* ms to kill everybody, once it has begun: it may have been stopped since */
#define FAREWELL_MS 1000 /* ms for an agent whose tree is dead to exit */
#define LOOK_MS 5
#define KILL_BOUND_MS 30000
#define STAND_IN_MS 100 /* ms for the deputy to act */
#define STACK_BYTES (128u << 10)

static bool has_ended(int end_fd, int timeout_ms)
{
    struct pollfd p = {.fd = end_fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

/* Of guardian and agent, does the one that is left kill everybody, or has it ended? */
static bool is_left_to(int end_fd, const _Atomic bool *acts)
{
    for (const int64_t end = clock_ms() + ACT_MS; clock_ms() < end;)
        if (atomic_load(acts) || has_ended(end_fd, LOOK_MS))
            return true;
    return false;
}

/* Wait until a process that was sent SIGKILL is gone, or dead and waiting for a debugger to reap it; not longer than
 * KILL_BOUND_MS, for the kernel may hold it. */
static void await_end(int pidfd, pid_t pid)
{
    struct proc p;
    for (const int64_t end = clock_ms() + KILL_BOUND_MS; clock_ms() < end;)
        if (has_ended(pidfd, ACT_MS) || !proc_read(pid, &p) || proc_is_dead(&p))
            return;
}

/* Guardian and agent are both gone: kill what is left of the job, which is below neither. */
static void clean_up(const struct guardian_link *l)
{
    cgroup_kill_at(l->cgroup_dir);
    roster_kill(l->roster, KILL_BOUND_MS);
    cgroup_remove_at(l->cgroup_dir);
}

static void on_guardian_gone(const struct deputy *d)
{
    const struct guardian_link *l = d->link;
    const bool acts = is_left_to(d->agent_fd, &l->board->agent_ends);
    if (!acts)
        syscall(SYS_pidfd_send_signal, d->agent_fd, SIGSTOP, NULL, 0); /* so that no thread of it starts more workers */
    if (!acts || !has_ended(d->agent_fd, HELP_MS)) {
        tree_end_below(d->agent, 0, KILL_BOUND_MS);
        if (!acts || !has_ended(d->agent_fd, FAREWELL_MS)) {
            syscall(SYS_pidfd_send_signal, d->agent_fd, SIGKILL, NULL, 0);
            if (!atomic_exchange(&l->board->gone_told, true))
                console_try("crun: the guardian is gone and its agent (pid %d) did not act: both and all workers were "
                            "ended\n",
                            (int)d->agent);
        }
    }
    await_end(d->agent_fd, d->agent);
    clean_up(l);
}

static void on_agent_gone(const struct deputy *d)
{
    const struct guardian_link *l = d->link;
    if (!is_left_to(d->guardian_fd, &l->board->guardian_ends) || !has_ended(d->guardian_fd, HELP_MS))
        tree_end_below(d->guardian, getpid(), KILL_BOUND_MS);
    has_ended(d->guardian_fd, -1); /* which ends this process, too */
    clean_up(l);
}

int deputy_run(const struct deputy *d)
{
    const struct guardian_link *l = d->link;
    struct lease lease = {.agent = d->agent, .late_ms = DEPUTY_LATE_MS};
    struct pollfd fds[3] = {{.fd = d->guardian_fd, .events = POLLIN},
                            {.fd = d->agent_fd, .events = POLLIN},
                            {.fd = l->deputy_fd, .events = POLLIN}};
    prctl(PR_SET_PDEATHSIG, SIGCONT); /* a stopped deputy could not act when it is needed, and would stay for ever */
    close(STDIN_FILENO);              /* a reader of crun's output must wait only for guardian and agent */
    close(STDOUT_FILENO);
    for (uint64_t n; !fds[0].revents && !fds[1].revents;) {
        if (poll(fds, 3, lease_keep(&lease, l)) > 0 && fds[2].revents && read(l->deputy_fd, &n, sizeof n) < 0)
            fds[2].fd = -1;
    }
    if (fds[0].revents)
        on_guardian_gone(d);
    else
        on_agent_gone(d);
    return 0;
}

/* --- the output process */

static struct {
    struct deputy deputy;
    pthread_t thread;
    bool runs;
} stand_in;

static void *stand_in_run(void *arg)
{
    const struct deputy *d = arg;
    poll(NULL, 0, STAND_IN_MS);
    if (has_ended(d->guardian_fd, 0))
        on_guardian_gone(d);
    else
        on_agent_gone(d);
    return NULL;
}

void deputy_stand_in(const struct deputy *d)
{
    pthread_attr_t attr;
    if (stand_in.runs)
        return;
    stand_in.deputy = *d;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    stand_in.runs = pthread_create(&stand_in.thread, &attr, stand_in_run, &stand_in.deputy) == 0;
    pthread_attr_destroy(&attr);
}

void deputy_stand_in_wait(void)
{
    if (stand_in.runs && has_ended(stand_in.deputy.guardian_fd, 0))
        pthread_join(stand_in.thread, NULL);
}
