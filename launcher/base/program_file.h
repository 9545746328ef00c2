/* The file that a program's name stands for. */
#ifndef CRUN_LAUNCHER_PROGRAM_FILE_H
#define CRUN_LAUNCHER_PROGRAM_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* A name with a slash is that file; another is looked for on PATH, beside crun and in ../worker of crun's folder. *ret
 * is freed with free(). -ENOENT: not found; -EACCES: found, but no executable file. */
int program_file_find(const char *name, char **ret, struct err *e);

/* Whether PATH finds another program under the name crun first: one that has no crun-launch beside it, as ours has
 * wherever it is installed. ret: its path, of cap bytes at most. */
bool program_file_other_crun(char *ret, size_t cap);

#endif
