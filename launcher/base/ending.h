/* How a process ended: an exit code or a signal. Pure. */
#ifndef CRUN_LAUNCHER_ENDING_H
#define CRUN_LAUNCHER_ENDING_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct ending {
    bool signaled; /* true: value is a signal; false: an exit code */
    bool core;     /* a core was dumped */
    bool oom;      /* the kernel killed it because memory ran out, as its cgroup's files say */
    int value;
};

/* From what waitid(2) filled in. */
struct ending ending_of(const siginfo_t *info);

/* The exit code that a shell shows: the code, or 128 + signal. */
int ending_code(struct ending e);

/* "killed by SIGSEGV (core dumped)", "killed by the kernel: out of memory", "exited with code 3"; returns out.
 * ENDING_TEXT_MAX bytes are enough for every text. */
#define ENDING_TEXT_MAX 64
char *ending_text(struct ending e, char *out, size_t cap);

/* "SIGTERM"; "signal 40" for signals without a name. Static storage or out. */
const char *signal_text(int signo, char *out, size_t cap);

#endif
