/* Which processes there are below one, read from /proc.
 *
 * A tree is walked through /proc/PID/task/TID/children, so that it costs what the tree costs (some 10 us a process and
 * 4 us a thread) and not what the machine runs. A kernel without these files (CONFIG_PROC_CHILDREN) is read in one pass
 * over all its processes. Either way it is a snapshot that is torn: who is born or changes its parent meanwhile may be
 * missing, so callers look again until nobody is left. */
#ifndef CRUN_LAUNCHER_PROCS_H
#define CRUN_LAUNCHER_PROCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc {
    pid_t pid, parent, group, session;
    char state;      /* as in /proc/PID/stat; '?': it cannot be read */
    int threads;     /* a process whose first thread has ended is a 'Z' with others */
    bool is_silent;  /* its end sends no signal to its parent; to one that inherits it, it does */
    int64_t started; /* in clock ticks since boot */
    int64_t cpu_ns;  /* that it has used, with its dead children that were waited for; in ticks of the clock */
    char name[20];   /* "?": it cannot be read */
};

struct procs {
    struct proc *v;
    size_t n, cap;
};

/* All descendants of that process, but not itself; of those that are gone by now some. Free with procs_free(). False if
 * there is no /proc; as far as memory lasts. */
bool procs_below(struct procs *ret, pid_t root);
/* Every process that /proc shows; likewise. */
bool procs_all(struct procs *ret);
void procs_free(struct procs *ps);

/* Dead and not reaped; a signal means nothing to it. */
bool proc_is_dead(const struct proc *p);

/* What is left of it: itself, or where its first thread has ended, one that has not. */
struct proc proc_living(const struct proc *p);

/* A process, or a thread by its id. False if it is gone. */
bool proc_read(pid_t pid, struct proc *ret);

/* Whose it is: its effective user, (uid_t)-1 if it is gone. */
uid_t proc_uid(pid_t pid);

/* The value behind "NAME:" in /proc/PID/status, as text of one line; "" and false: there is none. The whole file is
 * read: its line of groups alone may have hundreds of kilobytes. */
#define PROC_FIELD_MAX 64
bool proc_field(pid_t pid, const char *name, char out[PROC_FIELD_MAX]);

/* "NAME=value" is in the environment that it was started with. False also if that cannot be read. */
bool proc_carries(pid_t pid, const char *variable);

/* As in /proc/PID/stat; '?': it cannot be read. */
char proc_state(pid_t pid);

/* Where in the kernel it waits, as " in pipe_read"; " in system call 202" where only that is known, "" where nothing is
 * (privileges, kernel options) or it does not wait. Returns out. */
#define PROC_WAIT_MAX 80
char *proc_wait_text(pid_t pid, char out[PROC_WAIT_MAX]);

#endif
