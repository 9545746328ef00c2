/* A step of a run as a play: actors, each with what its training thread does in order and what its communication
 * thread is asked for, and the processors they share. Pure: no clock.
 *
 * An actor stands for ranks that do the same at the same time, those of a stage. What runs takes its seconds while
 * processors are free; where the tasks of a node want more than it has, all of them slow down alike. Calls of a group
 * are made by all of its ranks at once; messages between two actors go one after the other, each way of a pair by
 * itself. */
#ifndef CRUN_WORKER_SIMULATE_H
#define CRUN_WORKER_SIMULATE_H

#include <stddef.h>

struct err;

enum act {
    ACT_RUN,     /* seconds on `cores` of each rank */
    ACT_ASK,     /* the communication thread, behind what it was asked for before: the same */
    ACT_AWAIT,   /* until it has done `number` things it was asked for, in all */
    ACT_SEND,    /* to actor `peer`: the same; way: messages of one way arrive in order */
    ACT_RECEIVE, /* the next one of actor `peer` */
    ACT_SENT,    /* until all but `number` of what was sent that way have gone */
    ACT_ALONG    /* beside it all (a loader): the step ends when it has ended, too */
};

struct action {
    enum act act;
    double seconds, cores;
    int peer, way, number;
};

enum { SIMULATE_WAYS = 2, SIMULATE_ACTORS_MAX = 64 };

struct actor {
    struct action *actions;
    int n;
    size_t cap;
    int ranks; /* of it that share its node */
    int node;
};

/* Append one; runs of the same cores become one. -ENOMEM. */
int actor_add(struct actor *a, struct action x, struct err *e);
void actor_finish(struct actor *a);

/* Seconds until the last actor is through. cores: of a node. -EDEADLK: an actor waits for what never comes. */
int simulate(const struct actor *actors, int n, double cores, double *ret, struct err *e);

#endif
