/* Writes metrics in Prometheus' text format (metrics_text.h). */
#include "common/http/metrics_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/utf8.h"

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
    static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
    size_t n = 0;
    while (*text) {
        const size_t len = utf8_len(text);
        const char escaped[] = {'\\', *text == '\n' ? 'n' : *text};
        const bool escape = *text == '"' || *text == '\\' || *text == '\n';
        const size_t more = escape ? sizeof escaped : len ? len : sizeof replacement - 1;
        if (n + more >= cap)
            break;
        memcpy(out + n, escape ? escaped : len ? text : replacement, more);
        n += more;
        text += len ? len : 1;
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
