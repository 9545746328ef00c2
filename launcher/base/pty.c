/* Opens a terminal for a worker, and copies what is typed into it (pty.h). */
#include "launcher/base/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"

#define NAME_BYTES 64

static void copy_size(int from, int to)
{
    struct winsize size;
    if (ioctl(from, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        ioctl(to, TIOCSWINSZ, &size);
}

int pty_open(int *ret_ours, int *ret_theirs, struct err *e)
{
    char name[NAME_BYTES];
    struct termios t;
    const int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ours < 0 || grantpt(ours) < 0 || unlockpt(ours) < 0 || ptsname_r(ours, name, sizeof name) != 0) {
        const int why = errno;
        if (ours >= 0)
            close(ours);
        return err_errno(e, why, "cannot make a terminal (--pty)");
    }
    const int theirs = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (theirs < 0) {
        const int why = errno;
        close(ours);
        return err_errno(e, why, "%s (--pty)", name);
    }
    if (tcgetattr(theirs, &t) == 0) {
        t.c_oflag &= ~(tcflag_t)ONLCR;
        tcsetattr(theirs, TCSANOW, &t);
    }
    for (int fd = STDERR_FILENO; fd >= STDIN_FILENO; fd--)
        copy_size(fd, theirs);
    *ret_ours = ours;
    *ret_theirs = theirs;
    return 0;
}

/* --- typing */

static volatile sig_atomic_t ends, resized, went_on;

static void on_signal(int signo)
{
    if (signo == SIGWINCH)
        resized = 1;
    else if (signo == SIGCONT)
        went_on = 1;
    else
        ends = 1;
}

static void set_lines(bool gathers)
{
    struct termios t;
    if (tcgetattr(STDIN_FILENO, &t) < 0)
        return;
    if (gathers)
        t.c_lflag |= ICANON | ECHO;
    else
        t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    t.c_cc[VMIN] = gathers ? t.c_cc[VMIN] : 1;
    t.c_cc[VTIME] = gathers ? t.c_cc[VTIME] : 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

/* Pass on what was read; false at the end. */
static bool pass_on(int fd)
{
    char bytes[1024];
    const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    for (ssize_t at = 0; at < n;) {
        const ssize_t written = write(fd, bytes + at, (size_t)(n - at));
        if (written < 0 && errno != EINTR)
            return false;
        at += written > 0 ? written : 0;
    }
    return n > 0 || (n < 0 && errno == EINTR);
}

static void catch_signals(void)
{
    static const int caught[] = {SIGTERM, SIGWINCH, SIGCONT};
    struct sigaction sa = {.sa_handler = on_signal};
    sigset_t none;
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaction(caught[i], &sa, NULL);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int pty_type(const char *text)
{
    const int fd = atoi(text);
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = fd}};
    prctl(PR_SET_NAME, "job-typist");
    catch_signals();
    set_lines(false);
    copy_size(STDIN_FILENO, fd);
    bool more = true;
    while (more && !ends) {
        const int n = poll(fds, 2, -1);
        if (n < 0 && errno != EINTR)
            break;
        if (resized)
            copy_size(STDIN_FILENO, fd);
        if (went_on)
            set_lines(false);
        resized = went_on = 0;
        more = n <= 0 || (!fds[1].revents && (!fds[0].revents || pass_on(fd)));
    }
    set_lines(true);
    return EXIT_OK;
}
