/* The queue of the agent's events, and its effects carried out.
 *
 * Callbacks queue events with run_post(); run_pump() gives them to agent_step() one after another and applies the
 * effects, so that no step runs within another. */
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
void run_pump(struct run *r); /* a nested call does nothing: the outer call applies what is left */

bool run_is_done(const struct run *r);    /* AGENT_DO_EXIT was applied; events posted now are ignored */
bool run_has_failed(const struct run *r); /* done, and the job ended badly, so a report is due */
int run_exit_code(const struct run *r);   /* once it is done */

/* A stop signal was accepted: from now on the guardian gets the deadline of each stage of the end (guardian.h). */
void effects_wish(struct run *r);
bool effects_has_wish(const struct run *r);
void effects_await_end(struct run *r, int64_t left_ms); /* a stage begins that ends in left_ms; < 0: not known when */

void effects_stop_grace(struct run *r); /* nobody is left to wait for */

#endif
