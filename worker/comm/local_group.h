/* Ranks as threads of one process: what they share. Of local*.c only. */
#ifndef CRUN_WORKER_COMM_LOCAL_GROUP_H
#define CRUN_WORKER_COMM_LOCAL_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/comm/comm.h"

struct slot {
    const void *in;
    void *out;
};

struct channel {
    struct slot *slots; /* world */
    bool *here;         /* world: arrived in this round */
    int arrived, left;  /* of this round */
    uint64_t round;     /* rounds that all ranks have entered */
    uint64_t finished;  /* rounds that all ranks have left */
};

struct message;

struct group {
    pthread_mutex_t lock; /* the rest */
    pthread_cond_t change;
    struct channel channels[COMM_CHANNELS];
    struct message **boxes; /* [channel][from][to]: messages that one side has begun and the other has not, in order */
    bool *gone;             /* world: closed, aborted or failed */
    int world, open;
    int failed;  /* 0 or the code that every collective to come returns */
    int culprit; /* the rank that closed or aborted */
};

struct local {
    struct comm base;
    struct group *group;
    int64_t timeout_ms;
    atomic_bool aborted;
};

static inline struct local *local_of(struct comm *c)
{
    return (struct local *)c;
}

/* For `world` ranks, all of which will close it; NULL without memory. */
struct group *group_create(int world);
void group_free(struct group *g);
/* One rank closes: the last one frees it. */
void group_leave(struct group *g, int rank);
/* Lock held. Rank `culprit` is of no use any more; the first failure is the one that counts. */
void group_fail(struct group *g, int code, int culprit);

/* Lock held: 0, or why this rank's collectives fail. */
int group_failure(struct local *l, struct err *e);

/* A collective begins: 0 once all ranks are there, with their pointers in the channel's slots. */
int group_arrive(struct local *l, enum comm_channel which, const void *in, void *out, struct err *e);
/* It ends when all have done their part: the others are at work and will come. */
void group_depart(struct local *l, enum comm_channel which);

/* local_p2p.c: isend, irecv, wait and send of comm_ops. */
int local_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                struct comm_request **ret, struct err *e);
int local_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                struct comm_request **ret, struct err *e);
int local_wait(struct comm_request *r, struct err *e);
int local_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
               struct err *e);
/* Messages that nobody has received. */
void local_boxes_free(struct group *g);

#endif
