/* The room stacks/: commands of a job's principal. `crun stacks` shows what the main threads of all its
 * ranks do, equal stacks together; `crun logs` the last lines that they wrote;
 * `crun drain` and `crun stop` end it.
 *
 * How data flows: ask_nodes.c makes one request (RDZV.ASK) of whoever answers for the job (outside/whom.h), and hands
 * over each node's answer as JSON; groups.c sorts ranks by their stacks and prints them, logs.c prints lines. Of a
 * process id, local.c finds out where that crun's nodes meet, or looks itself where it is alone. */
#ifndef CRUN_LAUNCHER_COMMANDS_H
#define CRUN_LAUNCHER_COMMANDS_H

#include "common/args/args.h"

extern const struct arg_program stacks_program, logs_program, drain_program, stop_program;

/* argv[0] is the command. Returns the exit code. Blocks up to --timeout, and for as long as it takes to connect. */
int stacks_main(int argc, char **argv);
int logs_main(int argc, char **argv);
int drain_main(int argc, char **argv);
int stop_main(int argc, char **argv);

#endif
