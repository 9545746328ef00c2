/* The agent's callbacks for straggler_watch.h: ten steps of each worker go to group rank 0, which finds a straggler. It
 * then prints a line, writes an event and, with --straggler-action exclude, ends that worker as if it had failed
 * (AGENT_HUNG).
 *
 * A worker on another node is ended by that node, which learns of it with the answer to its next steps. Excluding
 * has limits: each worker's place once in the life of this crun, and only while restarts are left. */
#ifndef CRUN_LAUNCHER_STRAGGLERS_H
#define CRUN_LAUNCHER_STRAGGLERS_H

#include <stddef.h>

struct err;
struct rdzv_news;
struct run;

int stragglers_open(struct run *r, struct err *e); /* sets r->stragglers */
int stragglers_begin_round(struct run *r, const struct rdzv_news *news, struct err *e);
void stragglers_progressed(struct run *r); /* a worker made its first step */
void stragglers_end_round(struct run *r);

/* On group rank 0: another node reports its steps (bootstrap_options.steps). Returns 0; ERR_REFUSED. */
int stragglers_hear(void *run, const char *text, size_t n, char *answer, size_t cap);

void stragglers_close(struct run *r); /* before the loop's last turns */
void stragglers_free(struct run *r);  /* after them */

#endif
