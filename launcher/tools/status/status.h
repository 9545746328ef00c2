/* `crun status [options] [RUN]`: what a rendezvous knows of its jobs, in a terminal.
 *
 * The room tools/status has two commands that start no job: crun status and crun admin. Each has its own option
 * table and a ..._main() that main.c calls before anything else is begun: no guardian, no loop, blocking calls.
 * status.c asks a server for RDZV.STATUS, or reads the log of decisions in a Redis or a folder, and gets the same
 * JSON from both; status_print.c prints it as text, and also the answer to an operator's RDZV.ADMIN LIST (admin.c). */
#ifndef CRUN_LAUNCHER_STATUS_H
#define CRUN_LAUNCHER_STATUS_H

#include <stdio.h>

#include "common/args/args.h"

struct err;

extern const struct arg_program status_program;

/* argv[0] is "status". Returns the exit code. Blocks up to --timeout for each look; with --watch, until interrupted. */
int status_main(int argc, char **argv);

enum status_what {
    STATUS_LIST,
    STATUS_OWNERS,  /* with the principal of each job */
    STATUS_DETAILS, /* with the nodes, restarts and events of each job */
};

/* Print the answer of RDZV.STATUS or RDZV.ADMIN LIST (reference/rendezvous-protocol.md). Control characters in names
 * are left out. ERR_CORRUPT: not such an answer. */
int status_print(const char *json, enum status_what what, FILE *out, struct err *e);

#endif
