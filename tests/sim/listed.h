/* Jobs whose nodes are given a list of hosts: the shipped client, choice of host, jobs and leader of each node under
 * one virtual clock, with a simulated network. */
#ifndef CRUN_TESTS_LISTED_H
#define CRUN_TESTS_LISTED_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/members.h"

struct err;

enum listed_kind {
    LISTED_HEALED, /* all is healed in the end */
    LISTED_CUTS,   /* two nodes never meet, while others meet both */
    LISTED_KINDS,
};

/* One schedule. 0, or ERR_CORRUPT with the rule that broke. */
int listed_run(enum listed_kind kind, uint64_t seed, bool trace, struct members_stats *total, struct err *e);

#endif
