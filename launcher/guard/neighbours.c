/* Starts, restarts and ends the helper processes beside the agent (neighbours.h). */
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

#define TITLE_MAX 16 /* as much as the kernel keeps */
#define BRIEF_MS 1000
#define BRIEF_MOST 10 /* so many in a row that ended at once: more starts would not help, because something is wrong */

/* --- which there are */

static struct deputy deputy_of(const struct neighbours *all, int guardian_fd)
{
    return (struct deputy){all->link, all->guardian, all->agent, guardian_fd, all->agent_fd};
}

static int run_deputy(const struct neighbour *self, int fd)
{
    const struct neighbours *all = self->all;
    const struct deputy d = deputy_of(all, fd);
    return deputy_run(&d);
}

static int run_output(const struct neighbour *self, int fd)
{
    const struct neighbours *all = self->all;
    const struct guardian_output o = {.agent_fd = all->output_fd,
                                      .home_fd = all->home_fd,
                                      .input_fd = all->input_fd,
                                      .guardian_fd = fd,
                                      .console = all->link->console,
                                      .page = all->link->output_page,
                                      .deputy = deputy_of(all, fd)};
    return all->programs->output(&o);
}

static int run_gauges(const struct neighbour *self, int fd)
{
    const struct neighbours *all = self->all;
    return all->programs->gauges(all->link->gauges_page, fd);
}

void neighbours_name(struct neighbours *all)
{
    const struct guardian_programs *p = all->programs;
    const struct neighbour v[NEIGHBOURS] = {
        [NEIGHBOUR_OUTPUT] = {.name = "output", .run = p->output ? run_output : NULL},
        [NEIGHBOUR_GAUGES] = {.name = "gauges", .run = p->gauges ? run_gauges : NULL},
        [NEIGHBOUR_DEPUTY] = {.name = "deputy", .run = run_deputy, .is_told = true}};
    for (int i = 0; i < NEIGHBOURS; i++) {
        all->v[i] = v[i];
        all->v[i].all = all;
        all->v[i].beside.fd = -1;
    }
}

/* --- life */

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_output(struct neighbours *all)
{
    close_one(&all->output_fd);
    close_one(&all->home_fd);
    close_one(&all->input_fd);
}

void neighbours_leave(struct neighbours *all, const struct neighbour *self)
{
    if (self != &all->v[NEIGHBOUR_OUTPUT]) {
        close_output(all);
        console_files_leave(all->link->console);
    }
    for (int i = 0; i < NEIGHBOURS; i++)
        if (&all->v[i] != self)
            close_one(&all->v[i].beside.fd);
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

/* Give a helper up. If no deputy could be started at all, print nothing: it is needed only for two accidents at
 * once. */
static void give_up(struct neighbours *all, struct neighbour *n, int rc)
{
    struct err e;
    if (n->started >= GUARDIAN_BESIDES || n->brief >= BRIEF_MOST)
        err_set(&e, -EAGAIN, "its %s process cannot be started (%d were): the last %d ended at once", n->name,
                n->started, n->brief);
    else
        err_start(&e, -rc, "its %s process cannot be started (%d were)", n->name, n->started);
    if (n->started > 0 || !n->is_told)
        console_try("crun: %s\n", e.text);
    if (n == &all->v[NEIGHBOUR_OUTPUT])
        close_output(all);
    n->run = NULL;
}

bool neighbours_start(struct neighbours *all, enum neighbour_id which)
{
    struct neighbour *n = &all->v[which];
    struct start s = {all, n};
    if (!n->run || n->beside.fd >= 0)
        return true;
    const bool may = n->started < GUARDIAN_BESIDES && n->brief < BRIEF_MOST;
    const int rc = may ? beside_start(&n->beside, run, &s) : -EAGAIN;
    if (rc == 0) {
        n->started++;
        n->started_ms = clock_ms();
    } else {
        give_up(all, n, rc);
    }
    return rc == 0;
}

void neighbours_drain(const struct neighbours *all)
{
    int ends[2];
    if (all->v[NEIGHBOUR_OUTPUT].beside.fd >= 0 || pipe2(ends, O_CLOEXEC) < 0)
        return;
    close(ends[1]); /* nobody is left */
    for (int i = 0; i < CONSOLE_FILES; i++)
        if (all->link->console[i].kept >= 0)
            console_file_write(&all->link->console[i], ends[0]);
    close(ends[0]);
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

/* Handle a word of the output process: it has read standard input to its end, so close our end, and readers see it. */
static void take_word(struct neighbours *all, struct neighbour *n)
{
    if (n->beside.word < 0)
        return;
    if (n->beside.word > 0)
        console_try("crun: standard input ends early: %s\n", strerror(n->beside.word));
    close_one(&all->input_fd);
    n->beside.word = -1;
}

void neighbours_look(struct neighbours *all, const struct pollfd fds[NEIGHBOURS], bool agent_ends)
{
    for (int i = 0; i < NEIGHBOURS; i++) {
        struct neighbour *n = &all->v[i];
        const pid_t before = n->beside.pid;
        const bool is_gone = fds[i].revents && beside_is_gone(&n->beside);
        take_word(all, n);
        if (!is_gone || agent_ends || n->beside.is_done)
            continue;
        n->brief = clock_ms() - n->started_ms < BRIEF_MS ? n->brief + 1 : 0;
        neighbours_start(all, (enum neighbour_id)i);
        if (n->is_told && n->beside.fd >= 0)
            console_try("crun: its %s process (pid %d) is gone; another took over (pid %d)\n", n->name, (int)before,
                        (int)n->beside.pid);
    }
}
