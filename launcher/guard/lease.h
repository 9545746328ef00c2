/* Until when workers may run (guardian_lease()), and their end where the agent does not see to it: the guardian's, and
 * the deputy's should guardian and agent both stand still. */
#ifndef CRUN_LAUNCHER_LEASE_H
#define CRUN_LAUNCHER_LEASE_H

#include <stdbool.h>
#include <sys/types.h>

struct guardian_link;

struct lease {
    pid_t agent;
    int late_ms; /* after its end somebody else acts than the agent */
    bool lapsed; /* and that is reported */
};

/* Kills what runs without a lease. Milliseconds until it must be looked at again, -1: it needs no look. */
int lease_keep(struct lease *s, const struct guardian_link *l);

#endif
