/* The agent's side of the workers' output: makes their pipes, and tells the output process what becomes of them
 * (output_process.h). Nothing here waits but logmux_create(), where it says so, and logmux_flush(), at the end.
 *
 * A round: logmux_begin_round(), logmux_add() for each worker, logmux_open_files(), the workers are started,
 * logmux_end_round() once all are dead; the next one may begin at once. */
#ifndef CRUN_LAUNCHER_LOGMUX_H
#define CRUN_LAUNCHER_LOGMUX_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/output/lines.h"
#include "launcher/output/output_wire.h"

struct err;
struct logmux;

/* Folders and files are given so long to be made: then workers start without waiting for them. */
#define LOGMUX_OPEN_MS 1000

struct logmux_options {       /* all of it is borrowed */
    int fd;                   /* to the output process */
    struct output_page *page; /* shared with it */
    const struct log_conf *conf;
    struct log_layout *layout;
    const char *role, *host, *run_id;
    int max_workers;
    const char *scratch;        /* temporary folder that is made, and removed at the end; NULL: none */
    const char *event_log;      /* file; NULL: none */
    const char *notice_file;    /* is looked for; NULL: none */
    void (*noticed)(void *arg); /* it is there; may come again where another output process takes over */
    void *arg;
};

/* Where the root folder has a random name (log_layout.h) it is made now, and the event log is opened, in LOGMUX_OPEN_MS
 * at most each. ERR_OUTPUT. */
int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e);

/* Where the output process has come up by now, tell it what to do; else the loop does, later. It makes the temporary
 * folder then, while the agent is not ready yet. */
void logmux_greet(struct logmux *m);

void logmux_begin_round(struct logmux *m, const struct logmux_round *round);

/* Instead of a round's end and the next one's beginning: its pipes and files go on, in the names of that round. */
void logmux_go_on(struct logmux *m);

/* Make the pipes of the next worker; ret_fds (stdout, stderr) are the worker's ends: closed by the caller after the
 * spawn. */
int logmux_add(struct logmux *m, int local, int ret_fds[2], struct err *e);

/* Our end of the terminal of a worker that has one, once more; the caller's to close. < 0: there is none, or no
 * descriptor left. */
int logmux_pty(const struct logmux *m, int local);

/* All workers are added. False: there is nothing to wait for. Else opened() is called: rc 0, or ERR_OUTPUT and a
 * sentence; not before this returns, nor after logmux_end_round(). */
bool logmux_open_files(struct logmux *m, void (*opened)(void *arg, int rc, const char *text), void *arg);
/* From now on workers run: nothing of theirs may be removed. */
void logmux_note_launch(struct logmux *m);

/* All writers are dead: what the pipes still hold is read, by and by. */
void logmux_end_round(struct logmux *m);

/* The last words of a worker of this round that has failed: ask at once, as soon as it has; look later. Words are kept
 * until the next round. record, core: paths of its error record and of its core; NULL: there is none. */
void logmux_ask(struct logmux *m, int local, const char *record, const char *core);
struct logmux_words {
    bool has_tail, has_record; /* the answer came */
    bool found_record, found_core;
    char *core;             /* the path that was asked for; NULL: none */
    struct lines_tail tail; /* of its stderr */
    struct failure_record record;
};
const struct logmux_words *logmux_words(const struct logmux *m, int local); /* NULL: not asked for */

/* Write a small file whole, in place of any of that name; what goes wrong is printed. */
void logmux_write_file(struct logmux *m, const char *path, const char *text, size_t n);
/* The same, but below the root of the logs no link is followed, and what is there is replaced, whatever it is. */
void logmux_write_log(struct logmux *m, const char *path, const char *text, size_t n);

/* A line of the event log, its newline included; NULL: one that could not be made. */
void logmux_add_event(struct logmux *m, const char *line, size_t n);

int logmux_pid(const struct logmux *m);          /* of the output process that answers, 0: there is none */
bool logmux_has_scratch(const struct logmux *m); /* the temporary folder is there, or may come to be */
bool logmux_has_answers(const struct logmux *m); /* to all that was asked, and files are written */

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

/* Have everything written out, waiting up to timeout_ms for a console that does not read (a pager), or until one of
 * stop_fds is readable (-1: none); for a disk see OUTPUT_STILL_MS. The loop does not turn meanwhile. */
void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2]);
void logmux_destroy(struct logmux *m); /* NULL allowed; the loop turns once more after it */

#endif
