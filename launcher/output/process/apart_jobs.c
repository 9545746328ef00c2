/* Threads of the output process for standard streams that are files, and for shared folders (apart_jobs.h). */
#include "launcher/output/process/apart_jobs.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/rdzv/homes/home_process.h"
#include "launcher/base/fd_room.h"
#include "launcher/base/watch.h"
#include "launcher/guard/guardian.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/stdio/stdin_file.h"

#define END_MS 100 /* ms for a thread that nothing blocks */

struct apart_jobs {
    const struct guardian_output *g;
    struct home_threads homes;
    struct watch *home, *input; /* NULL: no further requests; standard input is not a file, or at its end */
    int input_fd;               /* eventfd of stdin_file_start() */
    int consoles;               /* threads that write files as consoles */
    int silent_fd, gone_fd;     /* console_files_start() */
    bool is_silent;             /* GUARDIAN_SILENT has come */
};

static void on_home(void *arg)
{
    struct apart_jobs *a = arg;
    if (home_threads_take(&a->homes, a->g->home_fd))
        return;
    watch_close(a->home);
    a->home = NULL;
}

/* The thread has read standard input to its end. Close the pipe here and in the guardian, or readers would not see
 * the end. */
static void on_input(void *arg)
{
    struct apart_jobs *a = arg;
    eventfd_t said = 1;
    eventfd_read(a->input_fd, &said);
    watch_close(a->input);
    a->input = NULL;
    close(a->g->input_fd);
    guardian_input_is_done(a->g, (int)said - 1);
}

static int watch(struct apart_jobs *a, uv_loop_t *loop, struct watch **ret, int fd, void (*ready)(void *arg))
{
    TRY(watch_open(ret, loop, fd, UV_READABLE, ready, a, NULL));
    watch_set(*ret, true);
    return 0;
}

static int start_input(struct apart_jobs *a, uv_loop_t *loop)
{
    a->input_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->input_fd < 0)
        return -errno;
    TRY(watch(a, loop, &a->input, a->input_fd, on_input));
    return stdin_file_start(a->g->input_fd, a->input_fd);
}

int apart_jobs_start(struct apart_jobs **ret, uv_loop_t *loop, const struct guardian_output *g)
{
    static struct apart_jobs jobs; /* which threads see to their end */
    struct apart_jobs *a = *ret = &jobs;
    a->g = g;
    fd_room_make();
    TRY(home_threads_open(&a->homes, home_serve_folder));
    if (g->home_fd >= 0)
        TRY(watch(a, loop, &a->home, g->home_fd, on_home));
    a->silent_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->gone_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->silent_fd < 0 || a->gone_fd < 0)
        return -errno;
    a->consoles = console_files_start(g->console, a->silent_fd, a->gone_fd);
    return a->consoles < 0 ? a->consoles : g->input_fd >= 0 ? start_input(a, loop) : 0;
}

void apart_jobs_take_word(struct apart_jobs *a, char word)
{
    a->is_silent = a->is_silent || word == GUARDIAN_SILENT;
}

/* Have the threads ended? One that waits for the agent or a worker, which are gone, ends at once; one that waits for
 * a disk may not. */
static bool have_ended(struct apart_jobs *a)
{
    struct pollfd input = {.fd = a->input_fd, .events = POLLIN}, home = {.fd = a->homes.gone_fd, .events = POLLIN};
    eventfd_t n;
    if (a->input && poll(&input, 1, END_MS) == 0)
        return false;
    while (atomic_load(&a->homes.n) > 0 && poll(&home, 1, END_MS) > 0)
        eventfd_read(a->homes.gone_fd, &n);
    return atomic_load(&a->homes.n) == 0 && file_threads_are_idle();
}

bool apart_jobs_stay(struct apart_jobs *a)
{
    return a->consoles > 0 && have_ended(a);
}

/* Wait for the console files. Without the guardian, the pipes end once all processes that write are gone. */
void apart_jobs_end(struct apart_jobs *a, bool guardian_is_gone, bool stays)
{
    struct pollfd fds[] = {{.fd = a->gone_fd, .events = POLLIN},
                           {.fd = guardian_is_gone ? -1 : a->g->guardian_fd, .events = POLLIN}};
    a->is_silent = a->is_silent || !stays;
    while (a->consoles > 0) {
        eventfd_t gone = 0;
        char word = 0;
        if (a->is_silent)
            eventfd_write(a->silent_fd, 1);
        poll(fds, a->is_silent ? 1 : 2, -1);
        if (fds[0].revents && eventfd_read(a->gone_fd, &gone) == 0)
            a->consoles -= (int)gone;
        if (!fds[1].revents)
            continue;
        if (read(a->g->guardian_fd, &word, 1) <= 0)
            fds[1].fd = -1;
        apart_jobs_take_word(a, word);
        fds[1].revents = 0;
    }
}
