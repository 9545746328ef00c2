/* The claim of a job's leader, as its home keeps it (rdzv_home.h). Pure. */
#ifndef CRUN_COMMON_RDZV_CLAIM_H
#define CRUN_COMMON_RDZV_CLAIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

struct buf;
struct err;

#define RDZV_EPOCH_MAX 47 /* bytes of an epoch: "12-5f0c9a77d1e2b344" */

struct rdzv_claim {
    char epoch[RDZV_EPOCH_MAX + 1]; /* "": nobody ever led this job, or its home was emptied */
    uint64_t n;                     /* renewals: with the epoch it names this state of the claim */
    bool released;                  /* whoever comes first may claim */
    int64_t hold_ms;                /* released: nobody must be given up for so long, after what its leader owed */
    bool held;                      /* released: nothing at all must be decided for so long */
    /* How long the claim stands still before a node may replace it that its leader has not acknowledged (lately); 0: D,
     * as for all others. So long a leader that does not reach its home may go on with nodes that hear it: election.h */
    int64_t away_ms;
    int port;
    char addrs[RDZV_ADDRS_MAX + 1]; /* where it listens, numeric, comma-separated, the best first */
    char node[RDZV_ID_MAX + 1];     /* who leads, for people */
};

/* One line of fields (rdzv_wire.h). -ENOMEM. */
int rdzv_claim_encode(const struct rdzv_claim *c, struct buf *out);
/* -EINVAL. */
int rdzv_claim_decode(const char *p, size_t n, struct rdzv_claim *ret, struct err *e);
bool rdzv_claim_is(const struct rdzv_claim *a, const struct rdzv_claim *b); /* the same state of it */

/* The number in front of an epoch; 0: "" */
uint64_t rdzv_epoch_number(const char *epoch);
/* Is it above `than`, or beside it: of the same number, which only a home that was emptied gives twice? */
bool rdzv_epoch_is_foreign(const char *epoch, const char *than);

#endif
