/* What reaches the agent from outside the job: signals (through the guardian, or from a crun on another host that
 * started this one), and the end of the guardian. */
#ifndef CRUN_LAUNCHER_SIGNALS_H
#define CRUN_LAUNCHER_SIGNALS_H

#include <stdbool.h>

struct err;
struct run;

int signals_open(struct run *r, struct err *e);  /* sets r->signals; nothing is watched yet */
int signals_watch(struct run *r, struct err *e); /* from now on signals are taken, not died of */
void signals_unwatch(struct run *r);

bool signals_paused(const struct run *r); /* by Ctrl-Z: the workers stand still */
void signals_keep_paused(struct run *r);  /* workers were started, perhaps meanwhile */
/* crun was sent it, and it has not come here yet. */
bool signals_is_on_its_way(const struct run *r, int signo);
/* It is, or came since the workers of this round were started. */
bool signals_came(const struct run *r, int signo);
void signals_begin_round(struct run *r);
const bool *signals_hurry(const struct run *r); /* true once a stop signal came after the end: wait for no other node */

/* The end: print what is left of the workers' output; a console that does not read (a pager) is waited for, but not
 * after a stop signal, and not for long if one ended the job. After signals_unwatch(). */
void signals_flush_output(struct run *r);
void signals_close(struct run *r);

#endif
