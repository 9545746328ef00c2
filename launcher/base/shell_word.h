/* Quotes a word for a POSIX shell. */
#ifndef CRUN_LAUNCHER_SHELL_WORD_H
#define CRUN_LAUNCHER_SHELL_WORD_H

#include <stddef.h>
#include <stdio.h>

char *shell_quote(const char *word, char *out, size_t cap); /* returns out; cut off if cap is too small */
void shell_print(const char *word, FILE *out);

#endif
