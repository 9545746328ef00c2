/* Reads settings files: "name = value" lines with the names of the long options, in either spelling. '#' at the
 * beginning of a line or after a blank begins a comment. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/args/args_internal.h"
#include "common/args/nearest.h"
#include "common/base/err.h"
#include "common/base/file.h"

char *line_trim(char *p)
{
    p += strspn(p, " \t");
    size_t n = strlen(p);
    while (n && strchr(" \t\r\n", p[n - 1]))
        p[--n] = 0;
    return p;
}

static void cut_comment(char *line)
{
    for (char *p = line; *p; p++)
        if (*p == '#' && (p == line || p[-1] == ' ' || p[-1] == '\t')) {
            *p = 0;
            return;
        }
}

static bool same_name(const char *item, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (item[i] != name[i] && !(item[i] == '-' && name[i] == '_'))
            return false;
    return !name[n];
}

static size_t find_option(const struct arg_program *p, const char *name)
{
    size_t i = 0;
    for (; p->specs[i].type != ARG_END_; i++) {
        const char *lists[] = {p->specs[i].name, p->specs[i].aliases}, *item;
        for (size_t l = 0; l < 2 && p->specs[i].type != ARG_HEADING; l++)
            for (size_t n; (n = args_next_item(&lists[l], ',', &item)) > 0;)
                if (same_name(item, n, name))
                    return i;
    }
    return i;
}

static int refuse_name(const struct arg_program *p, const char *name, struct err *e)
{
    struct nearest near;
    nearest_begin(&near, name, strlen(name));
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++)
        if (s->type != ARG_HEADING && !s->hidden)
            nearest_try(&near, s->name);
    if (near.word)
        return err_set(e, ERR_USAGE, "no setting '%.64s', did you mean '%s'?", name, near.word);
    return err_set(e, ERR_USAGE, "no setting '%.64s': expected the name of an option (see --help)", name);
}

/* A copy that lives as long as *r. */
static const char *keep(struct arg_result *r, const char *text, struct err *e)
{
    const size_t n = strlen(text) + 1;
    if (n > sizeof r->file_text - r->file_text_used) {
        err_set(e, ERR_USAGE, "expected less than %zu bytes of settings", sizeof r->file_text);
        return NULL;
    }
    char *copy = r->file_text + r->file_text_used;
    memcpy(copy, text, n);
    r->file_text_used += n;
    return copy;
}

static int take_line(const struct arg_program *p, char *line, const char *path, int number, struct arg_result *r,
                     struct err *e)
{
    cut_comment(line);
    char *name = line_trim(line), *equals = strchr(name, '=');
    if (!*name)
        return 0;
    if (!equals)
        return err_set(e, ERR_USAGE, "expected name = value");
    *equals = 0;
    name = line_trim(name);
    const char *value = line_trim(equals + 1);
    const size_t i = find_option(p, name);
    if (p->specs[i].type == ARG_END_)
        return refuse_name(p, name, e);
    if (!*value)
        return err_set(e, ERR_USAGE, "%.64s: expected a value", name);
    /* the first file wins; within a file, the last line */
    if (r->source[i] != ARG_FROM_DEFAULT && r->file_path[i] != path)
        return 0;
    if (!(r->text[i] = keep(r, value, e)))
        return e->code;
    r->source[i] = ARG_FROM_FILE;
    r->file_path[i] = path;
    r->file_line[i] = number;
    return 0;
}

#define FILE_BYTES_MAX (1 << 20)
#define SETTING_MAX 512 /* bytes of a line of a program's own settings */

/* Open a settings file without waiting for a pipe. NULL with *e unset: there is no file. */
static FILE *open_file(const char *path, struct err *e)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return NULL;
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_set(e, ERR_USAGE, "%s cannot be read: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode) && st.st_rdev != makedev(1, 3)) { /* /dev/null: no settings */
        err_set(e, ERR_USAGE, "%s is %s: expected a file of settings", path,
                S_ISDIR(st.st_mode)    ? "a folder"
                : S_ISFIFO(st.st_mode) ? "a named pipe"
                                       : "no ordinary file");
    } else if (S_ISREG(st.st_mode) && st.st_size > FILE_BYTES_MAX) {
        err_set(e, ERR_USAGE, "%s has %lld bytes: expected a file of settings, of at most %d", path,
                (long long)st.st_size, FILE_BYTES_MAX);
    } else {
        FILE *f = fdopen(fd, "r");
        if (f)
            return f;
        err_set(e, ERR_USAGE, "%s cannot be read: %s", path, strerror(errno));
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

static char *skip_bom(char *line)
{
    return line + (strncmp(line, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
}

static int read_file(const struct arg_program *p, const char *path, struct arg_result *r, struct err *e)
{
    char *line = NULL;
    size_t cap = 0;
    int number = 0, rc = 0;
    struct err why = {0};
    FILE *f = open_file(path, &why);
    if (!f)
        return why.code ? err_set(e, why.code, "%s", why.text) : 0;
    path = keep(r, path, e);
    if (!path)
        rc = e->code;
    while (rc == 0 && getline(&line, &cap, f) >= 0) {
        number++;
        rc = take_line(p, number == 1 ? skip_bom(line) : line, path, number, r, e);
    }
    free(line);
    fclose(f);
    return rc < 0 && number ? err_wrap(e, "%s: line %d", path, number) : rc;
}

int args_read_settings(const struct arg_program *p, const void *config, struct arg_result *r, struct err *e)
{
    struct arg_settings s = {0};
    int number = 0;
    TRY(p->settings ? p->settings(config, &s, e) : 0);
    for (const char *at = s.text; at && *at; at += strcspn(at, "\n"), at += *at == '\n') {
        char line[SETTING_MAX];
        const size_t n = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, at);
        if (n >= sizeof line || take_line(p, line, s.name, ++number, r, e) < 0)
            return n >= sizeof line
                       ? err_set(e, ERR_USAGE, "%s: expected less than %d bytes of settings", s.name, SETTING_MAX)
                       : err_wrap(e, "%s: line %d", s.name, number);
    }
    return 0;
}

int args_read_files(const struct arg_program *p, struct arg_result *r, struct err *e)
{
    char path[1024];
    const char *home = getenv("HOME");
    for (const char *const *f = p->files; f && *f; f++) {
        const bool below_home = (*f)[0] == '~';
        if (below_home && (!home || !*home))
            continue;
        if (snprintf(path, sizeof path, "%s%s", below_home ? home : "", *f + below_home) >= (int)sizeof path)
            continue;
        file_at(path);
        TRY(read_file(p, path, r, e));
        file_at(NULL);
    }
    return 0;
}
