/* Log lines: `time level run node rank module: message key=value`, to stderr, one write(2) a line. A message may
 * contain names that a peer chose: control characters become '?', so that no peer can forge a line. Thread-safe.
 * This is the only mutable state at file scope of the programs; libcrun, whose API has no handle, has its own
 * (common/crun/crun.c). */
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

/* Set level and prefix. prefix: "run=j1 node=0 rank=3" or "", copied. Default: LOG_WARN, no prefix. May be called
 * again, by the same thread, while others log. A shared module that a program loads contains its own copy of this
 * file: the program calls the copy's log_init() as well. */
void log_init(enum log_level max, const char *prefix);
enum log_level log_level(void);
void log_prefix(char out[LOG_PREFIX_MAX]); /* the prefix that log_init() got, cut if it is long */

/* Lines go to out() instead of stderr, newline included; NULL: to stderr again. For a program that must not block on
 * stderr and has one thread that logs. out() must not log. */
void log_redirect(void (*out)(void *arg, const char *line, size_t n), void *arg);

void log_line(enum log_level level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_error(module, ...) log_line(LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...) log_line(LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...) log_line(LOG_INFO, module, __VA_ARGS__)
#define log_debug(module, ...) log_line(LOG_DEBUG, module, __VA_ARGS__)

#endif
