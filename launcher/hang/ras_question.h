/* A question to NCCL's RAS, asked on a thread of gather.h: the addresses of a node's workers in turn, until one gives
 * an answer that is about this job. */
#ifndef CRUN_LAUNCHER_RAS_QUESTION_H
#define CRUN_LAUNCHER_RAS_QUESTION_H

#include <stdbool.h>

#include "launcher/witness/ras_answer.h"

struct gather;
struct gather_options;

/* The result. */
struct ras_question {
    struct ras_job job;       /* the thread's own, because reports of other nodes change the caller's meanwhile */
    struct ras_answer answer; /* of version 0: none came */
    int asked;                /* addresses before the one that answered */
    bool too_old;             /* its NCCL cannot answer in JSON */
};

/* addresses: "127.71.12.1:28028 127.71.12.2:28028", taken over. o: its look is set. The caller drops the gather, before
 * its done() or after. NULL: no memory, no thread. */
struct gather *ras_question_start(char *addresses, const struct ras_job *job, const struct gather_options *o);

/* For done(): the result, and why there is none ("127.71.12.1:28028: nobody listens there"). */
struct ras_question *ras_question_result(struct gather *g, const char **ret_why);

#endif
