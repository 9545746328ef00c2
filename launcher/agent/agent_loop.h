/* The agent in the real world: its loop, signals, workers, rendezvous and bootstrap store. */
#ifndef CRUN_LAUNCHER_AGENT_LOOP_H
#define CRUN_LAUNCHER_AGENT_LOOP_H

/* ms at most for which a node that cannot start anything waits for the other nodes to end with it */
#define AGENT_TELL_MS 30000

struct cgroup_tables;
struct config;
struct err;
struct guardian_link;
struct program;

/* Run the job to its end. cgroups: tables of this process. Returns 0 with crun's exit code in *ret_code, or a
 * negative code if the job could not be started. */
int agent_run(const struct config *c, const struct program *p, const struct guardian_link *link,
              const struct cgroup_tables *cgroups, int *ret_code, struct err *e);

#endif
