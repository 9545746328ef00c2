/* Shared by rdzv_host*.c only. */
#ifndef CRUN_COMMON_RDZV_HOST_IMPL_H
#define CRUN_COMMON_RDZV_HOST_IMPL_H

#include "common/base/buf.h"
#include "common/rdzv/leader/rdzv_host.h"
#include "common/rdzv/leader/rdzv_reign.h"

struct rdzv_host {
    struct rdzv_reign r;
    const struct rdzv_host_options *o;
    int64_t next_pulse, next_look;
    int64_t looked_ms; /* when the newest look at all beats began */
    uint64_t pulses, looks;
    bool all;      /* this look is at all beats */
    bool deferred; /* a request of the beat at hand is not decided yet */
    int failed;    /* the first error within a visit */
    struct err *e;
};

int64_t host_now(const struct rdzv_host *h);
int64_t host_hold_ms(const struct rdzv_host *h); /* how long what a home has lost may live on */

/* rdzv_host_beat.c: what a node's beat makes of the job */
void host_visit(void *arg, const char *node, const char *beat, size_t n);
int host_slot_text(struct rdzv_host *h, const struct leader_member *m, struct buf *out);

#endif
