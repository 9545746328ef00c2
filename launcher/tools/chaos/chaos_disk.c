/* Faults of disks: fills a file system, flips a bit of a file (chaos_disk.h). */
#include "launcher/tools/chaos/chaos_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/err.h"

#define LEAST_BYTES 4096
#define FILES_MAX 100000

/* --- full */

int chaos_disk_fill(const char *folder, int *ret_fd, int64_t *ret_bytes, struct err *e)
{
    struct statvfs fs;
    const int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, errno, "folder %s: a file without a name (O_TMPFILE)", folder);
    int64_t at = 0, chunk = fstatvfs(fd, &fs) == 0 ? (int64_t)(fs.f_bfree * fs.f_frsize) : 0;
    while (chunk >= LEAST_BYTES) {
        if (fallocate(fd, 0, at, chunk) == 0)
            at += chunk;
        else if (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)
            chunk /= 2;
        else if (errno != EINTR) {
            const int why = errno;
            close(fd);
            return err_errno(e, why, "folder %s: taking its room (fallocate)", folder);
        }
    }
    *ret_fd = fd;
    *ret_bytes = at;
    return 0;
}

/* --- a bit */

struct files {
    char **v;
    size_t n, cap;
};

static int add_file(struct files *f, const char *path)
{
    if (f->n == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 64;
        char **v = realloc(f->v, cap * sizeof *v);
        if (!v)
            return -ENOMEM;
        f->v = v;
        f->cap = cap;
    }
    f->v[f->n] = strdup(path);
    return f->v[f->n] ? (f->n++, 0) : -ENOMEM;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_files(const char *folder, const char *pattern, struct files *ret, struct err *e)
{
    char *roots[] = {(char *)folder, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (!tree)
        return err_errno(e, errno, "folder %s", folder);
    int rc = 0;
    for (FTSENT *f; rc == 0 && (f = fts_read(tree));) {
        const char *below = f->fts_path + strlen(folder);
        below += strspn(below, "/");
        if (f->fts_info == FTS_F && f->fts_statp->st_size > 0 && ret->n < FILES_MAX &&
            (fnmatch(pattern, below, 0) == 0 || fnmatch(pattern, f->fts_name, 0) == 0))
            rc = add_file(ret, f->fts_path);
    }
    fts_close(tree);
    if (ret->n > 0)
        qsort(ret->v, ret->n, sizeof *ret->v, by_name);
    return rc < 0 ? err_set(e, rc, "no memory for the files of %s", folder) : 0;
}

static int turn_bit(const char *path, uint64_t pick, char *outcome, size_t cap, struct err *e)
{
    unsigned char byte;
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_errno(e, errno, "%s", path);
    const off_t size = lseek(fd, 0, SEEK_END), at = size > 0 ? (off_t)(pick % (uint64_t)size) : 0;
    const unsigned bit = (unsigned)(pick >> 61);
    int rc = size > 0 && pread(fd, &byte, 1, at) == 1 ? 0 : -ENOENT;
    byte ^= (unsigned char)(1u << bit);
    if (rc == 0 && pwrite(fd, &byte, 1, at) != 1)
        rc = err_errno(e, errno, "%s", path);
    close(fd);
    if (rc == 0)
        snprintf(outcome, cap, "%s byte %lld bit %u", path, (long long)at, bit);
    return rc;
}

int chaos_disk_corrupt(const char *folder, const char *pattern, uint64_t pick, char *outcome, size_t cap, struct err *e)
{
    struct files files = {0};
    int rc = list_files(folder, pattern, &files, e);
    if (rc == 0)
        rc = files.n == 0 ? -ENOENT : turn_bit(files.v[pick % files.n], pick / files.n, outcome, cap, e);
    for (size_t i = 0; i < files.n; i++)
        free(files.v[i]);
    free(files.v);
    return rc;
}
