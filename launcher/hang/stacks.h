/* What all threads of a process are doing, as a text: for people who want to know why it hangs.
 *
 *   - of each thread, from /proc: name, state, kernel function it waits in, system call, kernel stack (root only);
 *   - then what `py-spy dump` says of a Python program, or else eu-stack (elfutils): the first of them that is on PATH
 *     and knows the call stacks. Where there is none, or ptrace is refused, the text says so.
 * Such a tool stops the process while it looks. It is a process of its own that has TOOL_MS and TOOL_BYTES, and is
 * killed then: what it has stopped goes on. */
#ifndef CRUN_LAUNCHER_STACKS_H
#define CRUN_LAUNCHER_STACKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct buf;
struct err;

struct stacks_request {
    const char *head; /* first lines of the text, no newline at their end */
    pid_t pid;
    char *top; /* optional: the first frames of the main thread, as indented lines */
    size_t top_cap;
    const atomic_bool *cancel; /* true: end soon */
};

/* Into an empty buffer, STACKS_BYTES at most. Blocks until the tool has ended, or as long as the kernel does not tell
 * of a process that waits in it: not for a loop's thread. */
#define STACKS_BYTES (8u << 20)
int stacks_collect(const struct stacks_request *r, struct buf *out, struct err *e);

/* /proc: stopped by a signal (not by its debugger), and whether it has a debugger, or its core is being written. False
 * if the process is gone. */
bool stacks_look(pid_t pid, bool *ret_stopped, bool *ret_traced);

#endif
