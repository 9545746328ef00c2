/* What hang_watch.h asks the agent, and what a hang means to it: the workers that are blamed, and AGENT_HUNG. */
#ifndef CRUN_LAUNCHER_HANGS_H
#define CRUN_LAUNCHER_HANGS_H

struct err;
struct run;

int hangs_open(struct run *r, struct err *e); /* sets r->hang; NULL if switched off */

#endif
