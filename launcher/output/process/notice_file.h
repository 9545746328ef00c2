/* The file of --preemption-file: looked for once a second, on a thread of its own (file_thread.h), as it may lie on a
 * disk that hangs, and inotify does not see what other hosts do. */
#ifndef CRUN_LAUNCHER_NOTICE_FILE_H
#define CRUN_LAUNCHER_NOTICE_FILE_H

#include <uv.h>

struct err;

struct notice_file_options {
    const char *path;                           /* borrowed */
    void (*found)(void *arg);                   /* once: it is there */
    void (*print)(void *arg, const char *text); /* a line for people */
    void *arg;
};

/* It lives as long as the process. */
int notice_file_watch(uv_loop_t *loop, const struct notice_file_options *o, struct err *e);

#endif
