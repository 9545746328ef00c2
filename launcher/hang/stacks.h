/* What all threads of a process are doing, written to a file: for people who want to know why it hangs.
 *
 *   - of each thread, from /proc: name, state, kernel function it waits in, system call, kernel stack (root only);
 *   - then what `py-spy dump` says of a Python program, or else eu-stack (elfutils): the first of them that is on PATH
 *     and knows the call stacks. Where there is none, or ptrace is refused, the file says so.
 * Such a tool stops the process while it looks. It is a process of its own that has TOOL_MS and TOOL_BYTES, and is
 * killed then: what it has stopped goes on. */
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

/* Blocks until the tool has ended: not for a loop's thread. */
int stacks_save(const struct stacks_request *r, struct err *e);

/* /proc: stopped by a signal (not by its debugger), and whether it has a debugger, or its core is being written. False
 * if the process is gone. */
bool stacks_look(pid_t pid, bool *ret_stopped, bool *ret_traced);

#endif
