/* Goes from member to member of a tar file. */
#include "worker/data/sets/tar_walk.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/first_bytes.h"

#define BLOCK 512u
#define LONGEST_NAME (PATH_MAX - 1)
#define LONGEST_PAX (1u << 20)

struct header { /* ustar's; numbers are octal text, or since GNU binary with the first bit set */
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], chksum[8], type, linkname[100], magic[6], version[2],
        uname[32], gname[32], devmajor[8], devminor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a tar's header is one block");

int tar_pread(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *e)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = pread(fd, (char *)out + at, n - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, errno, "cannot read '%s'", path);
        if (got == 0)
            return err_set(e, ERR_DATA, "'%s' ends at byte %ju", path, (uintmax_t)(offset + at));
        at += (size_t)got;
    }
    return 0;
}

static int damaged_fail(const struct tar *t, const char *what, struct err *e)
{
    return err_set(e, ERR_DATA, "the tar file '%s' is damaged: %s at byte %ju; get it again", t->path, what,
                   (uintmax_t)t->at);
}

static int cut_fail(const struct tar *t, const char *what, struct err *e)
{
    return err_set(e, ERR_DATA, "the tar file '%s' is cut short: %s, and it has %ju bytes; get it again", t->path, what,
                   (uintmax_t)t->size);
}

/* A block that is within the file. By pages: a label and the header behind it come with the one before. */
static int read_block(struct tar *t, uint64_t at, void *out, struct err *e)
{
    if (at < t->page_at || at + BLOCK > t->page_at + t->page_n) {
        const uint64_t left = t->size - at;
        t->page_n = 0;
        const size_t n = left < sizeof t->page ? (size_t)left : sizeof t->page;
        TRY(tar_pread(t->fd, t->path, t->page, n, at, e));
        t->page_at = at;
        t->page_n = n;
    }
    memcpy(out, t->page + (at - t->page_at), BLOCK);
    return 0;
}

int tar_open(struct tar *t, const char *path, struct err *e)
{
    char what[FIRST_BYTES_TEXT];
    struct stat st;
    uint8_t head[BLOCK];
    *t = (struct tar){.path = path, .fd = file_open_regular(path, ERR_DATA, e)};
    if (t->fd < 0)
        return t->fd;
    int rc = fstat(t->fd, &st) == 0 ? 0 : err_errno(e, errno, "cannot read '%s'", path);
    t->size = rc == 0 ? (uint64_t)st.st_size : 0;
    if (rc == 0 && (!S_ISREG(st.st_mode) || t->size < BLOCK))
        rc = err_set(e, ERR_DATA, "'%s' is no tar file: it %s", path,
                     S_ISREG(st.st_mode) ? "has less than 512 bytes" : "is a folder");
    if (rc == 0)
        rc = read_block(t, 0, head, e);
    if (rc == 0) {
        first_bytes_text(head, BLOCK, what);
        if (strcmp(what, "a gzip file") == 0 || strcmp(what, "an xz file") == 0 || strcmp(what, "a zstd file") == 0 ||
            strcmp(what, "a bzip2 file") == 0)
            rc = err_set(e, ERR_DATA, "'%s' is %s: samples are read out of plain tar files; unpack it", path, what);
    }
    if (rc < 0)
        tar_close(t);
    return rc;
}

void tar_close(struct tar *t)
{
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

/* -1: it is none. */
static int64_t octal(const char *p, size_t n)
{
    uint64_t v = 0;
    size_t i = 0;
    if ((unsigned char)*p & 0x80) { /* binary: of what a file can have, the last 8 of 12 bytes */
        for (i = 1; i + 8 < n; i++)
            if (p[i])
                return -1;
        for (i = n - 8; i < n; i++)
            v = v << 8 | (unsigned char)p[i];
        return *p == (char)0x80 && v <= INT64_MAX ? (int64_t)v : -1;
    }
    while (i < n && p[i] == ' ')
        i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(p[i] - '0');
    return i == n || p[i] == ' ' || p[i] == '\0' ? (int64_t)v : -1;
}

/* The sum over the block, its own field as blanks; old programs added signed bytes. */
static bool sum_is_right(const struct header *h)
{
    const unsigned char *p = (const unsigned char *)h;
    int64_t sum = 0, odd = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        const bool own = i >= offsetof(struct header, chksum) && i < offsetof(struct header, type);
        sum += own ? ' ' : p[i];
        odd += own ? ' ' : (signed char)p[i];
    }
    const int64_t said = octal(h->chksum, sizeof h->chksum);
    return said == sum || said == odd;
}

static bool is_empty(const struct header *h)
{
    static const struct header zeros;
    return memcmp(h, &zeros, BLOCK) == 0;
}

/* *ret: bytes of the data behind the header at t->at, which lie within the file. */
static int data_size(const struct tar *t, const struct header *h, int64_t *ret, struct err *e)
{
    char what[80];
    *ret = octal(h->size, sizeof h->size);
    if (*ret < 0)
        return damaged_fail(t, "a size that is no number", e);
    if (strchr("123456", h->type) && h->type) /* links, devices, folders */
        *ret = 0;
    if ((uint64_t)*ret <= t->size - t->at - BLOCK)
        return 0;
    snprintf(what, sizeof what, "a member at byte %ju claims %jd bytes", (uintmax_t)t->at, (intmax_t)*ret);
    return cut_fail(t, what, e);
}

static uint64_t padded(int64_t size)
{
    return ((uint64_t)size + BLOCK - 1) / BLOCK * BLOCK;
}

/* What is known of the next member before its header. */
struct ahead {
    bool named, sparse;
    int64_t size; /* -1: the header tells */
};

