#include "common/http/metrics_text.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"

void metrics_head(struct metrics_text *m, const char *name, const char *type, const char *help)
{
    if (m->rc == 0)
        m->rc = buf_printf(m->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->prefix, name, help, m->prefix, name, type);
}

void metrics_value(struct metrics_text *m, const char *name, const char *labels, double v)
{
    if (m->rc == 0)
        m->rc = buf_printf(m->out, "%s%s%s %.15g\n", m->prefix, name, labels ? labels : "", v);
}

void metrics_figure(struct metrics_text *m, const char *name, const char *type, const char *help, double v)
{
    metrics_head(m, name, type, help);
    metrics_value(m, name, NULL, v);
}

const char *metrics_quoted(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (; *text && n + 3 < cap; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n')
            out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = 0;
    return out;
}

double metrics_resident_bytes(void)
{
    char text[128];
    unsigned long pages = 0;
    file_read_line(text, sizeof text, "/proc/self/statm");
    sscanf(text, "%*u %lu", &pages);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}
