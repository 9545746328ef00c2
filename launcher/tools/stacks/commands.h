/* The room stacks/: commands of a job's principal. `crun stacks` shows what the main threads of all its ranks do,
 * grouping equal stacks; `crun logs`, the last lines that they wrote; `crun drain` and `crun stop` end the job.
 *
 * How data flows: ask_nodes.c sends one request (RDZV.ASK) to the server that answers for the job (outside/whom.h),
 * and passes each node's answer on as JSON; groups.c sorts ranks by their stacks and prints them, logs.c prints
 * lines. For a process id, local.c finds the rendezvous of that crun; if that crun has no other nodes, it looks at
 * the processes itself. */
#ifndef CRUN_LAUNCHER_COMMANDS_H
#define CRUN_LAUNCHER_COMMANDS_H

#include "common/args/args.h"

extern const struct arg_program stacks_program, logs_program, drain_program, stop_program;

/* argv[0] is the command. Returns the exit code. Blocks up to --timeout, plus the time to connect. */
int stacks_main(int argc, char **argv);
int logs_main(int argc, char **argv);
int drain_main(int argc, char **argv);
int stop_main(int argc, char **argv);

#endif
