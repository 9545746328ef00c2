/* Prints a line to stderr without blocking (console.h). */
#include "launcher/stdio/console.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void console_try(const char *fmt, ...)
{
    char line[1024]; /* below PIPE_BUF, so that a writable pipe accepts all of it */
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
        return;
    ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
    (void)ignored;
}
