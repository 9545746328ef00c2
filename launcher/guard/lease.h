/* The lease of the workers (guardian_lease()), enforced if the agent does not: by the guardian, or by the deputy if
 * guardian and agent are both stopped. */
#ifndef CRUN_LAUNCHER_LEASE_H
#define CRUN_LAUNCHER_LEASE_H

#include <stdbool.h>
#include <sys/types.h>

struct guardian_link;

struct lease {
    pid_t agent;
    int late_ms; /* ms after the lease's end at which this process acts in the agent's place */
    bool lapsed; /* that has been reported */
};

/* Kill the workers if the lease is over. Returns ms until the next look, -1: none is needed. */
int lease_keep(struct lease *s, const struct guardian_link *l);

#endif
