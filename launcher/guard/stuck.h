/* An agent that does not do what it should: the report of it, and how it is given up. The guardian's (patience.h says
 * when). */
#ifndef CRUN_LAUNCHER_STUCK_H
#define CRUN_LAUNCHER_STUCK_H

#include <sys/types.h>

#include "launcher/guard/patience.h"

struct guardian_link;
struct neighbours;

/* "agent (pid 7, state T in do_signal_stop)", and the file that it is at; returns out. */
#define STUCK_TEXT_MAX 448
char *stuck_text(pid_t agent, const struct guardian_link *l, char out[STUCK_TEXT_MAX]);

struct stuck {
    int64_t begun_ms; /* 0: nobody has looked yet */
    bool has_looked;  /* whether a file holds up its beginning */
    struct patience patience;
    char given_up[STUCK_TEXT_MAX + 96]; /* why the agent was, "": it was not */
};

/* Alone nobody is harmed by an agent that was stopped, but its user may wonder; so it is with those who read what
 * workers write. Logged once for each stop, on SIGCHLD. */
void stuck_report_stops(pid_t agent, const struct neighbours *beside);

/* Milliseconds until the agent must be looked at again, -1: it needs no look. An agent that is given up has had its
 * SIGKILL, after all below it: 0, and given_up says why. */
int stuck_wait_ms(struct stuck *s, pid_t agent, const struct guardian_link *l);

#endif
