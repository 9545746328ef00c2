/* A shared home (rdzv_home.h) as the event loop needs it: a thread of its own waits for it, and its answers come on the
 * loop, in the order in which they were asked for. Only decisions, the release that ends them and the forgetting after
 * it form a line of their own, behind everything else: no renewal waits for them. A decision that fails is tried again
 * for a while, until it stands, somebody else leads, or its term is over. */
#ifndef CRUN_COMMON_KEEPER_H
#define CRUN_COMMON_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_home.h"

struct keeper;

enum keeper_call {
    KEEPER_LOOK,    /* rc as rdzv_home_ops.look: claim */
    KEEPER_CLAIM,   /* identity and claim; rc as that */
    KEEPER_LOAD,    /* text: the decisions */
    KEEPER_RENEW,   /* claim */
    KEEPER_APPEND,  /* decision `number` stands (1), somebody else leads (0), or the home does not take it (< 0) */
    KEEPER_RELEASE, /* claim: tried */
    KEEPER_FORGET,
};

struct keeper_answer {
    enum keeper_call call;
    int rc;
    struct err e; /* rc < 0 */
    int64_t sent; /* clock_ms(): when the home was asked */
    struct rdzv_claim claim;
    uint64_t number;
    struct buf text;
    /* CLAIM: of the home */
    char identity[RDZV_IDENTITY_MAX + 1];
    int64_t lag_ms;
    bool took_over;
};

/* answer: on the loop; may ask for more, not close. patience_ms: how long a decision is tried. Takes home over. */
int keeper_open(struct keeper **ret, uv_loop_t *loop, struct rdzv_home *home, int64_t patience_ms,
                void (*answer)(void *arg, struct keeper_answer *a), void *arg, struct err *e);

/* -ENOMEM: no answer will come. */
int keeper_look(struct keeper *k);
int keeper_claim(struct keeper *k, const struct rdzv_claim *seen, const struct rdzv_claim *own);
int keeper_load(struct keeper *k);
int keeper_renew(struct keeper *k, const struct rdzv_claim *own);
int keeper_append(struct keeper *k, const struct rdzv_write *w, uint64_t number);
int keeper_release(struct keeper *k, const struct rdzv_claim *own);
int keeper_forget(struct keeper *k);
/* Decisions that do not stand yet are dropped; the one that is under way is not tried again. */
void keeper_end_term(struct keeper *k);

/* What is asked for is done before, but for KEEPER_FAREWELL_MS at most; then all is gone, when the loop has turned. No
 * answer comes any more. */
#define KEEPER_FAREWELL_MS 1500
void keeper_close(struct keeper *k); /* NULL allowed */

#endif
