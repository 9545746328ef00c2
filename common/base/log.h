/* Log lines: `time level run node rank module: message key=value`, to stderr, one write(2) a line.
 * What a peer has named itself may stand in a message: control characters become '?', so that nobody writes lines of
 * his own. Thread-safe. The only file-scope mutable state of the programs; libcrun, whose API has no handle, has its
 * own (common/crun/crun.c). */
#ifndef CRUN_COMMON_LOG_H
#define CRUN_COMMON_LOG_H

#include <stddef.h>

#include "common/base/choice.h"

#define LOG_LEVELS(X)                                                                                                  \
    X(LOG_ERROR, "error") /* the program cannot do what was asked */                                                   \
    X(LOG_WARN, "warn")   /* it goes on, but somebody should look */                                                   \
    X(LOG_INFO, "info")   /* what an operator wants to see */                                                          \
    X(LOG_DEBUG, "debug") /* what a developer wants to see */

enum log_level { LOG_LEVELS(CHOICE_ID) };

#define LOG_PREFIX_MAX 128 /* with its NUL */

/* A module that a program loads has a copy of this file of its own, and a log_init() that the program calls.
 * prefix: "run=j1 node=0 rank=3" or "", copied. Default: LOG_WARN, no prefix. Again by the same thread, while others
 * log. */
void log_init(enum log_level max, const char *prefix);
enum log_level log_level(void);
void log_prefix(char out[LOG_PREFIX_MAX]); /* as log_init() was given it, or its beginning */

/* Lines go to out() instead of stderr, newline included; NULL: to stderr again. For a program that must not block
 * there; it has one thread that logs. out() must not log. */
void log_redirect(void (*out)(void *arg, const char *line, size_t n), void *arg);

void log_line(enum log_level level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_error(module, ...) log_line(LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...) log_line(LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...) log_line(LOG_INFO, module, __VA_ARGS__)
#define log_debug(module, ...) log_line(LOG_DEBUG, module, __VA_ARGS__)

#endif
