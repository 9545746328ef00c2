/* What agent.c, agent_hold.c, agent_news.c and agent_user.c share; for them alone. */
#ifndef CRUN_LAUNCHER_AGENT_INTERNAL_H
#define CRUN_LAUNCHER_AGENT_INTERNAL_H

#include "launcher/agent/machine/agent.h"

/* --- agent.c: steps that several events take */

struct agent_effect *agent_add_effect(struct agent_effects *fx, enum agent_effect_kind kind);
bool agent_runs(const struct agent *a); /* a round, or workers that have let go of one, and wait */
void agent_clear(struct agent *a, struct agent_effects *fx);
/* signo 0: SIGTERM. */
void agent_stop_by(struct agent *a, int reason, int signo, bool typed, struct agent_effects *fx);
void agent_stop(struct agent *a, int reason, struct agent_effects *fx); /* by SIGTERM */
void agent_join(struct agent *a, struct agent_effects *fx);
void agent_end_with(struct agent *a, int code); /* once the workers are gone */
void agent_requeue(struct agent *a, struct agent_effects *fx);
void agent_leave_by_signal(struct agent *a, struct agent_effects *fx);
/* Leave with this code as soon as the rendezvous agrees, or does not answer. */
void agent_part(struct agent *a, int code, struct agent_effects *fx);
void agent_leave_for_good(struct agent *a, int code, struct agent_effects *fx); /* now */

/* --- agent_hold.c */

/* Those that outlive the round are to let go of it. */
void agent_hold(struct agent *a, struct agent_effects *fx);
/* A failure broke the round: hold those that outlive it, or stop all. */
void agent_break_round(struct agent *a, const struct agent_event *ev, struct agent_effects *fx);
void agent_on_held(struct agent *a, struct agent_effects *fx);
void agent_check_held(struct agent *a, struct agent_effects *fx); /* has everybody let go, or died? */
void agent_clear_rest(struct agent *a, struct agent_effects *fx); /* all but those that are held */

/* --- agent_news.c */

void agent_on_news(struct agent *a, const struct agent_event *ev, struct agent_effects *fx);
void agent_on_fenced(struct agent *a, struct agent_effects *fx);
void agent_on_failed(struct agent *a, const struct agent_event *ev, struct agent_effects *fx);

/* --- agent_user.c */

void agent_on_signal(struct agent *a, const struct agent_event *ev, struct agent_effects *fx);
void agent_on_preempted(struct agent *a, struct agent_effects *fx);

#endif
