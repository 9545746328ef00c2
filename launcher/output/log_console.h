/* Writes the workers' lines to the console: prefixes, colours and rate limit, in front of the sinks. */
#ifndef CRUN_LAUNCHER_LOG_CONSOLE_H
#define CRUN_LAUNCHER_LOG_CONSOLE_H

#include <stdarg.h>
#include <stdbool.h>
#include <uv.h>

#include "common/base/buf.h"
#include "launcher/output/log_prefix.h"
#include "launcher/output/sink.h"

struct err;
struct log_conf;
struct log_console;

/* One stream of one worker. */
struct log_voice {
    bool is_err;
    struct log_prefix_values names;
    struct buf prefix;     /* rendered prefix; rendered again for each line if it contains the time */
    int64_t second, shown; /* rate limit: the current second of the loop's clock, lines shown in it */
    uint64_t left_out;     /* lines dropped since the last one shown */
};

struct log_console_options {
    const struct log_conf *conf;
    int max_workers;
    struct log_voice *(*voice)(void *arg, int local, bool is_err);
    void (*drained)(void *arg); /* see struct sink */
    void *arg;
};

int log_console_create(struct log_console **ret, uv_loop_t *loop, const struct log_console_options *o, struct err *e);
void log_console_destroy(struct log_console *c); /* the loop runs once more after it */

/* v->is_err and names are set. */
int log_voice_open(struct log_console *c, struct log_voice *v, struct err *e);
void log_voice_close(struct log_voice *v);

void log_console_line(struct log_console *c, struct log_voice *v, const char *line, size_t n);
/* Without colours; valid until the next call. */
const struct buf *log_console_prefix(struct log_console *c, struct log_voice *v);
void log_console_print(struct log_console *c, const char *text, size_t n); /* crun's own, on stderr */
/* A line of crun's own: "crun: ", the text, newline; at most 1 KiB. */
void log_console_vprint(struct log_console *c, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void log_console_end_round(struct log_console *c); /* print what is waiting; the streams (voices) stay open */
void log_console_kick(struct log_console *c);
bool log_console_full(const struct log_console *c);
uint64_t log_console_left_out(const struct log_console *c); /* number of dropped lines */
/* 0: stdout; 1: stderr, NULL if that is the same file. */
struct sink *log_console_sink(struct log_console *c, int i);
/* Print bytes, not lines: no prefix or newline is added. If they end within a line, the next line of others begins
 * on a new one. */
void log_console_as_it_comes(struct log_console *c, bool is_err, const char *bytes, size_t n);

#endif
