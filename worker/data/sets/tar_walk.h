/* The members of a tar file, in order: headers are read with pread(2), what lies between them is passed over. ustar,
 * GNU's long names and sizes, pax. Private to worker/data.
 *
 *   tar_open() -> tar_next(): 1 and a member, 0 at the end -> tar_close(), or keep .fd and read there */
#ifndef CRUN_WORKER_DATA_TAR_WALK_H
#define CRUN_WORKER_DATA_TAR_WALK_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct tar {
    const char *path; /* borrowed, for messages */
    int fd;
    uint64_t size, at; /* of the file; of the next header */
    char name[PATH_MAX];
    uint8_t page[4096]; /* of the file, from page_at on */
    uint64_t page_at;
    size_t page_n;
};

struct tar_member {        /* a regular file */
    const char *name;      /* without ./ in front; until the next tar_next() */
    uint64_t offset, size; /* of its bytes: within the tar */
};

/* ERR_DATA: no regular file, or a compressed one; -errno: it cannot be opened. */
int tar_open(struct tar *t, const char *path, struct err *e);
/* ERR_DATA: one sentence: the tar is cut short or damaged, and at which byte. -EIO. */
int tar_next(struct tar *t, struct tar_member *ret, struct err *e);
/* The bytes of a member, cut to cap - 1, as a text. */
int tar_text(struct tar *t, const struct tar_member *m, char *out, size_t cap, struct err *e);
void tar_close(struct tar *t);

/* n bytes at `offset` of a descriptor. ERR_DATA: it ends before. Any thread. */
int tar_pread(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *e);

#endif
