/* One log file: appended to, rotated, capped, and whole lines only when the disk is full.
 *
 *   - rotation: a file that the next line would make too long is renamed to NAME.1, NAME.2, ... (the highest is the
 *     youngest) and begun anew; of those that this logfile made the oldest are removed beyond rotate_keep, files of
 *     others never;
 *   - cap: beyond max_bytes in all, lines are left out, and the last line of the file says how many bytes;
 *   - full disk (or quota, or a failing device): the part of a line that still went in is taken back, so that no line
 *     is torn; at the beginning of a later line it is tried again, at most once a second, and a line in the file says
 *     how much is missing there;
 *   - a FIFO or a device never blocks: what it does not take at once is missing likewise. */
#ifndef CRUN_LAUNCHER_LOGFILE_H
#define CRUN_LAUNCHER_LOGFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct logfile_limits { /* bytes, numbers of files; 0: none */
    int64_t rotate_bytes, rotate_keep, max_bytes;
};

struct logfile {
    int fd;           /* -1: not open; all-zero but this is a closed file */
    char *path;       /* whole, for people */
    int at;           /* the folder that .name is below, the caller's; AT_FDCWD: the current one */
    const char *name; /* the end of .path */
    struct logfile_limits limits;
    int64_t size, line_at;   /* of the current file; where its last line begins */
    int64_t total;           /* written in all */
    int rotated, next;       /* files that we renamed; the number of the next one, 0: not yet known */
    bool capped, skipping;   /* until the line ends */
    uint64_t left_out, lost; /* bytes: by the cap; by errors, in all */
    uint64_t gap;            /* bytes missing at the end of the file now */
    int error;               /* errno of the last failure; 0: none */
    int unreported;          /* -errno of the first one, until logfile_write() returns it */
    int64_t retry_ms;
};

/* at: a descriptor of the folder whose path are the first at_bytes of path, slash included; it must stay open. A link
 * in the place of the file is not followed. ERR_OUTPUT. */
int logfile_open(struct logfile *f, int at, size_t at_bytes, const char *path, const struct logfile_limits *limits,
                 struct err *e);
/* Returns 0; -errno the first time that something could not be written. A closed file takes everything in silence. */
int logfile_write(struct logfile *f, const char *data, size_t n);
/* That many bytes, whole lines, are not there to be written: a line says so, as after a full disk. */
void logfile_skip(struct logfile *f, uint64_t bytes);
void logfile_close(struct logfile *f);

#endif
