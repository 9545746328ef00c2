/* `crun explain CODE|TEXT`: what an exit code or a message of crun means, and what to do about it. Uses only tables
 * in the program. */
#ifndef CRUN_LAUNCHER_EXPLAIN_H
#define CRUN_LAUNCHER_EXPLAIN_H

#include "common/args/args.h"

extern const struct arg_program explain_program;

/* argv[0] is "explain". Returns the exit code: 1 if the code or text is unknown. */
int explain_main(int argc, char **argv);

#endif
