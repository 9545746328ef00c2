/* Whole files through descriptors, and small ones, as those of /proc and /sys, by their paths. */
#ifndef CRUN_COMMON_FILE_H
#define CRUN_COMMON_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct buf;
struct err;

/* Open a file whose path a user gave, for reading. What is no regular file is refused, not waited for: the writer of a
 * FIFO may never come. A folder is opened: read(2) refuses it. Returns the descriptor, which the caller closes; -errno
 * of open(2); code, if it is no regular file. Never blocks, but for a disk that does not answer. */
int file_open_regular(const char *path, int code, struct err *e);
/* `name` in the folder open at `at`, with more flags of open(2); `path` is what messages call it. */
int file_open_regular_at(int at, const char *name, int flags, const char *path, int code, struct err *e);

/* The same as a stream, which the caller closes. */
int file_stream_regular(FILE **ret, const char *path, int code, struct err *e);

/* Append what fd, which stands at its beginning, holds up to its end. 0; -E2BIG beyond out->max; -ENOMEM; -errno of
 * read(2). */
int file_read_all(int fd, struct buf *out);

/* All n bytes. 0 or -errno of write(2), and then some of them may be there. */
int file_write_all(int fd, const void *data, size_t n);

/* The first bytes, at most cap - 1, of the file whose path is printed by `path`, as a text: one read(2), no more. Their
 * number; -errno, and then out is "". */
int file_read_text(char *out, size_t cap, const char *path, ...) __attribute__((format(printf, 3, 4)));

/* The same of its first line, without the newline. */
int file_read_line(char *out, size_t cap, const char *path, ...) __attribute__((format(printf, 3, 4)));

/* The number that the file begins with; `otherwise` if there is none. */
int file_read_int(int otherwise, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* A disk that hangs holds whoever asks it. So whoever watches this process from outside can read in a page of theirs at
 * which path it is: set before a file is looked at that a user named, and NULL once that is past. Without such a page
 * nothing happens. */
#define FILE_AT_MAX 256
struct file_at {
    _Atomic int64_t since_ms; /* clock_ms(); 0: at none */
    char path[FILE_AT_MAX];   /* "": at none */
};
void file_at_share(struct file_at *page);
void file_at(const char *path);

#endif
