/* Fills in struct err, and names error codes (err.h). */
#include "common/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/utf8.h"

/* Names out of files and from peers may stand in the text: control bytes become '?', as in log lines. */
static void clean(struct err *e)
{
    printable_make(e->text, strlen(e->text));
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
        clean(e);
        e->code = code;
    }
    return code;
}

/* What the user can do about it. */
static const char *hint(int errno_value, char out[64])
{
    struct rlimit files;
    out[0] = 0;
    if (errno_value == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0)
        snprintf(out, 64, " (ulimit -n allows %llu)", (unsigned long long)files.rlim_cur);
    return out;
}

static void set_errno(struct err *e, int errno_value, const char *more, const char *fmt, va_list ap)
{
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s%s", strerror(errno_value), more);
    clean(e);
    e->code = -errno_value;
}

int err_errno(struct err *e, int errno_value, const char *fmt, ...)
{
    char more[64];
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        set_errno(e, errno_value, hint(errno_value, more), fmt, ap);
        va_end(ap);
    }
    return -errno_value;
}

int err_start(struct err *e, int errno_value, const char *fmt, ...)
{
    struct rlimit most;
    char more[64];
    if (e) {
        va_list ap;
        hint(errno_value, more);
        if (errno_value == EAGAIN && getrlimit(RLIMIT_NPROC, &most) == 0 && most.rlim_cur != RLIM_INFINITY)
            snprintf(more, sizeof more, " (ulimit -u, RLIMIT_NPROC, allows %llu)", (unsigned long long)most.rlim_cur);
        va_start(ap, fmt);
        set_errno(e, errno_value, more, fmt, ap);
        va_end(ap);
    }
    return -errno_value;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -EIO;
    char old[sizeof e->text];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", old);
    clean(e);
    return e->code;
}

const char *err_name(int code)
{
    switch (code) {
#define X(name, value, text)                                                                                           \
    case name:                                                                                                         \
        return #name;
        ERR_CODES(X)
#undef X
    default: {
#if __GLIBC_PREREQ(2, 32)
        const char *name = code <= 0 ? strerrorname_np(-code) : NULL;
        return name ? name : "unknown error";
#else
        return code <= 0 ? strerror(-code) : "unknown error";
#endif
    }
    }
}
