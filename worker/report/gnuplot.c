/* Runs gnuplot in a folder of its own. */
#include "worker/report/gnuplot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/report/lines.h"

#define DEADLINE_MS 60000
#define PICTURE_MAX (64 << 20)

extern char **environ;

static int in_folder(char out[PATH_MAX], const struct gnuplot *g, const char *name)
{
    return snprintf(out, PATH_MAX, "%s/%s", g->dir, name) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

int gnuplot_begin(struct gnuplot *g, struct err *e)
{
    const char *base = getenv("TMPDIR");
    if (snprintf(g->dir, sizeof g->dir, "%s/plot-XXXXXX", base && base[0] ? base : "/tmp") >= (int)sizeof g->dir)
        return err_set(e, -ENAMETOOLONG, "TMPDIR is too long");
    return mkdtemp(g->dir) ? 0 : err_errno(e, errno, "make a folder %s", g->dir);
}

FILE *gnuplot_create(const struct gnuplot *g, const char *name, struct err *e)
{
    char path[PATH_MAX];
    FILE *f = in_folder(path, g, name) == 0 ? fopen(path, "wxe") : NULL;
    if (!f)
        err_errno(e, errno, "create %s in %s", name, g->dir);
    return f;
}

int gnuplot_finish(FILE *f, const char *name, struct err *e)
{
    bool bad = ferror(f);
    return fclose(f) < 0 || bad ? err_errno(e, errno ? errno : EIO, "write %s", name) : 0;
}

static int wait_for(pid_t pid, int *status, struct err *e)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n = fd < 0 ? -1 : poll(&p, 1, DEADLINE_MS), why = errno;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        kill(pid, SIGKILL);
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        continue;
    if (n == 0)
        return err_set(e, -ETIMEDOUT, "gnuplot took longer than %d seconds", DEADLINE_MS / 1000);
    return n < 0 ? err_errno(e, why, "wait for gnuplot") : 0;
}

static int failure(const struct gnuplot *g, int status, struct err *e)
{
    char path[PATH_MAX], text[300] = "";
    FILE *f = in_folder(path, g, "stderr") == 0 ? fopen(path, "re") : NULL;
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)text[i] < ' ')
                text[i] = ' ';
    }
    return err_set(e, -EIO, "gnuplot failed with %s %d: %s", WIFSIGNALED(status) ? "signal" : "code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), text);
}

static int run_gnuplot(const struct gnuplot *g, struct err *e)
{
    char *argv[] = {(char[]){"gnuplot"}, (char[]){"plot.gp"}, NULL};
    posix_spawn_file_actions_t a;
    pid_t pid;
    if (posix_spawn_file_actions_init(&a) != 0)
        return err_set(e, -ENOMEM, "no memory to start gnuplot");
    posix_spawn_file_actions_addchdir_np(&a, g->dir);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&a, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&a, 2, "stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int why = posix_spawnp(&pid, argv[0], &a, NULL, argv, environ), status;
    posix_spawn_file_actions_destroy(&a);
    if (why == ENOENT)
        return err_set(e, -ENOENT, "gnuplot is not installed, so no plot can be drawn (Debian: gnuplot-nox)");
    if (why)
        return err_errno(e, why, "start gnuplot");
    TRY(wait_for(pid, &status, e));
    return status == 0 ? 0 : failure(g, status, e);
}

static int copy_file(const char *from, const char *to, struct err *e)
{
    char *data = malloc(PICTURE_MAX);
    FILE *f = fopen(from, "re");
    size_t n = data && f ? fread(data, 1, PICTURE_MAX, f) : 0;
    if (f)
        fclose(f);
    int rc = n == 0 ? err_set(e, -EIO, "gnuplot drew nothing") : 0, fd = -1;
    if (rc == 0 && (fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        rc = err_set(e, ERR_OUTPUT, "create %s: %s", to, strerror(errno));
    if (rc == 0 && lines_write(fd, data, n, to, e) < 0)
        rc = err_set(e, ERR_OUTPUT, "write %s: %s", to, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(data);
    return rc;
}

static int put_in_place(const struct gnuplot *g, const char *png, struct err *e)
{
    char from[PATH_MAX], tmp[PATH_MAX];
    if (in_folder(from, g, "plot.png") < 0 || snprintf(tmp, sizeof tmp, "%s.tmp", png) >= PATH_MAX)
        return err_set(e, -ENAMETOOLONG, "a path is too long: %s", png);
    int rc = copy_file(from, tmp, e);
    if (rc == 0 && rename(tmp, png) < 0)
        rc = err_set(e, ERR_OUTPUT, "rename %s to %s: %s", tmp, png, strerror(errno));
    if (rc < 0)
        unlink(tmp);
    return rc;
}

int gnuplot_draw(const struct gnuplot *g, const char *png, struct err *e)
{
    TRY(run_gnuplot(g, e));
    return put_in_place(g, png, e);
}

void gnuplot_end(const struct gnuplot *g)
{
    char path[PATH_MAX];
    DIR *d = opendir(g->dir);
    for (struct dirent *entry; d && (entry = readdir(d));)
        if (in_folder(path, g, entry->d_name) == 0)
            unlink(path);
    if (d)
        closedir(d);
    rmdir(g->dir);
}
