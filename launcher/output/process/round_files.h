/* Makes the folders and files of a round, on the files' thread. */
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
    uint64_t id; /* number of the round; 0: only make the root folder, which must be new */
    int workers, rank_base;
    int *root_fd; /* as of round_files_open_root() */
    /* Called on the loop's thread: rc 0, or ERR_OUTPUT and a sentence. */
    void (*opened)(void *arg, uint64_t id, int rc, const char *text);
    void *arg;
};

/* Make the folders; remove error records that an earlier job left under the names of ours, unless workers run
 * already (output_page.launched); open the files. The files may be written to, and closed, at once. */
void round_files_open(const struct round_files *what, struct queued_file *const *files, int n);

/* On the files' thread, which owns *root_fd: -1, or a descriptor of the root folder. Opens it once; if somebody has
 * removed the folder since, another one takes its place under the same descriptor. ERR_OUTPUT. */
int round_files_open_root(const struct log_layout *layout, int *root_fd, struct err *e);

#endif
