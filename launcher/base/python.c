/* Finds the Python interpreter for scripts, and recognises Python code (python.h). */
#include "launcher/base/python.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "launcher/base/program_file.h"

/* --- which interpreter */

static const char *const names[] = {"python3", "python"};

/* Try folder/bin/python3, or python; folder NULL: no. */
static bool try_environment(const char *folder, const char *from, struct python *ret)
{
    for (size_t i = 0; folder && *folder && i < sizeof names / sizeof *names; i++) {
        char *path;
        if (asprintf(&path, "%s/bin/%s", folder, names[i]) < 0)
            return false;
        file_at(path);
        const bool is_there = access(path, X_OK) == 0;
        file_at(NULL);
        if (is_there) {
            *ret = (struct python){path, from};
            return true;
        }
        free(path);
    }
    return false;
}

/* Try the environment in whose bin/ this file is. */
static bool try_beside(const char *crun, struct python *ret)
{
    static const char *const signs[] = {"pyvenv.cfg", "conda-meta"};
    char folder[4096], sign[4200];
    const char *slash = strrchr(crun, '/');
    if (!slash || slash - crun >= (ptrdiff_t)sizeof folder - 4)
        return false;
    snprintf(folder, sizeof folder, "%.*s/..", (int)(slash - crun), crun);
    char *whole = realpath(folder, NULL);
    bool found = false;
    for (size_t i = 0; whole && !found && i < sizeof signs / sizeof *signs; i++) {
        snprintf(sign, sizeof sign, "%s/%s", whole, signs[i]);
        found = access(sign, F_OK) == 0 && try_environment(whole, "beside crun", ret);
    }
    free(whole);
    return found;
}

/* Try crun's path as it was called, which may be a link inside an environment, and the real one. */
static bool try_beside_crun(struct python *ret)
{
    char self[4096];
    const char *called = (const char *)(uintptr_t)getauxval(AT_EXECFN);
    if (called && try_beside(called, ret))
        return true;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return false;
    self[n] = '\0';
    return try_beside(self, ret);
}

/* python3 on PATH, or python; NULL: there is none. */
static char *find_on_path(void)
{
    char *path = NULL;
    struct err why;
    for (size_t i = 0; i < sizeof names / sizeof *names && !path; i++)
        if (program_file_find(names[i], &path, &why) < 0)
            path = NULL;
    return path;
}

/* Whether this program lies in folder/bin. */
static bool lies_in(const char *path, const char *folder)
{
    char bin[4096], own[4096];
    struct stat a, b;
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (!slash || !folder || !*folder)
        return false;
    snprintf(bin, sizeof bin, "%s/bin", folder);
    snprintf(own, sizeof own, "%.*s/", (int)(slash - path), path);
    file_at(bin);
    const bool same = stat(bin, &a) == 0 && stat(own, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    file_at(NULL);
    return same;
}

/* Try environments that variables name. A variable left behind by the submitting shell names one whose Python is not
 * on PATH. */
static bool try_variables(struct python *ret)
{
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    char *on_path = find_on_path();
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
            const char *folder = getenv(variables[i]);
            if ((pass > 0 || lies_in(on_path, folder)) && try_environment(folder, variables[i], ret)) {
                if (pass > 0)
                    ret->on_path = on_path;
                else
                    free(on_path);
                return true;
            }
        }
    free(on_path);
    return false;
}

int python_find(struct python *ret, struct err *e)
{
    const char *named = getenv("PYTHON_EXEC");
    if (named && *named) {
        const int rc = program_file_find(named, &ret->path, e);
        if (rc < 0)
            return err_wrap(e, "PYTHON_EXEC names no Python");
        ret->from = "PYTHON_EXEC";
        return 0;
    }
    if (try_beside_crun(ret) || try_variables(ret))
        return 0;
    struct err why;
    ret->from = "PATH";
    const int rc = program_file_find(names[0], &ret->path, e);
    return rc < 0 && program_file_find(names[1], &ret->path, &why) == 0 ? 0 : rc;
}

void python_free(struct python *p)
{
    free(p->path);
    free(p->on_path);
    *p = (struct python){0};
}

/* --- what is a script */

bool python_is_named(const char *name)
{
    const size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, ".py") == 0;
}

/* Read the first bytes, with a 0 after them. Returns their number, < 0: the file cannot be read. */
static ssize_t read_head(const char *path, char *out, size_t cap)
{
    file_at(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);
    if (fd >= 0)
        close(fd);
    file_at(NULL);
    if (n >= 0)
        out[n] = '\0';
    return n;
}

static enum python_code look(const char *path)
{
    char head[512], main_file[4200];
    struct python_shebang shebang;
    struct stat st;
    if (stat(path, &st) < 0)
        return PYTHON_NONE;
    if (S_ISDIR(st.st_mode)) {
        snprintf(main_file, sizeof main_file, "%.4000s/__main__.py", path);
        return access(main_file, F_OK) == 0 ? PYTHON_CODE : PYTHON_NONE;
    }
    if (!S_ISREG(st.st_mode))
        return PYTHON_NONE;
    const ssize_t n = read_head(path, head, sizeof head);
    if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        return PYTHON_CODE;
    if (n >= 2 && memcmp(head, "#!", 2) == 0)
        return python_read_shebang(path, &shebang) ? PYTHON_SHEBANG : PYTHON_NONE;
    return n >= 0 && !memchr(head, 0, (size_t)n) ? PYTHON_CODE : PYTHON_NONE;
}

enum python_code python_code_of(const char *path)
{
    file_at(path);
    const enum python_code code = look(path);
    file_at(NULL);
    return code;
}

static bool is_python(const char *word)
{
    const char *slash = strrchr(word, '/');
    return strncmp(slash ? slash + 1 : word, "python", 6) == 0;
}

bool python_read_shebang(const char *path, struct python_shebang *ret)
{
    char *words[6], *save = NULL;
    int n = 0, first = 0;
    const ssize_t len = read_head(path, ret->line, sizeof ret->line);
    if (len < 3 || memcmp(ret->line, "#!", 2) != 0)
        return false;
    ret->line[strcspn(ret->line, "\r\n")] = '\0';
    for (char *w = strtok_r(ret->line + 2, " \t", &save); w; w = strtok_r(NULL, " \t", &save)) {
        if (n == 6)
            return false;
        words[n++] = w;
    }
    const char *slash = n > 1 ? strrchr(words[0], '/') : NULL;
    const bool env = slash && strcmp(slash, "/env") == 0;
    if (env)
        first = strcmp(words[1], "-S") == 0 ? 2 : 1;
    if (first >= n || !is_python(words[first]) || n - first > 4)
        return false;
    ret->interpreter = env && !strchr(words[first], '/') ? NULL : words[first];
    for (int i = 0; i < 4; i++)
        ret->args[i] = first + 1 + i < n ? words[first + 1 + i] : NULL;
    return true;
}
