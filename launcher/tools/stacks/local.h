/* Looks at a crun on this machine, by its process id. */
#ifndef CRUN_LAUNCHER_LOCAL_H
#define CRUN_LAUNCHER_LOCAL_H

#include <stdbool.h>
#include <sys/types.h>

struct ask_nodes;
struct ask_options;
struct err;

/* Is it a process of crun that runs this very program? */
bool local_is_crun(pid_t pid);

/* Find the rendezvous of that crun, and how to connect: into o and *ret_run, from its command line and its
 * environment, which becomes this process's. Options typed in o stay, except the endpoint. Strings live until the
 * process ends. 1; 0: it has no other nodes, or that cannot be known. */
int local_find_job(pid_t pid, struct ask_options *o, const char **ret_run);

/* Collect the stacks of its workers on this machine, as ask_nodes() gets those of a node; after timeout_ms without
 * the rest. ERR_REFUSED: it has no workers. */
int local_stacks(pid_t pid, int timeout_ms, const struct ask_nodes *q, struct err *e);

#endif
