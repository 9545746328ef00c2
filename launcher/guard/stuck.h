/* An agent that does not do what it should: reports it and gives it up. For the guardian (patience.h says when). */
#ifndef CRUN_LAUNCHER_STUCK_H
#define CRUN_LAUNCHER_STUCK_H

#include <sys/types.h>

#include "launcher/guard/patience.h"

struct guardian_link;
struct neighbours;

/* "agent (pid 7, state T in do_signal_stop)", and the file that blocks it; returns out. */
#define STUCK_TEXT_MAX 448
char *stuck_text(pid_t agent, const struct guardian_link *l, char out[STUCK_TEXT_MAX]);

struct stuck {
    int64_t begun_ms; /* 0: not looked at yet */
    bool has_looked;  /* whether a file holds up its beginning */
    struct patience patience;
    char given_up[STUCK_TEXT_MAX + 96]; /* why the agent was given up; "": it was not */
};

/* Log, on SIGCHLD, that the agent or a helper has been stopped; once per stop. With one node a stopped agent harms
 * nobody, but its user may wonder; a stopped output process holds up those who read what workers write. */
void stuck_report_stops(pid_t agent, const struct neighbours *beside);

/* Returns ms until the next look at the agent, -1: none is needed; 0: it was given up, and given_up says why. Then
 * all below it and the agent itself have got SIGKILL. */
int stuck_wait_ms(struct stuck *s, pid_t agent, const struct guardian_link *l);

#endif
