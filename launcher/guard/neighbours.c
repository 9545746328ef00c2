#include "launcher/guard/neighbours.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "launcher/guard/console.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/inherited.h"

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
    s->all->leave(s->all->arg);
    neighbours_leave(s->all, s->self);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    setpgid(0, 0);
    inherited_raise_files(&(struct guardian_link){0});
    return s->self->run(s->self, fd);
}

void neighbours_start(struct neighbours *all, enum neighbour_id which)
{
    struct neighbour *n = &all->v[which];
    struct start s = {all, n};
    if (!n->run || (n->needs_fd && n->fd < 0) || n->beside.fd >= 0)
        return;
    const int rc = n->started++ < GUARDIAN_BESIDES ? beside_start(&n->beside, run, &s) : -EAGAIN;
    if (rc == 0)
        return;
    console_try("crun: its %s process cannot be started (%d were): %s\n", n->name, n->started - 1, strerror(-rc));
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
    n->run = NULL;
}

void neighbours_poll(const struct neighbours *all, struct pollfd fds[NEIGHBOURS])
{
    for (int i = 0; i < NEIGHBOURS; i++)
        fds[i] = (struct pollfd){.fd = all->v[i].beside.fd, .events = POLLIN};
}

void neighbours_look(struct neighbours *all, const struct pollfd fds[NEIGHBOURS], bool agent_ends)
{
    for (int i = 0; i < NEIGHBOURS; i++) {
        struct beside *b = &all->v[i].beside;
        if (fds[i].revents && beside_is_gone(b) && !b->is_done && !agent_ends)
            neighbours_start(all, (enum neighbour_id)i);
    }
}
