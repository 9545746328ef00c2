/* Computes where the kernel put a core file (core_path.h). */
#include "launcher/report/core_path.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"

struct text {
    char *p;
    size_t n, cap;
};

static void append(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = t->n < t->cap ? vsnprintf(t->p + t->n, t->cap - t->n, fmt, ap) : 0;
    va_end(ap);
    t->n += n > 0 ? (size_t)n : 0;
}

static void add_program(struct text *t, const char *path, bool whole)
{
    const char *slash = strrchr(path, '/');
    const size_t start = t->n;
    if (!whole) {
        append(t, "%.15s", slash ? slash + 1 : path); /* as the kernel keeps it */
        return;
    }
    append(t, "%s", path);
    for (size_t i = start; i < t->n && i + 1 < t->cap; i++)
        if (t->p[i] == '/')
            t->p[i] = '!';
}

static void add_item(struct text *t, char c, const struct core_facts *f)
{
    switch (c) {
    case 'p':
    case 'P':
    case 'i':
    case 'I':
        append(t, "%d", (int)f->pid);
        break;
    case 'u':
        append(t, "%u", (unsigned)getuid());
        break;
    case 'g':
        append(t, "%u", (unsigned)getgid());
        break;
    case 's':
        append(t, "%d", f->signo);
        break;
    case 't':
        append(t, "%lld", f->time);
        break;
    case 'h':
        append(t, "%s", f->host);
        break;
    case 'e':
    case 'f':
        add_program(t, f->program, false);
        break;
    case 'E':
        add_program(t, f->program, true);
        break;
    case '%':
        append(t, "%%");
        break;
    default:
        append(t, "%%%c", c);
    }
}

static bool names_pid(const char *pattern)
{
    for (const char *p = strchr(pattern, '%'); p && p[1]; p = strchr(p + 2, '%'))
        if (p[1] == 'p')
            return true;
    return false;
}

void core_path_expand(const char *pattern, bool uses_pid, const struct core_facts *f, char *out, size_t cap)
{
    struct text t = {.p = out, .cap = cap};
    out[0] = '\0';
    if (pattern[0] == '|' || (!pattern[0] && !uses_pid))
        return; /* a program handles cores, and knows where it puts them; or none is written */
    if (pattern[0] != '/')
        append(&t, "%s/", f->folder);
    for (const char *p = pattern; *p; p++) {
        if (*p != '%')
            append(&t, "%c", *p);
        else if (p[1])
            add_item(&t, *++p, f);
    }
    if (uses_pid && !names_pid(pattern))
        append(&t, ".%d", (int)f->pid);
}

void core_path_name(const struct core_facts *f, char *out, size_t cap)
{
    char pattern[256], pid[16] = "0";
    out[0] = '\0';
    if (file_read_line(pattern, sizeof pattern, "/proc/sys/kernel/core_pattern") < 0)
        return;
    file_read_line(pid, sizeof pid, "/proc/sys/kernel/core_uses_pid");
    core_path_expand(pattern, pid[0] == '1', f, out, cap);
}
