/* `crun explain CODE|TEXT`: what an exit code or a message of crun means, and what to do about it. Needs nothing but
 * the program. */
#ifndef CRUN_LAUNCHER_EXPLAIN_H
#define CRUN_LAUNCHER_EXPLAIN_H

#include "common/args/args.h"

extern const struct arg_program explain_program;

/* argv[0] is "explain". Returns the exit code: 1 where nothing is known of it. */
int explain_main(int argc, char **argv);

#endif
