/* Describes what all threads of a process are doing, for people who want to know why it hangs.
 *
 *   - for each thread, from /proc: name, state, kernel function in which it waits, system call, kernel stack (root
 *     only);
 *   - then the output of `py-spy dump` for a Python program, or else of eu-stack (elfutils): the first that is on PATH
 *     and can read the stacks. If there is none, or ptrace is refused, the text says so.
 * Such a tool stops the process while it looks. It is killed after TOOL_MS, or TOOL_BYTES of output, and what it has
 * stopped is continued. */
#ifndef CRUN_LAUNCHER_STACKS_H
#define CRUN_LAUNCHER_STACKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct buf;
struct err;

struct stacks_request {
    const char *head; /* first lines of the text, without a final newline */
    pid_t pid;
    char *top; /* optional: first frames of the main thread, as indented lines */
    size_t top_cap;
    const atomic_bool *cancel; /* true: end soon */
};

/* Fill an empty buffer, STACKS_BYTES at most. Blocks until the tool has ended, or while the kernel blocks reads of
 * /proc: do not call it on a loop's thread. */
#define STACKS_BYTES (8u << 20)
int stacks_collect(const struct stacks_request *r, struct buf *out, struct err *e);

/* From /proc: is it stopped by a signal (not by a debugger); has it a debugger, or is its core being written? False
 * if the process is gone. */
bool stacks_look(pid_t pid, bool *ret_stopped, bool *ret_traced);

#endif
