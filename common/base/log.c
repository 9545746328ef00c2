#include "common/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/choice.h"
#include "common/base/clock.h"

static _Atomic int max_level = LOG_WARN;
static char line_prefix[128];
static void (*redirect)(void *arg, const char *line, size_t n);
static void *redirect_arg;

static const char *const level_names[] = {LOG_LEVELS(CHOICE_NAME)};

void log_init(enum log_level max, const char *prefix)
{
    max_level = (int)max;
    snprintf(line_prefix, sizeof line_prefix, "%s", prefix);
}

const char *log_prefix(void)
{
    return line_prefix;
}

enum log_level log_level(void)
{
    return (enum log_level)max_level;
}

void log_redirect(void (*out)(void *arg, const char *line, size_t n), void *arg)
{
    redirect = out;
    redirect_arg = arg;
}

void log_line(enum log_level level, const char *module, const char *fmt, ...)
{
    if ((int)level > max_level)
        return;
    char line[2048], when[CLOCK_ISO_LEN];
    int n = snprintf(line, sizeof line, "%s %s %s%s%s: ", clock_iso(when, sizeof when), level_names[level], line_prefix,
                     line_prefix[0] ? " " : "", module);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    for (size_t i = (size_t)n; i < len; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = '?';
    line[len++] = '\n';
    if (redirect) {
        redirect(redirect_arg, line, len);
        return;
    }
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}
