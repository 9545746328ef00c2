#include "launcher/guard/neighbours.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/guard/deputy.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/inherited.h"
#include "launcher/guard/title.h"
#include "launcher/stdio/console.h"
#include "launcher/stdio/console_file.h"
#include "launcher/stdio/stdin_file.h"

#define TITLE_MAX 16 /* as much as the kernel keeps */
#define BRIEF_MS 1000
#define BRIEF_MOST                                                                                                     \
    10 /* that ended so soon, one after the other: something is wrong, and more of them would do no better */

/* --- which there are */

static struct deputy deputy_of(const struct neighbours *all, int guardian_fd)
{
    return (struct deputy){all->link, all->guardian, all->agent, guardian_fd, all->agent_fd};
}

static int run_deputy(const struct neighbour *self, int fd)
{
    const struct neighbours *all = self->all;
    console_files_leave(all->link->console);
    const struct deputy d = deputy_of(all, fd);
    return deputy_run(&d);
}

static int run_output(const struct neighbour *self, int fd)
{
    const struct neighbours *all = self->all;
    console_files_leave(all->link->console);
    const struct guardian_output o = {
        .agent_fd = self->fd, .guardian_fd = fd, .page = all->link->output_page, .deputy = deputy_of(all, fd)};
    return all->programs->output(&o);
}

static int run_home(const struct neighbour *self, int fd)
{
    return self->all->programs->home(self->fd, fd);
}

static int run_gauges(const struct neighbour *self, int fd)
{
    const struct neighbours *all = self->all;
    return all->programs->gauges(all->link->gauges_page, fd);
}

static int run_stdout(const struct neighbour *self, int fd)
{
    return console_file_run(&self->all->link->console[0], self->fd, fd);
}

static int run_stderr(const struct neighbour *self, int fd)
{
    return console_file_run(&self->all->link->console[1], self->fd, fd);
}

static int run_stdin(const struct neighbour *self, int fd)
{
    console_files_leave(self->all->link->console);
    return stdin_file_run(self->fd, fd);
}

void neighbours_name(struct neighbours *all, int output_fd)
{
    const struct guardian_programs *p = all->programs;
    const struct console_file *c = all->link->console;
    const struct neighbour v[NEIGHBOURS] = {
        [NEIGHBOUR_OUTPUT] = {.name = "output", .run = p->output ? run_output : NULL, .fd = output_fd},
        [NEIGHBOUR_HOME] = {.name = "home", .run = p->home ? run_home : NULL, .fd = -1},
        [NEIGHBOUR_GAUGES] = {.name = "gauges", .run = p->gauges ? run_gauges : NULL, .fd = -1},
        [NEIGHBOUR_STDOUT] = {.name = "stdout", .run = run_stdout, .fd = c[0].out},
        [NEIGHBOUR_STDERR] = {.name = "stderr", .run = run_stderr, .fd = c[1].out},
        [NEIGHBOUR_STDIN] = {.name = "stdin", .run = run_stdin, .fd = -1},
        [NEIGHBOUR_DEPUTY] = {.name = "deputy", .run = run_deputy, .fd = -1, .is_told = true}};
    for (int i = 0; i < NEIGHBOURS; i++) {
        all->v[i] = v[i];
        all->v[i].all = all;
        all->v[i].beside.fd = -1;
        all->v[i].needs_fd = i != NEIGHBOUR_GAUGES && i != NEIGHBOUR_DEPUTY;
    }
}

/* --- life */

void neighbours_leave(struct neighbours *all, const struct neighbour *self)
{
    for (int i = 0; i < NEIGHBOURS; i++) {
        struct neighbour *n = &all->v[i];
        if (n == self)
            continue;
        if (n->fd >= 0)
            close(n->fd);
        if (n->beside.fd >= 0)
            close(n->beside.fd);
        n->fd = n->beside.fd = -1;
    }
}

struct start {
    struct neighbours *all;
    struct neighbour *self;
};

