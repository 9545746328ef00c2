/* A crun of this machine, by its process id. */
#ifndef CRUN_LAUNCHER_LOCAL_H
#define CRUN_LAUNCHER_LOCAL_H

#include <stdbool.h>
#include <sys/types.h>

struct ask_nodes;
struct ask_options;
struct err;

/* Is it a process of a crun, this very program? */
bool local_is_crun(pid_t pid);

/* Where its nodes meet, and how it speaks there: into o and *ret_run, from its command line and its environment, which
 * becomes that of this process. What is typed in o stands, but for the endpoint. Strings live until the process ends.
 * 1; 0: it is alone, or that cannot be known. */
int local_find_job(pid_t pid, struct ask_options *o, const char **ret_run);

/* The stacks of its workers on this machine, as ask_nodes() has those of a node. timeout_ms: then without the rest.
 * ERR_REFUSED: it has none. */
int local_stacks(pid_t pid, int timeout_ms, const struct ask_nodes *q, struct err *e);

#endif
