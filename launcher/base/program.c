/* Finds the program that the user wants to run, and composes its arguments (program.h). */
#include "launcher/base/program.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "launcher/base/program_file.h"
#include "launcher/base/python.h"

/* Does what torchrun's --run-path does, without its pool of processes. */
static const char run_path_code[] =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";
static const char local_rank_argument[] = "--local-rank=${local_rank}";

enum { WORDS_ADDED = 10 }; /* python, words of a "#!" line, -u -m|-c CODE, --local-rank */

/* Is the name Python code here? As in torchrun, a folder of this name wins over a program; a file is taken for
 * Python code only if there is nothing to execute. */
static bool is_code_here(const char *name)
{
    const enum python_code code = python_code_of(name);
    struct stat st;
    if (code == PYTHON_NONE || stat(name, &st) < 0)
        return false;
    if (S_ISDIR(st.st_mode))
        return true;
    if (strchr(name, '/'))
        return access(name, X_OK) < 0;
    char *found = NULL;
    struct err why;
    const bool is_program = program_file_find(name, &found, &why) == 0;
    free(found);
    return !is_program;
}

static bool wants_python(const struct program_how *how, const char *name)
{
    if (how->run_path || how->module)
        return true;
    return !how->no_python && (how->python || python_is_named(name) || is_code_here(name));
}

static int check_script(const struct program_how *how, const char *name, struct err *e)
{
    const bool file = how->run_path || !how->module;
    if (!file || access(name, R_OK) == 0)
        return 0;
    return err_set(e, errno == EACCES ? -EACCES : -ENOENT, "script '%s' %s", name,
                   errno == EACCES ? "cannot be read" : "is not found");
}

static bool has_macros(char *const *argv, bool as_templates)
{
    for (; *argv; argv++)
        if (as_templates ? strchr(*argv, '$') != NULL : strstr(*argv, "${local_rank}") || strstr(*argv, "${rank}"))
            return true;
    return false;
}

/* Put the words in front of the user's arguments. script: replaces the first word; NULL: leave it. */
static void compose(struct program *p, const struct program_how *how, char *script, char **args)
{
    size_t at = 0;
    if (p->python_from) {
        p->argv[at++] = p->path;
        for (char **word = p->shebang ? p->shebang->args : NULL; word && *word; word++)
            p->argv[at++] = *word;
        p->argv[at++] = (char *)"-u";
        if (how->run_path) {
            p->argv[at++] = (char *)"-c";
            p->argv[at++] = (char *)run_path_code;
        } else if (how->module) {
            p->argv[at++] = (char *)"-m";
        }
    }
    p->argv[at++] = script ? script : *args;
    args++;
    if (!how->use_env)
        p->argv[at++] = (char *)local_rank_argument;
    while (*args)
        p->argv[at++] = *args++;
    p->as_templates = how->as_templates;
    p->macros = has_macros(p->argv, p->as_templates);
}

static int find_python(struct program *p, struct err *e)
{
    struct python python = {0};
    TRY(python_find(&python, e));
    p->path = python.path;
    p->python_from = python.from;
    p->python_on_path = python.on_path;
    return 0;
}

/* If p->path is a script that names a Python, run it by that one, with -u. If that Python does not exist, leave it
 * to the kernel. */
static void take_shebang(struct program *p)
{
    struct python_shebang *line = calloc(1, sizeof *line);
    struct program found = {0};
    struct err why;
    if (line && python_read_shebang(p->path, line)) {
        if (!line->interpreter)
            find_python(&found, &why);
        else if (access(line->interpreter, X_OK) == 0 && (found.path = strdup(line->interpreter)))
            found.python_from = "its first line";
    }
    if (!found.path) {
        free(line);
        return;
    }
    p->shebang = line;
    p->script = p->path;
    p->path = found.path;
    p->python_from = found.python_from;
    p->python_on_path = found.python_on_path;
}

int program_find(struct program *ret, const struct program_how *how, char **args, struct err *e)
{
    const bool python = wants_python(how, args[0]);
    size_t n = 0;

    if (python)
        TRY(check_script(how, args[0], e));
    while (args[n])
        n++;
    struct program p = {.argv = calloc(n + WORDS_ADDED + 1, sizeof *p.argv)};
    if (!p.argv)
        return err_errno(e, ENOMEM, "arguments");
    int rc = python ? find_python(&p, e) : program_file_find(args[0], &p.path, e);
    if (rc == 0 && asprintf(&p.name, "%s%s", how->module && !how->run_path ? "-m " : "", args[0]) < 0) {
        p.name = NULL;
        rc = err_errno(e, ENOMEM, "program");
    }
    if (rc < 0) {
        program_free(&p);
        return rc;
    }
    if (!python && !how->no_python)
        take_shebang(&p);
    compose(&p, how, p.script, args);
    *ret = p;
    return 0;
}

int program_stand_in(struct program *ret, char **args, struct err *e)
{
    struct program p = {.path = strdup(args[0]), .name = strdup(args[0]), .argv = calloc(2, sizeof *p.argv)};
    if (!p.path || !p.name || !p.argv) {
        program_free(&p);
        return err_errno(e, ENOMEM, "program");
    }
    p.argv[0] = args[0];
    *ret = p;
    return 0;
}

/* Length of the macro ${name} or $name at text; 0: there is none. */
static size_t match_template(const char *text, const char *name)
{
    const size_t n = strlen(name);
    if (strncmp(text, "${", 2) == 0 && strncmp(text + 2, name, n) == 0 && text[n + 2] == '}')
        return n + 3;
    if (strncmp(text + 1, name, n) == 0 && !isalnum((unsigned char)text[n + 1]) && text[n + 1] != '_')
        return n + 1;
    return 0;
}

/* Expand like Python's string.Template with local_rank: $local_rank works, too, and $$ is a dollar sign. */
static int expand_template(const char *text, const char *local, struct buf *out)
{
    while (*text) {
        const size_t n = text[0] == '$' ? match_template(text, "local_rank") : 0;
        if (n)
            TRY(buf_add(out, local, strlen(local)));
        else
            TRY(buf_add(out, text, 1));
        text += n ? n : text[0] == '$' && text[1] == '$' ? 2 : 1;
    }
    return buf_add(out, "", 1);
}

/* Expand macros in a text; a second '$' in front of one protects it. */
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
        rc = p->as_templates ? expand_template(p->argv[n], local, &text)
                             : expand(p->argv[n], rank ? rank : "${rank}", local, &text);
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

int program_args_differ(const struct program *p, bool *ret, struct err *e)
{
    char **a, **b;
    *ret = false;
    if (!p->macros)
        return 0;
    TRY(program_args(p, "0", 0, &a, e));
    const int rc = program_args(p, "1", 1, &b, e);
    for (size_t i = 0; rc == 0 && a[i] && !*ret; i++)
        *ret = strcmp(a[i], b[i]) != 0;
    free(a);
    if (rc == 0)
        free(b);
    return rc;
}

void program_free(struct program *p)
{
    free(p->path);
    free(p->python_on_path);
    free(p->script);
    free(p->name);
    free(p->argv);
    free(p->shebang);
    *p = (struct program){0};
}
