/* Finds the file for a program's name. */
#ifndef CRUN_LAUNCHER_PROGRAM_FILE_H
#define CRUN_LAUNCHER_PROGRAM_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* A name with a slash is a path; other names are searched on PATH, beside crun and in ../worker of crun's folder.
 * *ret is freed with free(). -ENOENT: not found; -EACCES: found, but not an executable file. */
int program_file_find(const char *name, char **ret, struct err *e);

/* Does PATH find another program called crun first? Ours has crun-launch beside it wherever it is installed. ret:
 * the path of the other one, cut to cap bytes. */
bool program_file_other_crun(char *ret, size_t cap);

#endif
