/* The event log of the agent (observe/event_log.h), written on a thread of its own (file_thread.h).
 *
 *   - a line is one write(2) to a file opened with O_APPEND: lines of several agents on one machine do not mix; over
 *     NFS they may, so use a file for each node in a shared folder;
 *   - a line that an earlier crun left unfinished (killed while writing, a full disk) is ended first, so that later
 *     lines can be parsed;
 *   - a full disk is logged once, and the job goes on; the next line that is written says how many are missing
 *     ("lost"), including lines that the agent dropped (gaps in the numbers);
 *   - the page holds the number of the newest line written, so that a new output process goes on from there. */
#ifndef CRUN_LAUNCHER_EVENT_FILE_H
#define CRUN_LAUNCHER_EVENT_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct err;
struct event_file;
struct file_thread;
struct output_page;

struct event_file_options {
    const char *path; /* borrowed */
    struct output_page *page;
    void (*opened)(void *arg, int rc, const char *text); /* 0, or ERR_OUTPUT and a sentence */
    void (*print)(void *arg, const char *text);          /* a line for people */
    void (*moved)(void *arg);                            /* something was done */
    void *arg;
};

int event_file_create(struct event_file **ret, uv_loop_t *loop, const struct event_file_options *o, struct err *e);
void event_file_add(struct event_file *f, uint64_t number, const char *line, size_t n); /* its newline included */
struct file_thread *event_file_thread(struct event_file *f);
uint64_t event_file_waiting(const struct event_file *f); /* lines */

#endif
