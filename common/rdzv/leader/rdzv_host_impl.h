/* Shared by rdzv_host*.c only. */
#ifndef CRUN_COMMON_RDZV_HOST_IMPL_H
#define CRUN_COMMON_RDZV_HOST_IMPL_H

#include "common/base/buf.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_host.h"
#include "common/rdzv/machine/rdzv_mutant.h"
#include "common/rdzv/wire/rdzv_slot.h"

#include "common/base/seeded_hash.h"

/* What the leader keeps of a node, whether the machine knows it or not. */
struct peer {
    char node[RDZV_ID_MAX + 1];
    char inc[20];
    uint64_t n;    /* counter of the newest beat seen */
    int64_t heard; /* when it was seen to move */
    uint64_t q;    /* newest request answered */
    enum rdzv_answer answer;
    char text[400];
    bool has_news;
    struct rdzv_news news; /* newest; its seq is ours, not the machine's */
    uint64_t seq;          /* the highest this node has been sent, or has seen from a predecessor */
    uint64_t looked;       /* the newest look at all beats that found one of this node */
    bool silent;           /* the machine was told so */
    bool loud;             /* the node waits for what is new in its slot */
    bool dirty;            /* the slot must be written with the next decision */
    int64_t written;       /* when it was */
    UT_hash_handle hh;
};

struct rdzv_host {
    struct rdzv_home *home;
    const struct rdzv_host_options *o;
    struct rdzv *machine; /* NULL: no job yet */
    struct rdzv_effects fx;
    struct rdzv_config config;
    char epoch[RDZV_EPOCH_MAX + 1], instance[20], identity[RDZV_IDENTITY_MAX + 1],
        former_identity[RDZV_IDENTITY_MAX + 1];
    struct peer *peers;
    bool created; /* the job began under us: the next decision says so */
    bool changed; /* the machine took a step since the last decision */
    bool ended;
    struct rdzv_news end;      /* what all were told when the job ended */
    int64_t began, hold_until; /* 0: no hold */
    int64_t next_pulse, next_look, over_since;
    uint64_t pulses, looks;
    bool held;             /* at the last tick */
    bool all;              /* this look is at all beats */
    uint64_t raised_round; /* what nodes were told by others than us */
    int raised_restarts;
    size_t logged; /* bytes since the newest whole decision */
    int failed;    /* the first error within a visit */
    struct err *e;
};

/* rdzv_host_log.c: decisions as text */
int host_record_claim(struct rdzv_host *h, struct buf *out);
/* The whole decision: header, settings, the machine's changes (whole: all of it) and slots; slots[] gets one entry per
 * dirty peer. */
int host_record(struct rdzv_host *h, bool whole, struct buf *out, struct buf *slots, struct err *e);
int host_replay(struct rdzv_host *h, const char *text, size_t n, struct err *e);
int host_slot_text(struct rdzv_host *h, const struct peer *p, struct buf *out);
int host_pulse_text(struct rdzv_host *h, bool released, struct buf *out);
/* h->instance says which job, and stays. */
int host_begin_job(struct rdzv_host *h, const struct rdzv_config *c, struct err *e);
struct peer *host_peer(struct rdzv_host *h, const char *node); /* made if need be; NULL: no memory */
bool host_is_over(const struct rdzv_host *h);
void host_keep_end(struct rdzv_host *h,
                   const struct rdzv_news *news); /* for those that come later, and had no part in it */
void host_note_end(struct rdzv_host *h);          /* when the job was first seen to be over */

/* rdzv_host_beat.c: what a node's beat makes of the job */
void host_visit(void *arg, const char *node, const char *beat, size_t n);
int host_step(struct rdzv_host *h, const struct rdzv_event *ev, int64_t now, struct err *e);

#endif
