/* Where the kernel put a core: /proc/sys/kernel/core_pattern as core(5) has it. */
#ifndef CRUN_LAUNCHER_CORE_PATH_H
#define CRUN_LAUNCHER_CORE_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct core_facts {
    pid_t pid;
    int signo;
    const char *program; /* its path */
    const char *host;
    const char *folder; /* that relative names are in */
    long long time;     /* seconds since 1970 */
};

/* Pure. A path; "" where no file is written, or a program is given the core and knows where it is. What cannot be known
 * of a dead process stays as it stands. */
void core_path_expand(const char *pattern, bool uses_pid, const struct core_facts *f, char *out, size_t cap);

/* By this system's settings; "" too if they cannot be read. Looks for no file. */
void core_path_name(const struct core_facts *f, char *out, size_t cap);

#endif
