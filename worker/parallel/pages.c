/* Reserves address space, and gives pages of it back. */
#include "worker/parallel/pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/err.h"

int pages_open(void **ret, size_t bytes, struct err *e)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_errno(e, errno, "%zu bytes of address space", bytes);
    *ret = p;
    return 0;
}

void pages_close(void *arena, size_t bytes)
{
    munmap(arena, bytes ? bytes : 1);
}

void pages_drop(void *arena, size_t first, size_t end)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)arena;
    const uintptr_t from = (at + first + page - 1) / page * page, to = (at + end) / page * page;
    if (from < to) /* where that fails, more memory is in use */
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
}
