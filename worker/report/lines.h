/* Complete lines of a text file with their places in it: what cutting a log back needs. */
#ifndef CRUN_WORKER_REPORT_LINES_H
#define CRUN_WORKER_REPORT_LINES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct err;

#define LINE_MAX_BYTES 65536

struct lines {
    FILE *file;
    const char *path;          /* borrowed */
    int64_t begin, end;        /* of the current line, its newline included */
    bool torn;                 /* at the end: what lies from `end` on has no newline */
    char text[LINE_MAX_BYTES]; /* the current line without its newline */
};

/* 0; -errno; ERR_CORRUPT if it is no regular file. */
int lines_open(struct lines *l, const char *path, struct err *e);
/* 1: a line; 0: no further complete line; ERR_CORRUPT for a line longer than LINE_MAX_BYTES. */
int lines_next(struct lines *l, struct err *e);
void lines_close(struct lines *l);

/* write(2) until all is written. */
int lines_write(int fd, const char *data, size_t n, const char *path, struct err *e);

#endif
