/* The output of the workers: pipes in, console and per-rank files out.
 *
 *     pipe -> lines.c -> log_console.c (log_collapse.c, log_prefix.c) -> sink.c -> stdout, stderr
 *          -> logfile.c -> files, named by log_layout.c
 *
 *   - console: whole lines with a prefix, stdout to stdout, stderr to stderr (log_console.h), and what stands for a
 *     second (partial.h);
 *   - files, where a folder is given: the bytes as they came (log_layout.h, logfile.h); earlier rounds are never
 *     touched;
 *   - which stream goes where: log_conf_routes();
 *   - the last lines of every stderr are kept for the failure report.
 * A console that does not read slows down the workers it is to show (their pipes fill), as in any pipeline; it never
 * stops crun itself. */
#ifndef CRUN_LAUNCHER_LOGMUX_H
#define CRUN_LAUNCHER_LOGMUX_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/output/lines.h"

struct err;
struct log_conf;
struct log_layout;
struct logmux;

struct logmux_options { /* all of it is borrowed */
    const struct log_conf *conf;
    struct log_layout *layout;
    const char *role, *host, *run_id;
    int max_workers;
};

struct logmux_round {
    uint64_t round;
    int restarts, rank_base, role_base, group_rank;
};

int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e);

/* A new round: its folder is made. Streams of the round before must be closed (logmux_end_round). */
int logmux_begin_round(struct logmux *m, const struct logmux_round *round, struct err *e);

/* Make the pipes of a worker; ret_fds (stdout, stderr) are the worker's ends: closed by the caller after the spawn. */
int logmux_add(struct logmux *m, int local, int rank, int ret_fds[2], struct err *e);

/* All writers are dead: read what the pipes still hold, pass on unfinished lines, close. Last lines are kept until the
 * next round. */
void logmux_end_round(struct logmux *m);

const struct lines_tail *logmux_tail(const struct logmux *m, int local); /* of its stderr */

struct logmux_figures { /* since the beginning */
    uint64_t bytes[2];  /* read from the workers: stdout, stderr */
    uint64_t lost;      /* bytes that no log file took */
    uint64_t left_out;  /* lines: --log-rate */
    uint64_t dropped;   /* bytes that the console did not take */
};
void logmux_figures(const struct logmux *m, struct logmux_figures *ret);

/* crun's own line on stderr ("crun: ..."), in order with the workers' lines. */
void logmux_print(struct logmux *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void logmux_print_text(struct logmux *m, const char *text); /* as it is, newlines included */
void logmux_print_bytes(struct logmux *m, const char *text, size_t n);

/* Write everything out, waiting up to timeout_ms for a console that does not read (a pager), or until one of stop_fds
 * is readable (-1: none). */
void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2]);
void logmux_destroy(struct logmux *m);

#endif
