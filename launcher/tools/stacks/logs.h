/* `crun logs`: the last lines of a job's ranks. */
#ifndef CRUN_LAUNCHER_LOGS_H
#define CRUN_LAUNCHER_LOGS_H

struct ask_options;
struct err;

/* Print; rank -1: of all ranks. Returns the exit code; errors as ask_nodes(), ERR_REFUSED: there is no such rank. */
int logs_print(const struct ask_options *o, const char *run, int rank, struct err *e);

#endif