static int run(int fd, void *arg)
{
    static const int ignored[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT, SIGUSR1,
                                  SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU, SIGXFSZ};
    const struct start *s = arg;
    char title[TITLE_MAX];
    snprintf(title, sizeof title, "job-%s", s->self->name);
    title_set(title, s->all->guardian);
    s->all->leave(s->all->arg);
    neighbours_leave(s->all, s->self);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    setpgid(0, 0);
    inherited_raise_files(&(struct guardian_link){0});
    return s->self->run(s->self, fd);
}

static bool is_console(const struct neighbour *n)
{
    return n->run == run_stdout || n->run == run_stderr;
}

/* Of a first deputy that cannot be nothing is said: all holds without it but for two accidents at once. */
static void give_up(struct neighbour *n, int rc)
{
    struct err e;
    if (n->started >= GUARDIAN_BESIDES || n->brief >= BRIEF_MOST)
        err_set(&e, -EAGAIN, "its %s process cannot be started (%d were): the last %d ended at once", n->name,
                n->started, n->brief);
    else
        err_start(&e, -rc, "its %s process cannot be started (%d were)", n->name, n->started);
    if (n->started > 0 || !n->is_told)
        console_try("crun: %s\n", e.text);
    if (n->fd >= 0 && (n->started > 0 || !is_console(n))) {
        close(n->fd);
        n->fd = -1;
    }
    n->run = NULL;
}

bool neighbours_start(struct neighbours *all, enum neighbour_id which)
{
    struct neighbour *n = &all->v[which];
    struct start s = {all, n};
    if (!n->run || (n->needs_fd && n->fd < 0) || n->beside.fd >= 0)
        return true;
    const bool may = n->started < GUARDIAN_BESIDES && n->brief < BRIEF_MOST;
    const int rc = may ? beside_start(&n->beside, run, &s) : -EAGAIN;
    if (rc == 0) {
        n->started++;
        n->started_ms = clock_ms();
    } else {
        give_up(n, rc);
    }
    return rc == 0;
}

void neighbours_drain(struct neighbours *all, enum neighbour_id which)
{
    const struct neighbour *n = &all->v[which];
    int ends[2];
    if (n->beside.fd >= 0 || n->fd < 0 || pipe2(ends, O_CLOEXEC) < 0)
        return;
    if (write(ends[1], "", 1) == 1) /* nobody is left */
        console_file_run(&all->link->console[which - NEIGHBOUR_STDOUT], n->fd, ends[0]);
    close(ends[0]);
    close(ends[1]);
}

int neighbours_poll(const struct neighbours *all, struct pollfd fds[NEIGHBOURS])
{
    int n = 0;
    for (int i = 0; i < NEIGHBOURS; i++) {
        fds[i] = (struct pollfd){.fd = all->v[i].beside.fd, .events = POLLIN};
        n = fds[i].fd >= 0 ? i + 1 : n;
    }
    return n;
}

/* Its work was done: whoever waits for more of it sees the end. */
static void close_work(struct neighbour *n)
{
    if (n->beside.done_errno)
        console_try("crun: standard input ends early: %s\n", strerror(n->beside.done_errno));
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void neighbours_look(struct neighbours *all, const struct pollfd fds[NEIGHBOURS], bool agent_ends)
{
    for (int i = 0; i < NEIGHBOURS; i++) {
        struct neighbour *n = &all->v[i];
        const pid_t before = n->beside.pid;
        if (!fds[i].revents || !beside_is_gone(&n->beside) || agent_ends)
            continue;
        if (n->beside.is_done) {
            close_work(n);
            continue;
        }
        n->brief = clock_ms() - n->started_ms < BRIEF_MS ? n->brief + 1 : 0;
        neighbours_start(all, (enum neighbour_id)i);
        if (n->is_told && n->beside.fd >= 0)
            console_try("crun: its %s process (pid %d) is gone; another took over (pid %d)\n", n->name, (int)before,
                        (int)n->beside.pid);
    }
}
