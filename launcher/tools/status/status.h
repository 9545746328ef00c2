/* `crun status [options] [RUN]`: what a rendezvous knows of its jobs, in a terminal.
 *
 * The room commands/ holds the commands that start no job: crun status, crun admin and crun topo. Each has its own
 * option table and a ..._main() that main.c calls before anything else is begun: no guardian, no loop, calls that
 * block. status.c asks a server for RDZV.STATUS, or reads the log of decisions in a Redis or a folder, and gets the
 * same JSON from both; status_print.c makes text of it, also of what an operator's RDZV.ADMIN LIST answers (admin.c).
 * topo.c prints what topo_devices.c finds. */
#ifndef CRUN_LAUNCHER_STATUS_H
#define CRUN_LAUNCHER_STATUS_H

#include <stdio.h>

#include "common/args/args.h"

struct err;

extern const struct arg_program status_program;

/* argv[0] is "status". Returns the exit code. Blocks up to --timeout for each look; with --watch until it is
 * interrupted. */
int status_main(int argc, char **argv);

enum status_what {
    STATUS_LIST,
    STATUS_OWNERS,  /* with the principal of each job */
    STATUS_DETAILS, /* and nodes, restarts and events of each job */
};

/* Print the answer of RDZV.STATUS or RDZV.ADMIN LIST (reference/rendezvous-protocol.md).
 * Names of jobs are printed without control characters. ERR_CORRUPT: it is no such answer. */
int status_print(const char *json, enum status_what what, FILE *out, struct err *e);

#endif
