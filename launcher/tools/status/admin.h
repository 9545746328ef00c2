/* `crun admin [options] list | drain RUN | evict RUN`: what an operator of a rendezvous does with the jobs of all. */
#ifndef CRUN_LAUNCHER_ADMIN_H
#define CRUN_LAUNCHER_ADMIN_H

#include "common/args/args.h"

extern const struct arg_program admin_program;

/* argv[0] is "admin". Returns the exit code. Blocks up to --timeout. */
int admin_main(int argc, char **argv);

#endif
