/* Finds the Python that would run scripts, and programs and modules called crun that are not ours. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/base/program_file.h"
#include "launcher/base/python.h"
#include "launcher/tools/doctor/facts.h"

enum { RUN_S = 25 }; /* a Python on a file server, on a busy host; two runs must fit into the 60 s that doctor waits */

/* --- running one */

/* Read up to the first newline, the end, or the deadline. */
static int read_first_line(int fd, char *out, size_t cap, int64_t deadline)
{
    size_t n = 0;
    out[0] = '\0';
    while (n + 1 < cap && !strchr(out, '\n')) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int left = clock_left(deadline);
        if (left == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, left) <= 0)
            continue;
        const ssize_t got = read(fd, out + n, cap - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
        out[n] = '\0';
    }
    out[strcspn(out, "\r\n")] = '\0';
    return out[0] ? 0 : -ENODATA;
}

static void become(char *const argv[], int out, pid_t parent)
{
    const int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the parent died before we asked for the signal */
        _exit(127);
    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(argv[0], argv);
    _exit(127);
}

int facts_run(char *const argv[], char *out, size_t cap, int timeout_ms)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    const pid_t self = getpid(), pid = fork();
    if (pid == 0)
        become(argv, ends[1], self);
    const int why = errno;
    close(ends[1]);
    const int rc = pid < 0 ? -why : read_first_line(ends[0], out, cap, clock_deadline(timeout_ms));
    close(ends[0]);
    if (pid > 0) {
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL); /* its group may not be there yet */
        waitpid(pid, NULL, 0);
    }
    return rc;
}

/* --- Python */

/* Prints one line of JSON. Our own module has a _lib.py and imports it; a package of another project that has
 * overwritten it does not. The module is not executed. */
static const char query[] =
    "import sys, json, os\n"
    "found = {'version': '%d.%d.%d' % sys.version_info[:3]}\n"
    "try:\n"
    "    import importlib.util\n"
    "    spec = importlib.util.find_spec('crun')\n"
    "    where = spec and (spec.origin or next(iter(spec.submodule_search_locations or []), ''))\n"
    "    ours = os.path.exists(os.path.join(os.path.dirname(where or ''), '_lib.py'))\n"
    "    if where and not (ours and '._lib' in open(where, encoding='utf-8').read()): found['foreign'] = where\n"
    "    from importlib.metadata import version\n"
    "    found['torch'] = version('torch')\n"
    "except Exception: pass\n"
    "print(json.dumps(found))\n";

static void take(const cJSON *o, const char *name, char out[FACTS_TEXT])
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
    snprintf(out, FACTS_TEXT, "%s", s ? s : "");
}

static void ask_python(struct facts *f)
{
    char line[4096] = "";
    char *argv[] = {f->python, "-c", (char *)query, NULL};
    const int rc = facts_run(argv, line, sizeof line, RUN_S * 1000);
    cJSON *o = cJSON_Parse(line);
    take(o, "version", f->python_version);
    take(o, "torch", f->torch);
    take(o, "foreign", f->foreign_module);
    cJSON_Delete(o);
    if (f->python_version[0])
        return;
    if (rc == -ETIMEDOUT)
        snprintf(f->python_error, sizeof f->python_error, "it says nothing within %d s", RUN_S);
    else
        snprintf(f->python_error, sizeof f->python_error, "%s", rc < 0 ? "it ends without a word" : line);
}

static void read_python(struct facts *f)
{
    struct python p = {0};
    struct err e;
    const char *named = getenv("PYTHON_EXEC");
    if (python_find(&p, &e) < 0) {
        snprintf(f->python_error, sizeof f->python_error, "%s", e.text);
        snprintf(f->python_from, sizeof f->python_from, "%s", named && *named ? "PYTHON_EXEC" : "PATH");
        return;
    }
    snprintf(f->python, sizeof f->python, "%s", p.path);
    snprintf(f->python_from, sizeof f->python_from, "%s", p.from);
    python_free(&p);
    ask_python(f);
}

/* --- crun on PATH */

/* Find the first file with this name on PATH. */
static bool on_path(const char *name, char out[FACTS_TEXT])
{
    const char *dirs = getenv("PATH");
    for (const char *d = dirs ? dirs : ""; *d;) {
        const size_t n = strcspn(d, ":");
        snprintf(out, FACTS_TEXT, "%.*s/%s", (int)n, n ? d : ".", name);
        if (access(out, X_OK) == 0)
            return true;
        d += d[n] ? n + 1 : n;
    }
    out[0] = '\0';
    return false;
}

static bool is_own(const char *path)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat("/proc/self/exe", &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Is it our crun? Ours prints "crun 1.2.3"; the container runtime, "crun version 1.8.1". */
static bool is_crun(const char *path, char line[FACTS_TEXT])
{
    char *argv[] = {(char *)path, "--version", NULL};
    if (is_own(path))
        return true;
    if (facts_run(argv, line, FACTS_TEXT, RUN_S * 1000) < 0)
        snprintf(line, FACTS_TEXT, "it does not say its version");
    return strncmp(line, "crun ", 5) == 0 && line[5] >= '0' && line[5] <= '9';
}

static void read_crun(struct facts *f)
{
    char path[FACTS_TEXT], line[FACTS_TEXT];
    if (on_path("crun-launcher", path) && is_crun(path, line))
        return; /* a package of ours that calls the launcher crun-launcher: another crun beside it is intended */
    if (!on_path("crun", path) || is_crun(path, line))
        return;
    snprintf(f->foreign_crun, sizeof f->foreign_crun, "%s", path);
    snprintf(f->foreign_says, sizeof f->foreign_says, "%s", line);
}

void facts_read_programs(struct facts *f)
{
    read_python(f);
    read_crun(f);
}
