/* A memfd, mapped by each rank:
 *
 *   head | places of n pictures: 0, or where its entry is | entries: size, label, pixels | room
 *
 * An entry is added by taking its room (one addition to head.used), writing it, and then letting it be seen (its place,
 * from 0). Who comes second leaves the first one's: the room is lost. Pages are allocated before they are written, so
 * that memory that runs out is an error here and no signal. */
#include "worker/data/loader/decoded_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"

enum { ALIGN = 64, MAGIC = 0x63727564 };
#define NAME "crun-decoded"

struct head {
    uint64_t magic, bytes, n, channels;
    _Atomic uint64_t used, pictures; /* used: bytes from the beginning on */
    _Atomic uint32_t full;
};

struct entry {
    int32_t w, h, label;
    uint8_t px[]; /* (h, w, channels) */
};

struct decoded_cache {
    int fd;
    size_t bytes, n;
    struct head *head;
    _Atomic uint64_t *places;
};

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t table_bytes(size_t n)
{
    return aligned(sizeof(struct head)) + aligned(n * sizeof(uint64_t));
}

static int check_size(size_t bytes, size_t n, struct err *e)
{
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes < table_bytes(n) || bytes > INT64_MAX)
        return err_set(e, ERR_USAGE, "--cache-decoded %zu: the table of %zu pictures alone takes %zu bytes", bytes, n,
                       table_bytes(n));
    if (bytes > machine)
        return err_set(e, ERR_USAGE, "--cache-decoded %zu: this machine has %ju bytes of memory", bytes,
                       (uintmax_t)machine);
    return 0;
}

/* Takes fd over. */
static int map(struct decoded_cache **ret, int fd, size_t bytes, size_t n, struct err *e)
{
    struct decoded_cache *c = calloc(1, sizeof *c);
    void *at = c ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        const int code = errno;
        free(c);
        close(fd);
        return err_errno(e, code, "cannot map %zu bytes of decoded pictures", bytes);
    }
    *c = (struct decoded_cache){.fd = fd, .bytes = bytes, .n = n, .head = at};
    c->places = (_Atomic uint64_t *)(void *)((char *)at + aligned(sizeof(struct head)));
    *ret = c;
    return 0;
}

int decoded_cache_create(struct decoded_cache **ret, size_t bytes, size_t n, int channels, struct err *e)
{
    TRY(check_size(bytes, n, e));
    const int fd = memfd_create(NAME, MFD_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno, "cannot make memory for decoded pictures");
    if (ftruncate(fd, (off_t)bytes) < 0 || fallocate(fd, 0, 0, (off_t)table_bytes(n)) < 0) {
        const int code = errno;
        close(fd);
        return err_errno(e, code, "cannot take %zu bytes for a table of decoded pictures", table_bytes(n));
    }
    TRY(map(ret, fd, bytes, n, e));
    struct head *h = (*ret)->head;
    h->bytes = bytes;
    h->n = n;
    h->channels = (uint64_t)channels;
    atomic_store(&h->used, table_bytes(n));
    h->magic = MAGIC;
    return 0;
}

void decoded_cache_record(const struct decoded_cache *c, char out[DECODED_RECORD])
{
    snprintf(out, DECODED_RECORD, "%ld %d", (long)getpid(), c->fd);
}

/* Is it one, of this size, before it is mapped? */
static int check_file(int fd, size_t bytes, size_t n, int channels, struct err *e)
{
    struct head h;
    struct stat st;
    if (fstat(fd, &st) < 0 || (size_t)st.st_size != bytes || pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
        h.magic != MAGIC || h.bytes != bytes || h.n != n || h.channels != (uint64_t)channels)
        return err_set(e, -EPROTO, "no cache of %zu decoded pictures in %zu bytes is there", n, bytes);
    return 0;
}

int decoded_cache_join(struct decoded_cache **ret, const char *record, size_t bytes, size_t n, int channels,
                       struct err *e)
{
    char path[64], target[64];
    long pid;
    int theirs;
    if (sscanf(record, "%ld %d", &pid, &theirs) != 2)
        return err_set(e, -EPROTO, "'%s' tells of no cache", record);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", pid, theirs);
    const ssize_t len = readlink(path, target, sizeof target - 1);
    target[len > 0 ? len : 0] = '\0';
    if (len > 0 && strncmp(target, "/memfd:" NAME, strlen("/memfd:" NAME)) != 0) /* of another name-space's process */
        return err_set(e, -EPROTO, "process %ld has no decoded pictures", pid);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno, "cannot open the decoded pictures of process %ld", pid);
    const int rc = check_file(fd, bytes, n, channels, e);
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : map(ret, fd, bytes, n, e);
}

void decoded_cache_close(struct decoded_cache *c)
{
    if (!c)
        return;
    munmap(c->head, c->bytes);
    close(c->fd);
    free(c);
}

bool decoded_cache_find(const struct decoded_cache *c, size_t id, struct image *ret, int *ret_label)
{
    const uint64_t at = atomic_load_explicit(&c->places[id], memory_order_acquire);
    if (at == 0)
        return false;
    struct entry *x = (struct entry *)(void *)((char *)c->head + at);
    *ret = (struct image){.px = x->px, .w = x->w, .h = x->h, .c = (int)c->head->channels};
    *ret_label = x->label;
    return true;
}

bool decoded_cache_has_room(const struct decoded_cache *c)
{
    return !atomic_load_explicit(&c->head->full, memory_order_relaxed);
}

/* No picture is added any more; the one who finds out first says so. */
static void set_full(struct decoded_cache *c, const char *why)
{
    if (atomic_exchange(&c->head->full, 1) == 0)
        log_info("data", "%ju of %zu pictures are kept decoded, in %zu bytes (%s); the others are decoded each time",
                 (uintmax_t)atomic_load(&c->head->pictures), c->n, c->bytes, why);
}

/* Room for an entry; 0: there is none. */
static uint64_t take_room(struct decoded_cache *c, size_t bytes)
{
    uint64_t at = atomic_load(&c->head->used);
    do {
        if (bytes > c->bytes - at) {
            set_full(c, "there is no room for more");
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&c->head->used, &at, at + bytes));
    if (fallocate(c->fd, 0, (off_t)at, (off_t)bytes) == 0)
        return at;
    set_full(c, strerror(errno));
    return 0;
}

void decoded_cache_add(struct decoded_cache *c, size_t id, const struct image *im, int label)
{
    const size_t pixels = (size_t)im->w * (size_t)im->h * (size_t)im->c;
    if (atomic_load(&c->places[id]) != 0 || !decoded_cache_has_room(c))
        return;
    const uint64_t at = take_room(c, aligned(sizeof(struct entry) + pixels));
    if (at == 0)
        return;
    struct entry *x = (struct entry *)(void *)((char *)c->head + at);
    *x = (struct entry){.w = im->w, .h = im->h, .label = label};
    memcpy(x->px, im->px, pixels);
    uint64_t none = 0;
    if (atomic_compare_exchange_strong_explicit(&c->places[id], &none, at, memory_order_release,
                                                memory_order_relaxed) &&
        atomic_fetch_add(&c->head->pictures, 1) + 1 == c->n)
        set_full(c, "all of them");
}

void decoded_cache_stats(const struct decoded_cache *c, struct decoded_stats *ret)
{
    *ret = (struct decoded_stats){.pictures = (size_t)atomic_load(&c->head->pictures),
                                  .bytes = (size_t)atomic_load(&c->head->used),
                                  .room = c->bytes};
}
