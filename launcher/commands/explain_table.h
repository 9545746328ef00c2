/* What crun says, what it means, and what to do: the one table of it, which `crun explain` looks in and
 * docs/reference/messages.md is made of. */
#ifndef CRUN_LAUNCHER_EXPLAIN_TABLE_H
#define CRUN_LAUNCHER_EXPLAIN_TABLE_H

struct explain_message {
    const char *pattern; /* as fnmatch(3) takes it, without "crun: "; it may stand anywhere in a line */
    const char *means, *remedy;
};

struct explain_code {
    int code;
    const char *remedy; /* what it means is in exitcode.h */
};

/* Ends with a NULL pattern. The first that matches counts; those at the end are for refusals of any option. */
extern const struct explain_message explain_messages[];
/* Every code of exitcode.h; ends with code -1. */
extern const struct explain_code explain_codes[];

#endif
