/* name=value arguments of the C benchmarks. */
#ifndef CRUN_TESTS_BENCH_OPTIONS_H
#define CRUN_TESTS_BENCH_OPTIONS_H

#include <errno.h>
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

/* Ends the program if it is no number of these. */
static inline int number_in(int argc, char **argv, const char *name, const char *def, long min, long max)
{
    char *end;
    const char *text = option(argc, argv, name, def);
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < min || v > max) {
        fprintf(stderr, "%s: %s=%s (expected %ld to %ld)\n", program_invocation_short_name, name, text, min, max);
        exit(2);
    }
    return (int)v;
}

static inline int number(int argc, char **argv, const char *name, const char *def)
{
    return number_in(argc, argv, name, def, 0, 1000000);
}

/* Ends the program at an argument that is none of these; names: ends with NULL. */
static inline void refuse_others(int argc, char **argv, const char *const *names)
{
    for (int i = 1; i < argc; i++) {
        const char *const *n = names;
        while (*n && !option(2, argv + i - 1, *n, NULL))
            n++;
        if (*n)
            continue;
        fprintf(stderr, "%s: '%s' is none of", program_invocation_short_name, argv[i]);
        for (n = names; *n; n++)
            fprintf(stderr, " %s=%s", *n, n[1] ? "," : "\n");
        exit(2);
    }
}

#endif
