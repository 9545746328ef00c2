/* Files, other than log files, that the output process handles for the agent: the temporary folder, error records,
 * core files, reports. It also looks for the preemption file once a second, because inotify does not see what other
 * hosts do. All this runs on two threads (file_thread.h), because each file may be on a disk that hangs. */
#ifndef CRUN_LAUNCHER_CHORES_H
#define CRUN_LAUNCHER_CHORES_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/output/output_wire.h"

struct chores;
struct err;
struct file_thread;

struct chores_options {
    struct output_page *page;
    const char *scratch;           /* path of the temporary folder, borrowed; NULL: none */
    const char *notice_file;       /* of --preemption-file, borrowed; NULL: none */
    const struct log_layout *logs; /* borrowed; log_files writes files below its root */
    struct file_thread *log_files;
    int *log_root_fd; /* theirs, as of round_files_open_root() */
    void (*tell)(void *arg, const struct output_head *head, const void *body, size_t n); /* the agent */
    void (*print)(void *arg, const char *text);                                          /* a line for people */
    void (*moved)(void *arg);                                                            /* something was done */
    void (*noticed)(void *arg); /* once: the preemption file is there */
    void *arg;
};

/* Create, and begin to make the temporary folder; page->scratch tells how that ended. */
int chores_create(struct chores **ret, uv_loop_t *loop, const struct chores_options *o, struct err *e);

/* Send OUTPUT_OPENED for this round, once that is known. */
void chores_tell_opened(struct chores *c, uint64_t round);
/* OUTPUT_RECORD, the answer to this OUTPUT_TELL. */
void chores_tell_record(struct chores *c, const struct output_message *m);
/* Handle OUTPUT_WRITE; send OUTPUT_WROTE after the last part. False: no memory. */
bool chores_write_part(struct chores *c, const struct output_message *m);
void chores_end(struct chores *c); /* the temporary folder is not needed any more */

struct file_thread *chores_thread(struct chores *c);

#endif
