/* What hang_watch.h asks the agent, and what a hang means to it: the workers that are blamed, and AGENT_HUNG. */
#ifndef CRUN_LAUNCHER_HANGS_H
#define CRUN_LAUNCHER_HANGS_H

#include <stddef.h>

struct err;
struct rdzv_news;
struct run;

int hangs_open(struct run *r, struct err *e); /* sets r->hangs, and r->hang; NULL if switched off */
int hangs_begin_round(struct run *r, const struct rdzv_news *news, struct err *e);
void hangs_end_round(struct run *r);

/* On group rank 0: the workers of another node are quiet (bootstrap_options.quiet). 0; ERR_REFUSED. */
int hangs_hear(void *run, const char *text, size_t n, char *answer, size_t cap);

void hangs_close(struct run *r); /* before the loop's last turns */

#endif
