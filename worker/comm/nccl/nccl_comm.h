/* An NCCL communicator inside, shared by nccl.c (its life), nccl_calls.c (what is enqueued) and nccl_watch.c (whether
 * it ends). Of these three only. */
#ifndef CRUN_WORKER_COMM_NCCL_COMM_H
#define CRUN_WORKER_COMM_NCCL_COMM_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"

#define FIRST COMM_GRADIENTS
enum { WATCH_MS = 100, PENDING_MAX = 512, LENT_MAX = 8, POLL_MOST_NS = 500000, NAME_LEN = 32, WHAT_LEN = 128 };

struct pending { /* enqueued and not known to have ended */
    cudaEvent_t end;
    bool recorded; /* `end` stands behind it; else the host is about to put it there */
    int64_t since; /* clock_ms() */
    char what[WHAT_LEN];
};

struct message {      /* begun, and not enqueued yet */
    const void *from; /* of a send */
    void *to;         /* of a receive */
    size_t bytes;
    int peer;
    cudaStream_t stream;
};

struct lent {
    enum comm_channel ch;
    void *buf, *handle;
};

struct nccl {
    struct comm base;
    char name[NAME_LEN]; /* comm_options.name */
    int64_t timeout_ms;
    struct device *owner; /* borrowed: whose memory it carries; NULL: nobody judges by its sums */
    int device;
    int cancel_fd; /* comm_options.cancel_fd while it is opened, then 0 */

    pthread_mutex_t lock; /* the rest */
    pthread_cond_t change;
    ncclComm_t comm[COMM_CHANNELS];      /* [COMM_CONTROL]: NULL; all NULL once aborted */
    struct err failed;                   /* code 0: none */
    struct pending pending[PENDING_MAX]; /* a ring */
    int first, npending;
    bool asks;      /* CUDA is asked about the first of them, without the lock */
    uint64_t asked; /* how often it was */
    bool leaving, watched, asking;
    pthread_t watchdog, asker;
    struct lent lent[LENT_MAX];
    int nlent;
    struct messages {
        struct message *all;
        int n, room;
    } messages[COMM_CHANNELS];
    struct aborter {
        pthread_t thread;
        ncclComm_t comm;
        int device;
        bool started;
    } aborters[COMM_CHANNELS]; /* of each channel at most one, as it is NULL from then on */
};

static inline struct nccl *nccl_of(struct comm *c)
{
    return (struct nccl *)c;
}

int nccl_fail(struct err *e, ncclResult_t rc, const char *what);
int cuda_fail(struct err *e, cudaError_t rc, const char *what);

/* The lock is held for all of these. */
/* The first reason stays; all communicators are aborted, and the device hears of it before. */
void nccl_break(struct nccl *n, const struct err *why);
int nccl_failure(const struct nccl *n, struct err *e);
/* Until NCCL has done what it was asked for; the lock is free while it waits. -ECANCELED: cancel_fd is readable. */
int nccl_settle(struct nccl *n, ncclComm_t *c, int64_t deadline, const char *what, struct err *e);
/* nccl_watch.c: somebody sees that what was enqueued on s ends. The lock is free while CUDA is called. */
int nccl_follow(struct nccl *n, cudaStream_t s, const char *what, struct err *e);

/* nccl_watch.c; without the lock. stop() may be called where start() was not. */
int nccl_watch_start(struct nccl *n, struct err *e);
void nccl_watch_stop(struct nccl *n);

/* Any thread: 0, or why the communicator is of no use any more. */
int nccl_check(struct comm *c, struct err *e);

/* nccl_calls.c: of comm_ops. */
int nccl_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                    void *stream, struct err *e);
int nccl_reduce(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                enum comm_op op, int root, void *stream, struct err *e);
int nccl_broadcast(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream,
                   struct err *e);
int nccl_all_gather_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *bytes,
                      void *stream, struct err *e);
int nccl_reduce_scatter_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *counts,
                          enum dtype t, enum comm_op op, void *stream, struct err *e);
int nccl_barrier(struct comm *c, enum comm_channel ch, struct err *e);
int nccl_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
               struct comm_request **ret, struct err *e);
int nccl_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
               struct comm_request **ret, struct err *e);
int nccl_wait(struct comm_request *r, struct err *e);
int nccl_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
              struct err *e);
void nccl_lend(struct comm *c, enum comm_channel ch, void *buf, size_t bytes);
void nccl_reclaim(struct comm *c, enum comm_channel ch, void *buf);

#endif
