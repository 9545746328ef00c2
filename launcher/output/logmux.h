/* The agent's side of the workers' output: makes their pipes, and tells the output process what to do with them
 * (output_process.h). Only logmux_create() and, at the end, logmux_flush() wait.
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

/* ms for folders and files to be made; after that workers start without waiting for them. */
#define LOGMUX_OPEN_MS 1000

struct logmux_options {       /* all of it is borrowed */
    int fd;                   /* to the output process */
    struct output_page *page; /* shared with it */
    const struct log_conf *conf;
    struct log_layout *layout;
    const char *role, *host, *run_id;
    int max_workers;
    const char *scratch;     /* temporary folder to be made, and removed at the end; NULL: none */
    const char *event_log;   /* file; NULL: none */
    const char *notice_file; /* is looked for; NULL: none */
    /* called when the preemption file exists; may come again after the output process was replaced */
    void (*noticed)(void *arg);
    void *arg;
};

/* Create the agent's side. If the root folder has a random name (log_layout.h), it is made now, and the event log is
 * opened; each waits LOGMUX_OPEN_MS at most. ERR_OUTPUT. */
int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e);

/* If the output process is up already, send it its setup now, otherwise the loop does it later. It then makes the
 * temporary folder while the agent is still being set up. */
void logmux_greet(struct logmux *m);

void logmux_begin_round(struct logmux *m, const struct logmux_round *round);

/* Call instead of ending a round and beginning the next: pipes and files stay in use, under the names of that round. */
void logmux_go_on(struct logmux *m);

/* Make the pipes of the next worker; ret_fds (stdout, stderr) are the worker's ends; the caller closes them after
 * the spawn. */
int logmux_add(struct logmux *m, int local, int ret_fds[2], struct err *e);

/* A duplicate of our end of a worker's pty; the caller closes it. < 0: it has none, or no descriptor is left. */
int logmux_pty(const struct logmux *m, int local);

/* All workers have been added: open their files. False: there is nothing to wait for. Else opened() is called with
 * rc 0, or ERR_OUTPUT and a sentence; not before this returns, nor after logmux_end_round(). */
bool logmux_open_files(struct logmux *m, void (*opened)(void *arg, int rc, const char *text), void *arg);
/* From now on workers run: none of their files may be removed. */
void logmux_note_launch(struct logmux *m);

/* All writers are dead: read what the pipes still hold, in the background. */
void logmux_end_round(struct logmux *m);

/* Ask for what a failed worker of this round left: its last lines and its error record. Ask as soon as it has
 * failed; look at the answer later. Answers are kept until the next round. record, core: paths of its error record
 * and core file; NULL: none. */
void logmux_ask(struct logmux *m, int local, const char *record, const char *core);
struct logmux_words {
    bool has_tail, has_record; /* the answer came */
    bool found_record, found_core;
    char *core;             /* the path of the core file asked for; NULL: none */
    struct lines_tail tail; /* of its stderr */
    struct failure_record record;
};
const struct logmux_words *logmux_words(const struct logmux *m, int local); /* NULL: not asked for */

/* Write a small file, replacing any of that name; errors are printed. */
void logmux_write_file(struct logmux *m, const char *path, const char *text, size_t n);
/* The same for a file below the root of the logs: no link is followed, and whatever has that name is replaced. */
void logmux_write_log(struct logmux *m, const char *path, const char *text, size_t n);

/* Add a line to the event log, its newline included; NULL: a line that could not be made, so its number is skipped. */
void logmux_add_event(struct logmux *m, const char *line, size_t n);

int logmux_pid(const struct logmux *m);          /* pid of the output process that answers, 0: none */
bool logmux_has_scratch(const struct logmux *m); /* the temporary folder exists, or may still be made */
bool logmux_has_answers(const struct logmux *m); /* all questions are answered, and all files are written */

struct logmux_figures { /* since the beginning */
    uint64_t bytes[2];  /* read from the workers: stdout, stderr */
    uint64_t lost;      /* bytes that no log file took */
    uint64_t left_out;  /* lines: --log-rate */
    uint64_t dropped;   /* bytes that the console did not take */
};
void logmux_figures(const struct logmux *m, struct logmux_figures *ret);

/* Print crun's own line on stderr ("crun: ..."), in order with the workers' lines. */
void logmux_print(struct logmux *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void logmux_print_text(struct logmux *m, const char *text); /* as it is, newlines included */
void logmux_print_bytes(struct logmux *m, const char *text, size_t n);

/* Have everything written out. Waits up to timeout_ms for a console that does not read (a pager), or until one of
 * stop_fds is readable (-1: none); for a disk see OUTPUT_STILL_MS. The loop does not run meanwhile. */
void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2]);
void logmux_destroy(struct logmux *m); /* NULL allowed; the loop must turn once more afterwards */

#endif
