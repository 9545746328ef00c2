/* Looks at several processes in threads: at their stacks (stacks.h), or at anything else that may take time. The
 * threads wait for tools, and the kernel may block a thread together with the process, or the disk, that it looks
 * at. Such a thread outlives the caller, and its result is dropped. Loop thread only. */
#ifndef CRUN_LAUNCHER_GATHER_H
#define CRUN_LAUNCHER_GATHER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "common/base/buf.h"

struct err;

struct gathered {
    /* set by the caller */
    int rank;
    pid_t pid;
    char *head; /* stacks: first lines of the text; freed with the gather; NULL: none */
    char *path; /* for the caller; likewise */
    /* valid once it is done */
    atomic_bool done;
    struct buf text;
    char *top;     /* stacks: the first frames of the main thread, as indented lines; NULL: not known */
    char why[256]; /* why there is no result; "": there is one */
    void *more;    /* of look(); freed with it by free_more() */
    void (*free_more)(void *more);
};

struct gather;

/* For n processes, each to be filled in through gather_at(). NULL: no memory. */
struct gather *gather_new(int n);
struct gathered *gather_at(struct gather *g, int i);
int gather_count(const struct gather *g);
void gather_shorten(struct gather *g, int n); /* before the start: keep the first n */

struct gather_options {
    uv_loop_t *loop;
    int threads; /* that take them in their order */
    /* Called on a thread: fill in text, top and why. *cancel: end soon. NULL: stacks_collect(). */
    void (*look)(struct gathered *v, const atomic_bool *cancel);
    void (*done)(void *arg); /* all are done; not called inside gather_start() */
    void *arg;
};
int gather_start(struct gather *g, const struct gather_options *o, struct err *e);

/* NULL allowed. No callback comes afterwards; the loop must turn once more. */
void gather_drop(struct gather *g);

int gather_threads(void); /* all threads that still run */

/* Wait for threads of gathers that were dropped: their tools are killed meanwhile. A second at most, because one may
 * be blocked in the kernel. */
void gather_wait(void);

#endif
