/* Was this process itself stopped? When nothing was heard from a peer, that may be the reason. Measures the turns of
 * the agent's loop, and keeps its memory resident for that. */
#ifndef CRUN_LAUNCHER_TURNS_H
#define CRUN_LAUNCHER_TURNS_H

#include <stdint.h>

struct err;
struct run;

int turns_open(struct run *r, struct err *e); /* sets r->turns */
void turns_close(struct run *r);              /* before the loop's last turns */
void turns_free(struct run *r);               /* after them */

/* The longest time in which this process did not run (it was stopped, waited in a system call, had no processor), of
 * those that ended after since_ms (clock_ms()) or still last. */
int64_t turns_still_ms(const struct run *r, int64_t since_ms);

#endif
