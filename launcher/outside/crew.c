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

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/crun/crun_page.h"
#include "common/job/env_contract.h"
#include "launcher/guard/procs.h"

#define ENVIRON_MAX (1 << 20)

/* Read NAME= from the environment that a process was started with; false: it is not set. */
static bool find_variable(const struct buf *environment, const char *name, int *ret)
{
    const size_t len = strlen(name);
    const char *end = environment->data + environment->len;
    for (const char *at = environment->data; at < end; at += strnlen(at, (size_t)(end - at)) + 1)
        if ((size_t)(end - at) > len && memcmp(at, name, len) == 0 && at[len] == '=') {
            *ret = atoi(at + len + 1);
            return true;
        }
    return false;
}

static bool read_environment(pid_t pid, struct buf *ret)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool is_read = fd >= 0 && file_read_all(fd, ret) == 0;
    if (fd >= 0)
        close(fd);
    return is_read;
}

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
    struct buf environment = {.max = ENVIRON_MAX};
    int page_fd, rank = -1;
    const bool is_worker = read_environment(pid, &environment) && find_variable(&environment, ENV_PAGE_FD, &page_fd) &&
                           find_variable(&environment, "RANK", &rank);
    buf_free(&environment);
    if (!is_worker)
        return false;
    const int newest = page_rank(pid, page_fd);
    *ret = newest >= 0 ? newest : rank;
    return true;
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
