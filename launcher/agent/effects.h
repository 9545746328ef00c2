/* The queue of the agent's events, and its effects carried out.
 *
 * Callbacks leave events with run_post(); run_pump() gives them to agent_step() one after another and applies what it
 * asks for, so that no step runs within another. */
#ifndef CRUN_LAUNCHER_EFFECTS_H
#define CRUN_LAUNCHER_EFFECTS_H

#include <stdbool.h>
#include <stdint.h>

#include "launcher/agent/machine/agent.h"

struct err;
struct run;

int effects_open(struct run *r, struct err *e); /* sets r->effects */
void effects_close(struct run *r);              /* before the loop's last turns */
void effects_free(struct run *r);               /* after them */

void run_post(struct run *r, const struct agent_event *ev);
void run_pump(struct run *r); /* does nothing from within itself: the outer call applies what is left */

bool run_is_done(const struct run *r);    /* AGENT_DO_EXIT was applied; what is posted now is not applied any more */
bool run_has_failed(const struct run *r); /* done, and the job ended badly, which is to be reported */
int run_exit_code(const struct run *r);   /* once it is done */

/* A stop signal has counted: from here on the guardian knows the deadline of each stage of the end (guardian.h). */
void effects_wish(struct run *r);
bool effects_has_wish(const struct run *r);
void effects_await_end(struct run *r, int64_t left_ms); /* a stage begins, of so long; < 0: it is unknown */

void effects_stop_grace(struct run *r); /* nobody is left whose end could be waited for */

#endif
