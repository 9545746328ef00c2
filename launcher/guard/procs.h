/* Which processes there are below one, read from /proc.
 *
 * A tree is walked through /proc/PID/task/TID/children, so that it costs what the tree costs (some 10 us a process
 * and 4 us a thread) and not what the machine runs. If the kernel has no such files (CONFIG_PROC_CHILDREN), all
 * processes are read in one pass. Either way the snapshot is torn: a process that is born or changes its parent
 * meanwhile may be missing, so callers look again until nobody is left. */
#ifndef CRUN_LAUNCHER_PROCS_H
#define CRUN_LAUNCHER_PROCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"

struct proc {
    pid_t pid, parent, group, session;
    char state;      /* as in /proc/PID/stat; '?': it cannot be read */
    int threads;     /* if the first thread of a process has ended, its state is 'Z', though other threads run */
    bool is_silent;  /* its parent gets no signal when it ends; a parent that inherits it does */
    int64_t started; /* in clock ticks since boot */
    int64_t cpu_ns;  /* processor time used, with that of dead children that were waited for; precision: clock ticks */
    char name[20];   /* "?": it cannot be read */
};

struct procs {
    struct proc *v;
    size_t n, cap;
};

/* All descendants of process root, without itself; some may be gone by now. Free with procs_free(). False if there
 * is no /proc; incomplete if memory runs out. */
bool procs_below(struct procs *ret, pid_t root);
/* All processes that /proc shows, as procs_below(). */
bool procs_all(struct procs *ret);
void procs_free(struct procs *ps);

/* Dead and not reaped; signals have no effect on it. */
bool proc_is_dead(const struct proc *p);

/* What is left of a process: itself, or, if its first thread has ended, another thread. */
struct proc proc_living(const struct proc *p);

/* Read a process, or a thread by its id. False if it is gone. */
bool proc_read(pid_t pid, struct proc *ret);

/* The effective user of a process, (uid_t)-1 if it is gone. */
uid_t proc_uid(pid_t pid);

/* The value after "NAME:" in /proc/PID/status, as one line; "" and false: there is none. Reads the whole file,
 * because its line of groups alone may have hundreds of kilobytes. */
#define PROC_FIELD_MAX 64
bool proc_field(pid_t pid, const char *name, char out[PROC_FIELD_MAX]);

/* The whole content of a file of /proc/PID ("environ"), which the caller frees; empty if it cannot be read. */
struct buf proc_file(pid_t pid, const char *name);
/* The value of a variable in the text of "environ"; NULL: it is not set. */
const char *proc_variable(const struct buf *environment, const char *name);
/* Is "NAME=value" in the environment that the process was started with? False also if that cannot be read. */
bool proc_carries(pid_t pid, const char *variable);

/* State as in /proc/PID/stat; '?': it cannot be read. */
char proc_state(pid_t pid);

/* Where in the kernel a process waits: " in pipe_read"; " in system call 202" if only that is known; "" if nothing
 * is known (privileges, kernel options), or it does not wait. Returns out. */
#define PROC_WAIT_MAX 80
char *proc_wait_text(pid_t pid, char out[PROC_WAIT_MAX]);

#endif
