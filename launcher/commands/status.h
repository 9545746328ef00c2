/* `crun status [options] [RUN]`: what a rendezvous knows of its jobs, in a terminal. */
#ifndef CRUN_LAUNCHER_STATUS_H
#define CRUN_LAUNCHER_STATUS_H

#include <stdbool.h>
#include <stdio.h>

#include "common/args/args.h"

struct err;

extern const struct arg_program status_program;

/* argv[0] is "status". Returns the exit code. Blocks up to --timeout for each look; with --watch until it is
 * interrupted. */
int status_main(int argc, char **argv);

/* Print the answer of RDZV.STATUS (docs/protocol.md). details: nodes, restarts and events of each job, too. Whatever
 * jobs call themselves is printed without control characters. ERR_CORRUPT: it is no such answer. */
int status_print(const char *json, bool details, FILE *out, struct err *e);

#endif
