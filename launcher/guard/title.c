/* What ps(1) shows of a process: overwrites the memory in which the kernel put the command line. */
#include "launcher/guard/title.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/base/file.h"

#define ARG_START 45 /* number of spaces after the name in /proc/PID/stat before arg_start; arg_end is next */

/* Find the memory of the command line; false: not known. */
static bool find_arguments(char **ret_start, size_t *ret_bytes)
{
    char line[2048];
    file_read_text(line, sizeof line, "/proc/self/stat");
    char *at = strrchr(line, ')');
    for (int i = 0; at && i <= ARG_START; i++)
        at = strchr(at + 1, ' ');
    const uintptr_t start = at ? (uintptr_t)strtoull(at, &at, 10) : 0,
                    end = start ? (uintptr_t)strtoull(at, NULL, 10) : 0;
    *ret_start = (char *)start;
    *ret_bytes = end - start;
    return start && end > start;
}

char **title_spare(int argc, char **argv)
{
    static char **copy; /* else a leak detector would report it */
    copy = calloc((size_t)argc + 1, sizeof *copy);
    for (int i = 0; copy && i < argc; i++)
        if (!(copy[i] = strdup(argv[i])))
            return argv;
    return copy ? copy : argv;
}

void title_set(const char *what, pid_t of)
{
    char *arguments, text[64];
    size_t bytes;
    prctl(PR_SET_NAME, what);
    if (!find_arguments(&arguments, &bytes))
        return;
    snprintf(text, sizeof text, "%s of %d", what, (int)of);
    if (strlen(text) >= bytes) /* leave it out rather than cut it */
        snprintf(text, sizeof text, "%s", what);
    memset(arguments, 0, bytes); /* the last byte must be 0, or the kernel would show the environment, too */
    strncpy(arguments, text, bytes - 1);
}
