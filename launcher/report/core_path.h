/* Where the kernel writes a core file, from /proc/sys/kernel/core_pattern (see core(5)). */
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

/* Pure. The path; "" if no file is written, or a program gets the core. Fields that cannot be known for a dead
 * process are left as they are. */
void core_path_expand(const char *pattern, bool uses_pid, const struct core_facts *f, char *out, size_t cap);

/* The same with this system's settings; "", too, if they cannot be read. Does not look for the file. */
void core_path_name(const struct core_facts *f, char *out, size_t cap);

#endif
