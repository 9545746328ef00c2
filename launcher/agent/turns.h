/* Whether the agent's own loop turns, with its memory kept in place for that: when nothing was heard of somebody, it
 * may be this process that stood still. */
#ifndef CRUN_LAUNCHER_TURNS_H
#define CRUN_LAUNCHER_TURNS_H

#include <stdint.h>

struct err;
struct run;

int turns_open(struct run *r, struct err *e); /* sets r->turns */
void turns_close(struct run *r);              /* before the loop's last turns */
void turns_free(struct run *r);               /* after them */

/* The longest time in which this process did nothing that was due (it was stopped, waited in a system call, had no
 * processor), of those that ended after since_ms (clock_ms()) or still go on. */
int64_t turns_still_ms(const struct run *r, int64_t since_ms);

#endif
