/* Read whole files through descriptors, and small ones, such as those of /proc and /sys, by path. */
#ifndef CRUN_COMMON_FILE_H
#define CRUN_COMMON_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct buf;
struct err;

/* Open a file whose path a user gave, for reading. Anything but a regular file is refused: the writer of a FIFO may
 * never come. A folder is opened: read(2) refuses it. Returns the descriptor, which the caller closes; -errno of
 * open(2); `code`, if it is not a regular file. Blocks only if a disk does not answer. */
int file_open_regular(const char *path, int code, struct err *e);
/* The same for `name` in the folder open at `at`, with more flags of open(2); messages call it `path`. */
int file_open_regular_at(int at, const char *name, int flags, const char *path, int code, struct err *e);

/* The same as a stdio stream, which the caller closes. */
int file_stream_regular(FILE **ret, const char *path, int code, struct err *e);

/* Append the content of fd from its start to its end. 0; -E2BIG beyond out->max; -ENOMEM; -errno of read(2). */
int file_read_all(int fd, struct buf *out);

/* Write all n bytes. 0, or -errno of write(2) after which some of them may have been written. */
int file_write_all(int fd, const void *data, size_t n);

/* Read the first bytes, at most cap - 1, of a file as text; `path` is a printf format. One read(2), no more. Returns
 * their number, or -errno with out "". */
int file_read_text(char *out, size_t cap, const char *path, ...) __attribute__((format(printf, 3, 4)));

/* The same, but only the first line, without its newline. */
int file_read_line(char *out, size_t cap, const char *path, ...) __attribute__((format(printf, 3, 4)));

/* The number that the file begins with; `otherwise` if there is none. */
int file_read_int(int otherwise, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* Make all descriptors from 3 on that are open now close-on-exec: workers must not inherit what the caller's shell had
 * open, or what a library opens. Not beside a thread that hands descriptors on to a program. */
void file_keep_fds(void);

/* Where this process is blocked by a disk that hangs. A process that watches this one from outside reads it in a
 * page that both share: the path is set before a file that a user named is touched, and cleared afterwards. Without
 * such a page nothing happens. */
#define FILE_AT_MAX 256
struct file_at {
    _Atomic int64_t since_ms; /* clock_ms(); 0: no file */
    char path[FILE_AT_MAX];   /* "": at none */
};
void file_at_share(struct file_at *page);
void file_at(const char *path);

#endif
