/* Finds the crun of this tree or of PATH. */
#include "worker/demo/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"

#define DEBIANS "/usr/lib/crun-launcher/bin/crun"
enum { ANSWER_MS = 10000, ANSWER_MAX = 80 };

extern char **environ;

struct search {
    char *path;        /* PATH_MAX: the one at hand, in the end the one that was found */
    char foreign[300]; /* those that are something else, as a sentence goes on */
};

int launcher_self(char ret[PATH_MAX], struct err *e)
{
    const ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 1);
    if (n < 0)
        return err_errno(e, errno, "read /proc/self/exe");
    ret[n] = '\0';
    return 0;
}

/* The first line of `path --version`; "" if there is none in time. */
static void ask_version(const char *path, char out[ANSWER_MAX])
{
    char *argv[] = {(char *)(size_t)path, (char[]){"--version"}, NULL};
    posix_spawn_file_actions_t a;
    int fds[2], n = 0;
    pid_t pid;
    out[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) < 0)
        return;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&a, fds[1], 1);
    posix_spawn_file_actions_addopen(&a, 2, "/dev/null", O_WRONLY, 0);
    const bool started = posix_spawn(&pid, path, &a, NULL, argv, environ) == 0;
    posix_spawn_file_actions_destroy(&a);
    close(fds[1]);
    const int64_t deadline = clock_deadline(ANSWER_MS);
    struct pollfd p = {.fd = fds[0], .events = POLLIN};
    while (started && n < ANSWER_MAX - 1 && !memchr(out, '\n', (size_t)n) && poll(&p, 1, clock_left(deadline)) > 0) {
        const ssize_t more = read(fds[0], out + n, (size_t)(ANSWER_MAX - 1 - n));
        if (more <= 0)
            break;
        n += (int)more;
    }
    out[n] = '\0';
    out[strcspn(out, "\n")] = '\0';
    close(fds[0]);
    if (started) {
        kill(pid, SIGKILL); /* it has answered, or never will */
        waitpid(pid, NULL, 0);
    }
}

/* Is s->path crun? What else it is goes into s->foreign. */
static bool is_crun(struct search *s)
{
    char answer[ANSWER_MAX];
    if (access(s->path, X_OK) != 0)
        return false;
    ask_version(s->path, answer);
    if (strncmp(answer, "crun ", 5) == 0 && answer[5] >= '0' && answer[5] <= '9')
        return true;
    const size_t len = strlen(s->foreign);
    snprintf(s->foreign + len, sizeof s->foreign - len, "; %s is another program ('%s')", s->path, answer);
    return false;
}

static bool beside(struct search *s, const char *self, const char *relative)
{
    const char *slash = strrchr(self, '/');
    const int n = slash ? (int)(slash - self) : 0;
    return snprintf(s->path, PATH_MAX, "%.*s/%s", n, self, relative) < PATH_MAX && is_crun(s);
}

static bool on_path(struct search *s, const char *name)
{
    const char *p = getenv("PATH");
    while (p && *p) {
        const int n = (int)strcspn(p, ":");
        if (n > 0 && snprintf(s->path, PATH_MAX, "%.*s/%s", n, p, name) < PATH_MAX && is_crun(s))
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

static bool named(struct search *s, const char *path)
{
    return snprintf(s->path, PATH_MAX, "%s", path) < PATH_MAX && is_crun(s);
}

int launcher_find(char ret[PATH_MAX], const char *given, struct err *e)
{
    struct search s = {.path = ret};
    char self[PATH_MAX];
    if (given)
        return named(&s, given) ? 0 : err_set(e, -ENOENT, "--crun %s cannot be run as crun%s", given, s.foreign);
    TRY(launcher_self(self, e));
    if (beside(&s, self, "crun") || beside(&s, self, "../launcher/crun") || on_path(&s, "crun-launcher") ||
        on_path(&s, "crun") || named(&s, DEBIANS))
        return 0;
    return err_set(e, -ENOENT,
                   "crun was found neither beside trainer nor on PATH nor as " DEBIANS
                   "%s: install it (Debian's package "
                   "crun-launcher), or name it by --crun FILE",
                   s.foreign);
}
