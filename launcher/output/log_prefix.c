/* Expands the template of a console prefix (log_prefix.h). */
#include "launcher/output/log_prefix.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"

enum macro {
#define X(name, fmt, value) MACRO_##name,
    LOG_PREFIX_MACROS(X)
#undef X
        MACRO_DOLLAR,
    MACRO_UNKNOWN,
};

static const char *const names[] = {
#define X(name, fmt, value) #name,
    LOG_PREFIX_MACROS(X)
#undef X
};

static bool in_name(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Find the macro whose dollar sign is at p; *ret_n: its length in bytes. */
static enum macro macro_at(const char *p, size_t *ret_n)
{
    const bool braces = p[1] == '{';
    const char *name = p + 1 + braces;
    size_t n = 0;
    if (p[1] == '$') {
        *ret_n = 2;
        return MACRO_DOLLAR;
    }
    while (in_name(name[n]))
        n++;
    const bool closed = !braces || name[n] == '}';
    *ret_n = (size_t)(name - p) + n + (braces && closed);
    for (size_t i = 0; closed && i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return (enum macro)i;
    return MACRO_UNKNOWN;
}

int log_prefix_check(const char *text, struct err *e)
{
    size_t n;
    char known[256] = "";
    for (const char *p = text; (p = strchr(p, '$')); p += n) {
        if (macro_at(p, &n) != MACRO_UNKNOWN)
            continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", names[i]);
        return err_set(e, ERR_USAGE, "'%.*s' is no macro: expected one of %s", (int)n, p, known);
    }
    for (const char *p = text; *p; p++)
        if (*p == '\n')
            return err_set(e, ERR_USAGE, "expected one line");
    return 0;
}

bool log_prefix_uses_time(const char *text)
{
    size_t n;
    for (const char *p = text; (p = strchr(p, '$')); p += n)
        if (macro_at(p, &n) == MACRO_time)
            return true;
    return false;
}

static int add_macro(enum macro m, const struct log_prefix_values *v, struct buf *out)
{
    switch (m) {
#define X(name, fmt, value)                                                                                            \
    case MACRO_##name:                                                                                                 \
        return buf_printf(out, fmt, value);
        LOG_PREFIX_MACROS(X)
#undef X
    case MACRO_DOLLAR:
        return buf_add(out, "$", 1);
    case MACRO_UNKNOWN:
        break;
    }
    return 0;
}

int log_prefix_render(const char *text, const struct log_prefix_values *v, struct buf *out)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "$");
        TRY(buf_add(out, p, n));
        p += n;
        if (!*p)
            break;
        TRY(add_macro(macro_at(p, &n), v, out));
        p += n;
    }
    return 0;
}
