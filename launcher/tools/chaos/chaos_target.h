/* The targets of `crun chaos`: each operand is one node, numbered from 0.
 *
 *     [PID|FILE][,link=[NETNS:]NAME][,folder=DIR][,clock=FILE][,WORD=PID|FILE]...
 *
 * First the crun of that node: its pid, or a file that contains it and may be rewritten. Then other things that a
 * plan may name: the node's network link (in a named network namespace, or here), a folder whose disk may be filled
 * and whose files may be damaged, the file behind its workers' clock (clock_preload.c), and other processes under
 * words that the user chooses. */
#ifndef CRUN_LAUNCHER_CHAOS_TARGET_H
#define CRUN_LAUNCHER_CHAOS_TARGET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/tools/chaos/chaos_plan.h"

struct err;

#define CHAOS_PROCESSES_MAX 8 /* of a node, under words that the user chooses */

/* A process: by pid, or by a file that is read each time. Neither: none. */
struct chaos_source {
    const char *file;
    pid_t pid;
    uint64_t started; /* of pid: when that process began; 0: it never existed */
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

/* text is cut into parts, and must outlive *ret. ERR_USAGE. */
int chaos_target_parse(struct chaos_target *ret, char *text, struct err *e);

/* Has the node what such a fault needs? Pure. */
bool chaos_target_allows(const struct chaos_target *t, const struct chaos_act *a);

/* The process that a source names now; false: none. A file older than the process with that pid names one that is
 * gone. *ret_started: as chaos_started(). */
bool chaos_source_read(const struct chaos_source *s, pid_t *ret, uint64_t *ret_started);

/* When a process began, in kernel ticks since boot; 0: it is gone. Together with the pid this identifies a process
 * for good. */
uint64_t chaos_started(pid_t pid);

/* Are all targets gone, and can none come back because all were given by pid? */
bool chaos_targets_are_gone(const struct chaos_targets *t);

#endif
