/* An agent that another crun started on this host (remote.h): reads its order from standard input, then continues as
 * an ordinary crun. */
#ifndef CRUN_LAUNCHER_REMOTE_AGENT_H
#define CRUN_LAUNCHER_REMOTE_AGENT_H

struct guardian_programs;

/* `crun remote-agent`: returns the exit code. */
int remote_agent_main(const struct guardian_programs *programs);

#endif
