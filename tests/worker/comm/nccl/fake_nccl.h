/* What worker/comm/nccl calls of NCCL and CUDA, between threads of one process: enough to see that the right calls are
 * made, in the right groups. A call is over when it returns; a group's messages go side by side, and nothing else does:
 * as on a stream, a send of its own waits for its receiver. */
#ifndef CRUN_TESTS_FAKE_NCCL_H
#define CRUN_TESTS_FAKE_NCCL_H

#include <stdbool.h>

/* This thread's GPU: a rank each has its own. */
void fake_nccl_use_gpu(int number);
/* Calls of a kind so far, of all threads: "ncclAllGather". */
int fake_nccl_calls(const char *name);
/* Called by whoever aborts, records an event, asks about one; NULL: nobody. */
void fake_nccl_at_abort(void (*call)(void));
void fake_nccl_at_record(void (*call)(void));
void fake_nccl_at_query(void (*call)(void));
/* Whether what is asked about has ended; it has, if nobody says otherwise. */
void fake_nccl_end(bool ended);

#endif
