/* Jobs whose nodes elect their leader over a shared home: the shipped client, election, jobs and leader of each node
 * under one virtual clock, with a simulated network and home. */
#ifndef CRUN_TESTS_ELECT_H
#define CRUN_TESTS_ELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/members.h"

struct err;

enum elect_kind {
    ELECT_FOLDER, /* linearizable; listings may be a second old */
    ELECT_REDIS,  /* loses what it had, its last writes, or everything; an old primary may live on */
    ELECT_CUTS,   /* a folder; cuts between some nodes last, and firewalls refuse */
    ELECT_ETCD, /* the shipped home over the model of an etcd (api.h): requests late, lost and doubled, slow watches */
    ELECT_KUBE, /* the same over that of a Kubernetes */
    /* schedules that are made for faults which drawn ones hardly show (elect_made.c) */
    ELECT_RELEASE, /* a leader lets go that one member alone hears */
    ELECT_EMPTIED, /* a home is emptied; who has seen nothing leads while the leader before still acknowledges */
    ELECT_PATIENT, /* a Redis, and workers that live so long that a leader hears too few before it may go on */
    ELECT_STANDBY, /* daemons that share a linearizable state, one of which leads; nodes that have a list of them */
    ELECT_KINDS,
};

/* One schedule. 0, or ERR_CORRUPT with the rule that broke. */
int elect_run(enum elect_kind kind, uint64_t seed, bool trace, struct members_stats *total, struct err *e);

#endif
