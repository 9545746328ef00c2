/* `crun admin [options] list | drain RUN | evict RUN`: lets an operator of a rendezvous manage everybody's jobs. */
#ifndef CRUN_LAUNCHER_ADMIN_H
#define CRUN_LAUNCHER_ADMIN_H

#include "common/args/args.h"

extern const struct arg_program admin_program;

/* argv[0] is "admin". Returns the exit code. Blocks up to --timeout. */
int admin_main(int argc, char **argv);

#endif
