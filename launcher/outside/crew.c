/* Finds a crun's agent and workers in /proc (crew.h). The agent is the guardian's first child that has the
 * guardian's own name in the kernel. Workers are the agent's children with a shared page, which holds their present
 * rank, because processes outlive rounds. */
#include "launcher/outside/crew.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/crun/crun_page.h"
#include "common/job/env_contract.h"
#include "launcher/guard/procs.h"

/* The rank that the newest round gave the worker; -1: none since it was started. */
static int page_rank(pid_t pid, int page_fd)
{
    char path[64];
    struct crun_page_round round;
    uint32_t seq;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, page_fd);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct crun_page *p = fd < 0 ? MAP_FAILED : mmap(NULL, CRUN_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return -1;
    const bool known = p->magic == CRUN_PAGE_MAGIC && p->version >= 2 && crun_page_read_round(p, &round, &seq);
    munmap(p, CRUN_PAGE_BYTES);
    return known ? round.rank : -1;
}

bool crew_rank(pid_t pid, int *ret)
{
    struct buf environment = proc_file(pid, "environ");
    const char *page_fd = proc_variable(&environment, ENV_PAGE_FD), *rank = proc_variable(&environment, "RANK");
    const bool is_worker = page_fd && rank;
    const int newest = is_worker ? page_rank(pid, atoi(page_fd)) : -1;
    if (is_worker)
        *ret = newest >= 0 ? newest : atoi(rank);
    buf_free(&environment);
    return is_worker;
}

pid_t crew_agent(const struct procs *below, pid_t guardian)
{
    struct proc self;
    proc_read(guardian, &self);
    for (size_t i = 0; i < below->n; i++)
        if (below->v[i].parent == guardian && strcmp(below->v[i].name, self.name) == 0 && !proc_is_dead(&below->v[i]))
            return below->v[i].pid;
    return 0;
}
