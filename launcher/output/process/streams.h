/* The output of the workers, in the output process: pipes in, console and per-rank files out.
 *
 *     pipe -> lines.c -> log_console.c (log_prefix.c) -> sink.c -> stdout, stderr
 *          -> file_thread.c -> logfile.c -> files, named by log_layout.c
 *
 *   - console: whole lines with a prefix, stdout to stdout, stderr to stderr (log_console.h), and lines that stay
 *     unfinished for a second (partial.h);
 *   - files, if a folder is given: the bytes unchanged (log_layout.h, logfile.h); files of earlier rounds are never
 *     touched;
 *   - which stream goes where: log_conf_routes();
 *   - the last lines of every stderr are kept for the failure report.
 * A console that does not read slows down the workers that it shows (their pipes fill), as in any pipeline. A disk
 * that is slower than a worker slows that worker down, too, as long as it makes progress; a disk that has made none
 * for STREAMS_STILL_MS slows down no worker (file_thread.h). */
#ifndef CRUN_LAUNCHER_STREAMS_H
#define CRUN_LAUNCHER_STREAMS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/output/lines.h"

#define STREAMS_STILL_MS 250

struct err;
struct log_conf;
struct log_console;
struct log_layout;
struct output_page;
struct output_round;
struct streams;

struct streams_options { /* all of it is borrowed */
    const struct log_conf *conf;
    const char *role, *host, *run_id;
    int max_workers;
    struct output_page *page; /* takes the figures */
    /* The files of a round have been opened: rc 0, or ERR_OUTPUT. */
    void (*opened)(void *arg, uint64_t id, int rc, const char *text);
    void (*moved)(void *arg); /* a console or a file took something */
    void *arg;
};

int streams_create(struct streams **ret, uv_loop_t *loop, const struct streams_options *o, struct err *e);

/* Make the root folder, which must be new; then opened(0) is called. */
void streams_make_root(struct streams *m, const struct log_layout *layout);

/* Begin round `id` (1, 2, ...); the one before must be ended. */
void streams_begin_round(struct streams *m, uint64_t id, const struct output_round *round);
/* Add the pipes of the next worker, read ends of stdout and stderr; they belong to this module from now on. */
int streams_add(struct streams *m, int local, const int fds[2], struct err *e);
/* All pipes have been added: make the folders, remove error records of an earlier job, open the files; then opened()
 * is called. */
void streams_open_files(struct streams *m);
/* All writers are dead, or nobody is left to report that: read what the pipes still hold, pass on unfinished lines,
 * close. */
void streams_end_round(struct streams *m);
uint64_t streams_round(const struct streams *m); /* id of the current one, 0: none */
bool streams_at_end(const struct streams *m);    /* every pipe is at end-of-file */

/* Copy the last lines of a dead worker's stderr, as lines_tail_copy(). Returns the number of bytes. */
size_t streams_copy_tail(struct streams *m, int local, char out[LINES_TAIL_BYTES]);

struct file_thread *streams_files(struct streams *m);
int *streams_root_fd(struct streams *m); /* for streams_files() alone: as of round_files_open_root() */
struct log_console *streams_console(struct streams *m);
void streams_print(struct streams *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
