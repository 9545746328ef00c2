/* The folders and files of a round, made on the thread of the files. */
#ifndef CRUN_LAUNCHER_ROUND_FILES_H
#define CRUN_LAUNCHER_ROUND_FILES_H

#include <stdint.h>

#include "launcher/output/log_layout.h"

struct err;
struct file_thread;
struct output_page;
struct queued_file;

struct round_files {
    struct file_thread *thread;
    const struct output_page *page;
    struct log_layout layout;
    uint64_t id; /* of the round; 0: the root folder alone is made, and must not be there */
    int workers, rank_base;
    int *root_fd; /* as of round_files_open_root() */
    /* On the loop's thread: rc 0, or ERR_OUTPUT and a sentence. */
    void (*opened)(void *arg, uint64_t id, int rc, const char *text);
    void *arg;
};

/* Make the folders, remove the error records that an earlier job left where ours will be, unless workers run already
 * (output_page.launched), and open the files. These may be written to at once, and closed. */
void round_files_open(const struct round_files *what, struct queued_file *const *files, int n);

/* On the thread of the files, whose *root_fd is: -1, or a descriptor of the root folder. It is opened once; where
 * somebody removed that folder since, another one takes its place under the same number. ERR_OUTPUT. */
int round_files_open_root(const struct log_layout *layout, int *root_fd, struct err *e);

#endif
