/* `crun drain RUN` and `crun stop RUN`: a job ends at the wish of its principal, wherever its nodes meet. */
#ifndef CRUN_LAUNCHER_JOB_COMMANDS_H
#define CRUN_LAUNCHER_JOB_COMMANDS_H

#include "common/args/args.h"

extern const struct arg_program drain_program, stop_program;

/* argv[0] is the command. Returns the exit code. Blocks up to --timeout. */
int drain_main(int argc, char **argv);
int stop_main(int argc, char **argv);

#endif
