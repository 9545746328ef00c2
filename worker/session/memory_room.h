/* How much memory this host has for a rank, compared with what a plan is about to take: before it is taken, since a
 * process that the kernel kills for it says nothing. */
#ifndef CRUN_WORKER_MEMORY_ROOM_H
#define CRUN_WORKER_MEMORY_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct session;

/* What can never be exceeded: the least of the machine's memory and the limits of the cgroups that this process is in
 * (v1, v2, each up to the root), swap included. */
struct memory_limit {
    int64_t bytes;     /* INT64_MAX: not known */
    int64_t available; /* MemAvailable, at this moment; INT64_MAX: not known */
    char name[200];    /* "memory.max of its cgroup /a/b" */
};

/* root: "" or, for tests, the folder that holds proc/ and sys/. */
void memory_limit_read(const char *root, struct memory_limit *ret);

struct memory_need { /* of one rank */
    int64_t held;    /* by this process already, bytes; of address space: held_space */
    int64_t held_space;
    int64_t unused;     /* bytes of held_space that are this plan's, and take memory once it runs */
    int64_t more;       /* about to be taken */
    int ranks;          /* of this host that need as much each */
    int parts;          /* of a step now (--accumulate); 0: more parts would not help */
    int samples;        /* of a part */
    const char *what;   /* "the plan of training" */
    const char *remedy; /* beside --accumulate; NULL: smaller batches, smaller images */
};

/* ERR_USAGE: it cannot fit. space: RLIMIT_AS, or INT64_MAX. *ret_near: it fits, but barely. Pure. */
int memory_room_judge(const struct memory_need *n, const struct memory_limit *l, int64_t space, bool *ret_near,
                      struct err *e);

/* plan_options.room of a session's plans; ctx: the session. */
int memory_room_of_training(const void *ctx, size_t before, size_t bytes, struct err *e);
int memory_room_of_evaluation(const void *ctx, size_t before, size_t bytes, struct err *e);
/* Of parameters, gradients, moments and averages, where these are in the host's memory. */
int memory_room_of_state(const struct session *s, int64_t bytes, struct err *e);

#endif
