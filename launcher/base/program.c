#include "launcher/base/program.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"

/* 0: a file that may be executed; -EACCES: there, but not that; -ENOENT. */
static int check(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return errno == EACCES ? -EACCES : -ENOENT;
    return S_ISREG(st.st_mode) && access(path, X_OK) == 0 ? 0 : -EACCES;
}

/* Try folder/name (folder of len bytes; empty: the current one). Remembers the first file that cannot be executed. */
static bool try_folder(const char *folder, size_t len, const char *name, char **found, char **unusable)
{
    char *path;
    int n = len ? asprintf(&path, "%.*s/%s", (int)len, folder, name) : asprintf(&path, "./%s", name);
    if (n < 0)
        return false;
    int rc = check(path);
    if (rc == 0) {
        *found = path;
        return true;
    }
    if (rc == -EACCES && !*unusable)
        *unusable = path;
    else
        free(path);
    return false;
}

static bool try_path(const char *name, char **found, char **unusable)
{
    const char *dirs = getenv("PATH");
    for (const char *d = dirs ? dirs : "/usr/local/bin:/usr/bin:/bin"; d;) {
        size_t len = strcspn(d, ":");
        if (try_folder(d, len, name, found, unusable))
            return true;
        d = d[len] ? d + len + 1 : NULL;
    }
    return false;
}

static bool try_beside(const char *name, char **found, char **unusable)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 16);
    if (n <= 0)
        return false;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    if (try_folder(self, (size_t)(slash - self), name, found, unusable))
        return true;
    strcpy(slash, "/../worker");
    return try_folder(self, strlen(self), name, found, unusable);
}

static int find(const char *name, char **ret, struct err *e)
{
    char *found = NULL, *unusable = NULL;
    if (strchr(name, '/')) {
        int rc = check(name);
        if (rc == -ENOENT)
            return err_set(e, rc, "program '%s' is not found", name);
        if (rc < 0)
            return err_set(e, rc, "program '%s' cannot be executed: not an executable file", name);
        *ret = strdup(name);
        return *ret ? 0 : err_errno(e, ENOMEM, "program");
    }
    int rc = 0;
    if (try_path(name, &found, &unusable) || try_beside(name, &found, &unusable))
        *ret = found;
    else if (unusable)
        rc = err_set(e, -EACCES, "program '%s' cannot be executed: %s is not an executable file", name, unusable);
    else
        rc = err_set(e, -ENOENT, "program '%s' is not found on PATH or beside crun%s", name,
                     access(name, F_OK) == 0 ? " (there is one in this folder: write ./ in front)" : "");
    free(unusable);
    return rc;
}

static bool is_python(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, ".py") == 0;
}

/* As torchrun's --run-path, without its pool of processes. */
static const char run_path_code[] =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";
static const char local_rank_argument[] = "--local-rank=${local_rank}";

enum { WORDS_ADDED = 5 }; /* python -u -m|-c CODE, --local-rank */

static bool wants_python(const struct program_how *how, const char *name)
{
    if (how->run_path || how->module)
        return true;
    return !how->no_python && (how->python || is_python(name));
}

static int check_script(const struct program_how *how, const char *name, struct err *e)
{
    const bool file = how->run_path || !how->module;
    if (!file || access(name, R_OK) == 0)
        return 0;
    return err_set(e, errno == EACCES ? -EACCES : -ENOENT, "script '%s' %s", name,
                   errno == EACCES ? "cannot be read" : "is not found");
}

static bool has_macros(char *const *argv)
{
    for (; *argv; argv++)
        if (strstr(*argv, "${local_rank}") || strstr(*argv, "${rank}"))
            return true;
    return false;
}

/* Everything between the interpreter and the arguments of the user. */
static void compose(struct program *p, const struct program_how *how, bool python, char **args)
{
    size_t at = 0;
    if (python) {
        p->argv[at++] = p->path;
        p->argv[at++] = (char *)"-u";
        if (how->run_path) {
            p->argv[at++] = (char *)"-c";
            p->argv[at++] = (char *)run_path_code;
        } else if (how->module) {
            p->argv[at++] = (char *)"-m";
        }
    }
    p->argv[at++] = *args++;
    if (!how->use_env)
        p->argv[at++] = (char *)local_rank_argument;
    while (*args)
        p->argv[at++] = *args++;
    p->macros = has_macros(p->argv);
}

int program_find(struct program *ret, const struct program_how *how, char **args, struct err *e)
{
    const bool python = wants_python(how, args[0]);
    const char *interpreter = getenv("PYTHON_EXEC");
    size_t n = 0;

    if (python)
        TRY(check_script(how, args[0], e));
    while (args[n])
        n++;
    struct program p = {.argv = calloc(n + WORDS_ADDED + 1, sizeof *p.argv)};
    if (!p.argv)
        return err_errno(e, ENOMEM, "arguments");
    int rc = find(!python ? args[0] : interpreter && *interpreter ? interpreter : "python3", &p.path, e);
    if (rc == 0 && asprintf(&p.name, "%s%s", how->module && !how->run_path ? "-m " : "", args[0]) < 0) {
        p.name = NULL;
        rc = err_errno(e, ENOMEM, "program");
    }
    if (rc < 0) {
        program_free(&p);
        return rc;
    }
    compose(&p, how, python, args);
    *ret = p;
    return 0;
}

/* Text with macros replaced; a second '$' in front protects one. */
static int expand(const char *text, const char *rank, const char *local, struct buf *out)
{
    while (*text) {
        const size_t dollars = text[0] == '$' && text[1] == '$' ? 1 : 0;
        const char *m = text + dollars;
        const size_t n = strncmp(m, "${local_rank}", 13) == 0 ? 13 : strncmp(m, "${rank}", 7) == 0 ? 7 : 0;
        const char *value = dollars ? m : n == 13 ? local : rank;
        if (n)
            TRY(buf_add(out, value, dollars ? n : strlen(value)));
        else
            TRY(buf_add(out, text, 1));
        text += n ? n + dollars : 1;
    }
    return buf_add(out, "", 1);
}

int program_args(const struct program *p, const char *rank, int local_rank, char ***ret, struct err *e)
{
    char local[16];
    size_t n = 0;
    int rc = 0;
    struct buf text;
    buf_init(&text, 1u << 24);
    snprintf(local, sizeof local, "%d", local_rank);
    for (; p->argv[n] && rc == 0; n++)
        rc = expand(p->argv[n], rank ? rank : "${rank}", local, &text);
    char **argv = rc == 0 ? malloc((n + 1) * sizeof *argv + text.len) : NULL;
    if (!argv) {
        buf_free(&text);
        return err_errno(e, ENOMEM, "arguments of a worker");
    }
    char *at = memcpy(argv + n + 1, text.data, text.len);
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
        argv[i] = at;
    argv[n] = NULL;
    buf_free(&text);
    *ret = argv;
    return 0;
}

void program_free(struct program *p)
{
    free(p->path);
    free(p->name);
    free(p->argv);
    p->path = p->name = NULL;
    p->argv = NULL;
}
