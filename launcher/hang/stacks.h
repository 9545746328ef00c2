/* What all threads of a process are doing, written to a file: for people who want to know why it hangs.
 *
 *   - of each thread: name, state, kernel function it waits in, system call, kernel stack where /proc tells it (root);
 *   - its call stack, by libdw (elfutils) over ptrace, both only from here on: libdw is opened on first use. Where it
 *     is not installed, or ptrace is refused, the file says so.
 * The process is stopped while its stacks are walked and goes on as it was: one that was stopped stays so. Its separate
 * debug information is not looked for, and Python's own frames are not known: C functions are named by the symbols that
 * the files hold. */
#ifndef CRUN_LAUNCHER_STACKS_H
#define CRUN_LAUNCHER_STACKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct err;

struct stacks_request {
    const char *path; /* written anew */
    const char *head; /* first lines of the file, no newline at their end */
    pid_t pid;
    char *top; /* optional: the first frames of the main thread, as indented lines */
    size_t top_cap;
    const atomic_bool *cancel; /* true: end soon */
};

/* Blocks, for a second and more with large libraries: not for a loop's thread. Needs a thread
 * of its own that ends soon after it (ptrace): a thread of the process that hung in the kernel, and stops late, goes on
 * only then. */
int stacks_save(const struct stacks_request *r, struct err *e);

/* /proc: stopped by a signal (not by its debugger), and whether it has a debugger, or its core is being written. False
 * if the process is gone. */
bool stacks_look(pid_t pid, bool *ret_stopped, bool *ret_traced);

#endif
