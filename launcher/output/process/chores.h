/* What the output process does for the agent with files that are no log files: the temporary folder, error records,
 * core files, reports; and, for as long as it lives, a look for the preemption file once a second, as inotify does not
 * see what other hosts do. On two threads (file_thread.h), as any of them may lie on a disk that hangs. */
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
    const struct log_layout *logs; /* borrowed; files below its root are written by log_files */
    struct file_thread *log_files;
    int *log_root_fd; /* theirs, as of round_files_open_root() */
    void (*tell)(void *arg, const struct output_head *head, const void *body, size_t n); /* the agent */
    void (*print)(void *arg, const char *text);                                          /* a line for people */
    void (*moved)(void *arg);                                                            /* something was done */
    void (*noticed)(void *arg); /* once: the preemption file is there */
    void *arg;
};

/* The temporary folder is made from now on; page->scratch says what became of it. */
int chores_create(struct chores **ret, uv_loop_t *loop, const struct chores_options *o, struct err *e);

/* OUTPUT_OPENED of this round, once that is known. */
void chores_tell_opened(struct chores *c, uint64_t round);
/* OUTPUT_RECORD, the answer to this OUTPUT_TELL. */
void chores_tell_record(struct chores *c, const struct output_message *m);
/* OUTPUT_WRITE; after the last part OUTPUT_WROTE. False: no memory. */
bool chores_write_part(struct chores *c, const struct output_message *m);
void chores_end(struct chores *c); /* nobody needs the temporary folder any more */

struct file_thread *chores_thread(struct chores *c);

#endif
