/* A word as a POSIX shell reads it back. */
#ifndef CRUN_LAUNCHER_SHELL_WORD_H
#define CRUN_LAUNCHER_SHELL_WORD_H

#include <stddef.h>
#include <stdio.h>

char *shell_quote(const char *word, char *out, size_t cap); /* returns out; cut off where cap does not suffice */
void shell_print(const char *word, FILE *out);

#endif
