/* Whom `crun chaos` may touch: each operand is one node, from 0 on.
 *
 *     [PID|FILE][,link=[NETNS:]NAME][,folder=DIR][,clock=FILE][,WORD=PID|FILE]...
 *
 * First the crun of that node: its pid, or a file that holds it and may be written again. Then what else a plan may
 * name there: the link that the node hangs on (in a named network namespace, or here), a folder whose disk may be
 * filled and whose files may be damaged, the file behind its workers' clock (clock_preload.c), and other processes by
 * words of one's own. */
#ifndef CRUN_LAUNCHER_CHAOS_TARGET_H
#define CRUN_LAUNCHER_CHAOS_TARGET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/tools/chaos/chaos_plan.h"

struct err;

#define CHAOS_PROCESSES_MAX 8 /* of a node, by words of one's own */

/* A process: by its pid, or by a file that is read each time. Neither: there is none. */
struct chaos_source {
    const char *file;
    pid_t pid;
    uint64_t started; /* of pid: when that process began; 0: it was gone from the beginning */
};

struct chaos_target {
    struct chaos_source crun;
    const char *netns, *link; /* netns NULL: here */
    const char *folder, *clock;
    int n;
    struct {
        const char *word;
        struct chaos_source source;
    } processes[CHAOS_PROCESSES_MAX];
};

struct chaos_targets {
    int n;
    struct chaos_target v[CHAOS_NODES_MAX];
};

/* text is cut up and must outlive *ret. ERR_USAGE. */
int chaos_target_parse(struct chaos_target *ret, char *text, struct err *e);

/* Whether a node has what such a fault needs. Pure. */
bool chaos_target_allows(const struct chaos_target *t, const struct chaos_act *a);

/* The process behind a source, now; false: nobody. A file that is older than the process of that number tells of one
 * that is gone. *ret_started: as in chaos_started(). */
bool chaos_source_read(const struct chaos_source *s, pid_t *ret, uint64_t *ret_started);

/* When a process began, in the kernel's ticks since it booted; 0: it is gone. With the pid it names a process for
 * good. */
uint64_t chaos_started(pid_t pid);

/* Whether nobody of them is there any more, and none can come back: all were given by their pids. */
bool chaos_targets_are_gone(const struct chaos_targets *t);

#endif
