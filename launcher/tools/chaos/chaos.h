/* The room launcher/chaos: `crun chaos --plan FILE --seed N TARGET...` does to a running job what a plan says.
 *
 * How data flows: a plan is text (chaos_plan.c); with a seed and the targets of the command line (chaos_target.c) it
 * becomes a sequence of faults, drawn before anything is done (chaos_draw.c). When a fault is due, chaos_find.c finds
 * the processes, chaos_inflict.c does it, and a line of the trace says what, and to which processes. Faults that must
 * be undone are in a table (chaos_table.c); a second process undoes them if this one is killed (chaos_watcher.c).
 *
 *   - only processes of the given cruns are touched, and the files and links that were named for them;
 *   - a fault that finds no process is not an error: the job is between two rounds, or has just ended;
 *   - at the end of the plan, after a signal, and however this process ends, nothing stays stopped, cut off, filled up
 *     or wrong. What was killed or damaged stays so.
 *
 * clock_preload.c is for workers: a wall clock that can be wrong. */
#ifndef CRUN_LAUNCHER_CHAOS_H
#define CRUN_LAUNCHER_CHAOS_H

#include "common/args/args.h"

extern const struct arg_program chaos_program;

/* argv[0] is "chaos". Returns the exit code; 128 + signal after SIGTERM, SIGINT or SIGHUP. Blocks until the plan is
 * over, or all processes that were given by pid are gone. */
int chaos_main(int argc, char **argv);

#endif
