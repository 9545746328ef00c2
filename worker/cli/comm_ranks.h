/* The ranks of comm-bench and comm-test: this one, the others, the group it is in, and its buffers. */
#ifndef CRUN_WORKER_CLI_COMM_RANKS_H
#define CRUN_WORKER_CLI_COMM_RANKS_H

#include "common/job/env_contract.h"
#include "worker/cli/comm_options.h"
#include "worker/meet/meet.h"

struct comm_ranks {
    const struct comm_bench_options *o;
    struct env_contract env;
    struct meet meet;
    struct device *device; /* NULL: host memory */
    struct comm *all;      /* what the numbers of all groups are put together over */
    struct comm *group;    /* what is called; may be `all` */
    void *stream;
    char *host;     /* as much as in or out */
    void *in, *out; /* where the buffers are */
};

/* On failure, too, comm_ranks_close() follows. -ERR_USAGE: options and the number of ranks do not go together. */
int comm_ranks_open(struct comm_ranks *b, struct err *e);
void comm_ranks_close(struct comm_ranks *b, bool failed);

/* Between b->host and a buffer; blocks. */
int comm_ranks_upload(struct comm_ranks *b, void *to, size_t bytes, struct err *e);
int comm_ranks_download(struct comm_ranks *b, const void *from, size_t bytes, struct err *e);
/* The host waits; errors of what was enqueued come out. */
int comm_ranks_settle(struct comm_ranks *b, struct err *e);
/* The sum or the maximum of one number, over all ranks of all groups. */
int comm_ranks_agree(struct comm_ranks *b, double *v, enum comm_op op, struct err *e);

#endif