static int set_name(struct tar *t, const char *p, size_t n, struct err *e)
{
    n = strnlen(p, n);
    if (n == 0 || n > LONGEST_NAME)
        return damaged_fail(t, n ? "a name that is too long" : "a member without a name", e);
    memcpy(t->name, p, n);
    t->name[n] = '\0';
    return 0;
}

/* "25 path=some/long name\n" and so on. */
static int take_pax(struct tar *t, char *p, size_t n, struct ahead *ahead, struct err *e)
{
    for (char *end = p + n; p < end;) {
        char *key;
        const unsigned long long length = strtoull(p, &key, 10);
        if (*p < '0' || *p > '9' || length < 5 || length > (size_t)(end - p) || *key != ' ' || p[length - 1] != '\n')
            return damaged_fail(t, "a pax header that is none", e);
        key++;
        char *value = memchr(key, '=', (size_t)(p + length - key));
        p += length;
        if (!value)
            return damaged_fail(t, "a pax header that is none", e);
        *value++ = p[-1] = '\0';
        if (strcmp(key, "path") == 0) {
            TRY(set_name(t, value, (size_t)(p - 1 - value), e));
            ahead->named = true;
        } else if (strcmp(key, "size") == 0) {
            char *rest;
            errno = 0;
            const unsigned long long size = strtoull(value, &rest, 10);
            if (errno || *rest || !*value || size > INT64_MAX / 2)
                return damaged_fail(t, "a size that is no number", e);
            ahead->size = (int64_t)size;
        } else if (strncmp(key, "GNU.sparse.", 11) == 0) {
            ahead->sparse = true;
        }
    }
    return 0;
}

/* The data of a header that tells of the next one. */
static int read_ahead(struct tar *t, char type, int64_t size, struct ahead *ahead, struct err *e)
{
    if (size > (type == 'L' ? LONGEST_NAME + 1 : (int64_t)LONGEST_PAX))
        return damaged_fail(t, type == 'L' ? "a name that is too long" : "a pax header of more than 1 MiB", e);
    char *text = malloc((size_t)size + 1);
    if (!text)
        return err_set(e, -ENOMEM, "no memory to read '%s'", t->path);
    text[size] = '\0';
    int rc = tar_pread(t->fd, t->path, text, (size_t)size, t->at + BLOCK, e);
    if (rc == 0 && type == 'L')
        rc = set_name(t, text, (size_t)size, e);
    else if (rc == 0)
        rc = take_pax(t, text, (size_t)size, ahead, e);
    ahead->named = ahead->named || type == 'L';
    free(text);
    return rc;
}

static int name_of_header(struct tar *t, const struct header *h, struct err *e)
{
    const int prefix = memcmp(h->magic, "ustar", 6) == 0 ? (int)strnlen(h->prefix, sizeof h->prefix) : 0;
    char name[sizeof h->prefix + sizeof h->name + 2];
    snprintf(name, sizeof name, "%.*s%s%.*s", prefix, h->prefix, prefix ? "/" : "", (int)sizeof h->name, h->name);
    return set_name(t, name, sizeof name, e);
}

int tar_next(struct tar *t, struct tar_member *ret, struct err *e)
{
    struct ahead ahead = {.size = -1};
    for (;;) {
        struct header h;
        int64_t size;
        if (t->size < t->at || t->size - t->at < BLOCK)
            return cut_fail(t, "the two empty blocks are missing that end a tar", e);
        TRY(read_block(t, t->at, &h, e));
        if (is_empty(&h))
            return 0;
        if (!sum_is_right(&h))
            return damaged_fail(t, "a header with a wrong sum", e);
        const bool sized = ahead.size >= 0 && (!h.type || !strchr("xgLK", h.type));
        if (sized) /* an old header cannot hold it */
            snprintf(h.size, sizeof h.size, "%s", "0");
        TRY(data_size(t, &h, &size, e));
        if (sized) {
            size = ahead.size;
            if ((uint64_t)size > t->size - t->at - BLOCK)
                return cut_fail(t, "a member claims more bytes than there are", e);
        }
        const uint64_t data = t->at + BLOCK;
        if (h.type == 'L' || h.type == 'x') {
            TRY(read_ahead(t, h.type, size, &ahead, e));
            t->at = data + padded(size);
            continue;
        }
        const bool regular = h.type == '0' || h.type == '\0' || h.type == '7';
        if (h.type == 'S' || (regular && ahead.sparse))
            return damaged_fail(t, "a sparse file, which is not read (tar without --sparse)", e);
        if (regular && !ahead.named)
            TRY(name_of_header(t, &h, e));
        t->at = data + padded(size);
        if (!regular) {
            ahead = h.type == 'g' || h.type == 'K' ? ahead : (struct ahead){.size = -1};
            continue;
        }
        const char *name = t->name;
        while (name[0] == '.' && name[1] == '/')
            name += 2;
        *ret = (struct tar_member){.name = name, .offset = data, .size = (uint64_t)size};
        return 1;
    }
}

int tar_text(struct tar *t, const struct tar_member *m, char *out, size_t cap, struct err *e)
{
    char block[BLOCK];
    const size_t want = cap - 1 < BLOCK ? cap - 1 : BLOCK, n = m->size < want ? (size_t)m->size : want;
    if (t->size - m->offset >= BLOCK)
        TRY(read_block(t, m->offset, block, e));
    else
        TRY(tar_pread(t->fd, t->path, block, n, m->offset, e));
    memcpy(out, block, n);
    out[n] = '\0';
    return 0;
}
