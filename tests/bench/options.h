/* name=value arguments of the C benchmarks. */
#ifndef CRUN_TESTS_BENCH_OPTIONS_H
#define CRUN_TESTS_BENCH_OPTIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char *option(int argc, char **argv, const char *name, const char *def)
{
    size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return def;
}

/* Ends the program if it is no number. */
static inline int number(int argc, char **argv, const char *name, const char *def)
{
    char *end;
    const char *text = option(argc, argv, name, def);
    long v = strtol(text, &end, 10);
    if (*end || v < 0 || v > 1000000) {
        fprintf(stderr, "%s=%s (expected a number)\n", name, text);
        exit(2);
    }
    return (int)v;
}

#endif
