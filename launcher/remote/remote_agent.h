/* An agent that another crun started on this host (remote.h): takes its order from standard input, then is crun as any
 * other. */
#ifndef CRUN_LAUNCHER_REMOTE_AGENT_H
#define CRUN_LAUNCHER_REMOTE_AGENT_H

struct guardian_link;

/* `crun remote-agent`: returns the exit code. */
int remote_agent_main(int (*agent)(const struct guardian_link *link, int argc, char **argv));

#endif
