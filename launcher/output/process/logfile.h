/* One log file: appended to, rotated, capped, and whole lines only when the disk is full.
 *
 *   - rotation: if the next line would make the file too long, it is renamed to NAME.1, NAME.2, ... (the highest is the
 *     newest) and begun anew; beyond rotate_keep the oldest are removed, but only those that this logfile made;
 *   - cap: beyond max_bytes in total, lines are dropped, and the last line of the file says how many bytes;
 *   - full disk (or quota, or a failing device): the part of a line that was written is removed again, so that no line
 *     is torn. Writing is tried again at the beginning of a later line, at most once a second, and a line in the file
 *     says how many bytes are missing there;
 *   - a FIFO or a device never blocks: bytes that it does not accept at once are dropped in the same way. */
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
    int fd;     /* -1: not open; a struct of zeroes with fd -1 is a closed file */
    char *path; /* whole, for people */
    int at;     /* descriptor of the folder that .name is below; the caller owns it; AT_FDCWD: the current folder */
    const char *name; /* the end of .path */
    struct logfile_limits limits;
    int64_t size, line_at;   /* bytes of the current file; offset at which its last line begins */
    int64_t total;           /* written in all */
    int rotated, next;       /* number of files that we renamed; number of the next one, 0: not known yet */
    bool capped, skipping;   /* until the line ends */
    uint64_t left_out, lost; /* bytes dropped because of the cap; because of errors, in total */
    uint64_t gap;            /* bytes missing at the present end of the file */
    int error;               /* errno of the last failure; 0: none */
    int unreported;          /* -errno of the first error, until logfile_write() has returned it */
    int64_t retry_ms;
};

/* Open a log file. at: descriptor of the folder whose path is the first at_bytes of path, slash included; it must
 * stay open. If the file is a link, it is not followed. ERR_OUTPUT. */
int logfile_open(struct logfile *f, int at, size_t at_bytes, const char *path, const struct logfile_limits *limits,
                 struct err *e);
/* Returns 0; -errno the first time that something cannot be written. A closed file ignores everything. */
int logfile_write(struct logfile *f, const char *data, size_t n);
/* So many bytes, whole lines, were dropped before they came here: a line in the file says so, as after a full disk. */
void logfile_skip(struct logfile *f, uint64_t bytes);
void logfile_close(struct logfile *f);

#endif
