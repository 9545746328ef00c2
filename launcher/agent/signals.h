/* What reaches the agent from outside the job: signals (through the guardian, or from the crun on another host that
 * started this one), and the guardian's end. */
#ifndef CRUN_LAUNCHER_SIGNALS_H
#define CRUN_LAUNCHER_SIGNALS_H

#include <stdbool.h>

struct err;
struct run;

int signals_open(struct run *r, struct err *e);  /* sets r->signals; nothing is watched yet */
int signals_watch(struct run *r, struct err *e); /* from now on signals are handled instead of ending the agent */
void signals_unwatch(struct run *r);

bool signals_paused(const struct run *r); /* by Ctrl-Z: workers are stopped */
void signals_keep_paused(struct run *r);  /* workers were started, perhaps meanwhile */
/* crun was sent this signal, and has not handled it yet. */
bool signals_is_on_its_way(const struct run *r, int signo);
/* The same, or it has come since the workers of this round were started. */
bool signals_came(const struct run *r, int signo);
void signals_begin_round(struct run *r);
const bool *signals_hurry(const struct run *r); /* true once a stop signal came after the end: wait for no other node */

/* At the end, after signals_unwatch(): print what is left of the workers' output. Waits for a console that does not
 * read (a pager), but not after a stop signal, and only briefly if a signal ended the job. */
void signals_flush_output(struct run *r);
void signals_close(struct run *r);

#endif
