/* Makes and drops the page that crun shares with a worker (common/crun/crun_page.h). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "launcher/workers/group_internal.h"

/* Make a private page. A shared one is a file to the kernel, and a limit on file sizes (RLIMIT_FSIZE) may forbid it. */
static int create_own_page(struct child *c)
{
    void *at = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -errno;
    c->page = at;
    c->page->wake_fd = c->wake_fd = -1;
    return 1;
}

int group_create_page(struct group *g, struct child *c, int *ret_fd, struct err *e)
{
    int fd = memfd_create("crun-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(e, errno, "shared page of a worker");
    void *at = MAP_FAILED;
    /* Seal its size: a worker that made it shorter would end us with SIGBUS. */
    if (ftruncate(fd, CRUN_PAGE_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        int error = errno;
        close(fd);
        if (error == EFBIG && create_own_page(c) == 1)
            return 1;
        return err_errno(e, error, "shared page of a worker");
    }
    c->page = at;
    c->page->version = CRUN_PAGE_VERSION;
    c->page->notify_fd = g->notify_fd;
    c->page->memory_fd = g->memory_fd + 1;
    c->wake_fd = g->o.holds ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1; /* none left: it is not held */
    c->page->wake_fd = c->wake_fd;
    c->page->stdio_fd = -1;
    c->page->magic = CRUN_PAGE_MAGIC;
    *ret_fd = fd;
    return 0;
}

void group_drop_page(struct child *c)
{
    if (c->page)
        munmap(c->page, CRUN_PAGE_BYTES);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    if (c->stdio_fd >= 0)
        close(c->stdio_fd);
    free(c->error_path);
    c->error_path = NULL;
    c->stdio_fd = -1;
    c->page = NULL;
    c->wake_fd = -1;
}

void group_retire_page(struct group *g, struct child *c)
{
    if (c->page)
        g->retired[g->n_retired++] = c->page;
    c->page = NULL;
    group_drop_page(c);
}

void group_drop_retired(struct group *g)
{
    while (g->n_retired > 0)
        munmap(g->retired[--g->n_retired], CRUN_PAGE_BYTES);
}

int group_make_spare(struct child *c, int *ret_fd, struct err *e)
{
    int fds[2];
    if (c->wake_fd < 0)
        return err_set(e, -ENOTSUP, "a spare needs a page that it shares");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
        return err_errno(e, errno, "a spare's socket");
    c->stdio_fd = fds[0];
    c->page->stdio_fd = *ret_fd = fds[1];
    atomic_store(&c->page->holds, 1);
    atomic_store(&c->page->stop_reason, CRUN_STOP_HOLD);
    return 0;
}

void group_wake(struct child *c, bool has_reason)
{
    const uint64_t one = 1;
    if (c->wake_fd < 0)
        return;
    atomic_fetch_add(&c->page->wake, 1);
    syscall(SYS_futex, &c->page->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    if (!has_reason) /* a worker that takes the round now must not find it readable again */
        return;
    /* may fail if full: it is readable, which is all that counts */
    ssize_t ignored = write(c->wake_fd, &one, sizeof one);
    (void)ignored;
}
