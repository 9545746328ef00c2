/* What threads of the output process do beside the workers' output: consoles and a standard input that are files,
 * shared folders of a rendezvous. */
#include "launcher/output/process/output_process_internal.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/base/fd_room.h"
#include "launcher/base/watch.h"
#include "launcher/guard/guardian.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/stdio/stdin_file.h"

#define END_MS 100 /* for a thread that nothing holds */

static void on_home(void *arg)
{
    struct process *p = arg;
    if (home_threads_take(&p->homes, p->g->home_fd))
        return;
    watch_close(p->home);
    p->home = NULL;
}

/* Closed here and by the guardian, or the pipe would not be at its end. */
static void on_input(void *arg)
{
    struct process *p = arg;
    eventfd_t said = 1;
    eventfd_read(p->input_fd, &said);
    watch_close(p->input);
    p->input = NULL;
    close(p->g->input_fd);
    guardian_input_is_done(p->g, (int)said - 1);
}

static int start_input(struct process *p)
{
    p->input_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->input_fd < 0)
        return -errno;
    TRY(process_watch(p, &p->input, p->input_fd, on_input));
    return stdin_file_start(p->g->input_fd, p->input_fd);
}

int process_start_apart(struct process *p)
{
    const struct guardian_output *g = p->g;
    fd_room_make();
    TRY(home_threads_open(&p->homes, home_serve_folder));
    if (g->home_fd >= 0)
        TRY(process_watch(p, &p->home, g->home_fd, on_home));
    p->silent_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->gone_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->silent_fd < 0 || p->gone_fd < 0)
        return -errno;
    p->consoles = console_files_start(g->console, p->silent_fd, p->gone_fd);
    return p->consoles < 0 ? p->consoles : g->input_fd >= 0 ? start_input(p) : 0;
}

/* Whoever waits for the agent or a worker, which are gone, ends at once; whoever waits for a disk may not. */
static bool have_ended(struct process *p)
{
    struct pollfd input = {.fd = p->input_fd, .events = POLLIN}, home = {.fd = p->homes.gone_fd, .events = POLLIN};
    eventfd_t n;
    if (p->input && poll(&input, 1, END_MS) == 0)
        return false;
    while (atomic_load(&p->homes.n) > 0 && poll(&home, 1, END_MS) > 0)
        eventfd_read(p->homes.gone_fd, &n);
    return atomic_load(&p->homes.n) == 0 && file_threads_are_idle();
}

bool process_stays(struct process *p)
{
    return p->consoles > 0 && have_ended(p);
}

/* Without the guardian the pipes are at their end once all who write are gone. */
void process_end_consoles(struct process *p, bool stays)
{
    p->is_silent = p->is_silent || !stays;
    struct pollfd fds[] = {{.fd = p->gone_fd, .events = POLLIN}, {.fd = p->g->guardian_fd, .events = POLLIN}};
    while (p->consoles > 0) {
        eventfd_t gone = 0;
        char word = 0;
        if (p->is_silent)
            eventfd_write(p->silent_fd, 1);
        poll(fds, p->is_silent || !p->guardian ? 1 : 2, -1);
        if (fds[0].revents && eventfd_read(p->gone_fd, &gone) == 0)
            p->consoles -= (int)gone;
        if (!fds[1].revents)
            continue;
        if (read(p->g->guardian_fd, &word, 1) <= 0)
            p->guardian = NULL;
        p->is_silent = word == GUARDIAN_SILENT;
        fds[1].revents = 0;
    }
}
