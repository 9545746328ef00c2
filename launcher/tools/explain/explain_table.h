/* What the three programs say, what it means, and what to do: the one table of it, which `crun explain` looks in and
 * docs/reference/messages*.md are made of. */
#ifndef CRUN_LAUNCHER_EXPLAIN_TABLE_H
#define CRUN_LAUNCHER_EXPLAIN_TABLE_H

#include <stdbool.h>

struct explain_message {
    const char *patterns; /* as fnmatch(3) takes them, a line each; each may stand anywhere in a message */
    const char *means, *remedy;
};

struct explain_code {
    int code;
    const char *remedy; /* what it means is in exitcode.h */
};

/* Each ends with NULL patterns. The first that matches counts, looked for in this order. */
extern const struct explain_message explain_hangs[], explain_crun[], explain_rendezvousd[], explain_trainer[],
    explain_general[];
extern const bool explain_knows_trainer; /* false: built without trainer, whose table is empty */
/* Every code of exitcode.h; ends with code -1. */
extern const struct explain_code explain_codes[];

#endif
