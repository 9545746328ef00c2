/* The room launcher/chaos: `crun chaos --plan FILE --seed N TARGET...` does to a running job what a plan says.
 *
 * How data flows: a plan is text (chaos_plan.c); with a seed and the targets of the command line (chaos_target.c) it
 * becomes a sequence of faults, drawn before anything is done (chaos_draw.c). When the time of one has come
 * chaos_find.c looks who is there, chaos_inflict.c does it, and a line of the trace says what, and whom it met. What
 * has to be undone stands in a table (chaos_table.c), which a second process works off should this one be killed
 * (chaos_watcher.c).
 *
 *   - nothing is touched but processes of the given cruns, and what was named for them;
 *   - a fault that finds nobody is no error: the job is in between two rounds, or has just ended;
 *   - at the end of the plan, at a signal, and at whatever end of this process, nothing is stopped, cut, filled or
 *     wrong any more. What was killed or damaged stays so.
 *
 * clock_preload.c is for workers: a wall clock that can be wrong. */
#ifndef CRUN_LAUNCHER_CHAOS_H
#define CRUN_LAUNCHER_CHAOS_H

#include "common/args/args.h"

extern const struct arg_program chaos_program;

/* argv[0] is "chaos". Returns the exit code; 128 + signal after SIGTERM, SIGINT or SIGHUP. Blocks until the plan is
 * over, or nobody of those given by their pids is left. */
int chaos_main(int argc, char **argv);

#endif
