/* The agent's callbacks for hang_watch.h, and what a hang causes: the blamed workers, and AGENT_HUNG. */
#ifndef CRUN_LAUNCHER_HANGS_H
#define CRUN_LAUNCHER_HANGS_H

#include <stddef.h>

struct err;
struct rdzv_news;
struct run;

int hangs_open(struct run *r, struct err *e); /* sets r->hangs, and r->hang; NULL if the check is switched off */
int hangs_begin_round(struct run *r, const struct rdzv_news *news, struct err *e);
void hangs_end_round(struct run *r);

/* On group rank 0: what another node reports of its quiet workers (bootstrap_options.quiet). 0; ERR_REFUSED. */
int hangs_hear(void *run, const char *text, size_t n, char *answer, size_t cap);

void hangs_close(struct run *r); /* before the loop's last turns */

#endif
