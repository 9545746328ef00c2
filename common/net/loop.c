/* A libuv loop with a reserve of memory. See loop.h. The reserve is address space only: its pages are used only when
 * realloc(3) has no memory. */
#include "common/net/loop.h"
#include "common/base/err.h"
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define WATCHED_MAX ((size_t)1 << 20)
#define ALIGN 64

static struct {
    char *start;
    size_t bytes;
    atomic_size_t used; /* bytes of the reserve handed out so far; none is handed out twice */
} reserve;

static bool is_reserve(const void *p)
{
    return reserve.start && (uintptr_t)p - (uintptr_t)reserve.start < reserve.bytes;
}

static void *take_reserve(size_t n)
{
    const size_t whole = (n + ALIGN - 1) / ALIGN * ALIGN, at = atomic_fetch_add(&reserve.used, whole);
    if (whole < n || at > reserve.bytes || whole > reserve.bytes - at)
        return NULL;
    return reserve.start + at;
}

static void give_back(void *p)
{
    if (!is_reserve(p))
        free(p);
}

/* realloc() for libuv, which while running reallocates nothing but its table of watchers. */
static void *grow(void *p, size_t n)
{
    const bool reserved = is_reserve(p);
    const size_t had = reserved ? (size_t)(reserve.start + reserve.bytes - (char *)p) : malloc_usable_size(p);
    void *q = reserved ? malloc(n) : realloc(p, n);
    if (q && !reserved)
        return q;
    if (n == 0 || (!q && !(q = take_reserve(n))))
        return NULL;
    if (had > 0)
        memcpy(q, p, had < n ? had : n);
    if (!reserved)
        free(p);
    return q;
}

/* Reserve room for all sizes that the table goes through until it has one entry for each descriptor: each is twice
 * the one before. */
static int make_reserve(struct err *e)
{
    struct rlimit files;
    if (reserve.start)
        return 0;
    size_t fds = getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > WATCHED_MAX ? WATCHED_MAX
                                                                                      : (size_t)files.rlim_cur,
           n = 64;
    while (n < fds + 2)
        n *= 2;
    const size_t bytes = 4 * n * sizeof(void *);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_errno(e, errno, "no address space for an event loop of %zu descriptors", fds);
    reserve.start = p;
    reserve.bytes = bytes;
    return uv_replace_allocator(malloc, grow, calloc, give_back);
}

int loop_open(uv_loop_t *loop, struct err *e)
{
    TRY(make_reserve(e));
    const int rc = uv_loop_init(loop);
    return rc < 0 ? err_errno(e, -rc, "no event loop") : 0;
}

int loop_can_watch(const uv_loop_t *loop, int fd)
{
    struct epoll_event none = {.data.fd = fd};
    return epoll_ctl(uv_backend_fd(loop), EPOLL_CTL_ADD, fd, &none) < 0 && errno != EEXIST ? -errno : 0;
}
