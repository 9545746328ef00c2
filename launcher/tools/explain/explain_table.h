/* Messages of the three programs, what they mean, and what to do: the one table that `crun explain` searches, and
 * from which docs/reference/messages*.md are made. */
#ifndef CRUN_LAUNCHER_EXPLAIN_TABLE_H
#define CRUN_LAUNCHER_EXPLAIN_TABLE_H

#include <stdbool.h>

struct explain_message {
    const char *patterns; /* fnmatch(3) patterns, one per line; each may match anywhere in a message */
    const char *means, *remedy;
};

struct explain_code {
    int code;
    const char *remedy; /* what it means is in exitcode.h */
};

/* Each ends with NULL patterns. Searched in this order; the first match counts. */
extern const struct explain_message explain_hangs[], explain_meet[], explain_crun[], explain_rendezvousd[],
    explain_options[], explain_trainer[], explain_general[];
extern const bool explain_knows_trainer; /* false: built without trainer, and its table is empty */
/* Every code of exitcode.h; ends with code -1. */
extern const struct explain_code explain_codes[];

#endif
