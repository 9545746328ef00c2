/* Inside of deal.h: deal.c knows who holds what, deal_save.c and deal_load.c move it. */
#ifndef CRUN_WORKER_SNAPSHOT_DEAL_IMPL_H
#define CRUN_WORKER_SNAPSHOT_DEAL_IMPL_H

#include "worker/ckpt/safetensors.h"
#include "worker/snapshot/deal.h"
#include "worker/snapshot/exchange.h"

struct comm_request;

/* n elements of a tensor from element `first` on: CKPT_PIECE bytes of it, or what is left. */
struct chunk {
    size_t tensor;
    int64_t first, n;
};

/* Messages that are on their way, and memory for them. */
struct slot {
    char *room; /* CKPT_PIECE bytes; NULL until it is needed */
    size_t used;
    struct comm_request **requests;
    size_t n, cap;
};

struct deal {
    struct comm *comm; /* NULL: alone */
    int rank, world;
    struct slices *slices;
    struct exchange x;
    bool broken;

    /* of a save */
    struct ckpt_source source; /* first asked for by the writer of files */
    bool *writers;             /* [world] */
    bool refused;              /* nothing is dealt: something is not finite */
    struct chunk given, taken; /* the next ones */
    int turn;                  /* of the slots */
    struct slot give[2], take[2];
    bool posted; /* receives of `taken` have begun */
    char *piece; /* put together: CKPT_PIECE bytes */
    char *room;  /* of one slice */
};

/* What {0}, or a chunk after deal_advance(), stands for becomes a chunk of a tensor that is wanted (NULL: all are).
 * false: there is none any more. */
bool deal_settle(const struct slices *s, const bool *wanted, struct chunk *c);
void deal_advance(struct chunk *c);

/* The slices of this rank that are of a tensor: *n of them. */
const struct slice *deal_own(const struct deal *d, size_t tensor, size_t *n);

int deal_room(char **room, struct err *e); /* CKPT_PIECE bytes, once */
/* Where one more request of the slot goes. */
int deal_request(struct slot *s, struct comm_request ***ret, struct err *e);
int deal_wait(struct slot *s, int rc, struct err *e); /* for all of them; rc as of comm_wait_all() */
void deal_slot_free(struct slot *s);

/* Between a chunk and what a piece has of it, side by side. */
void deal_scatter(const struct piece *p, const struct chunk *c, size_t size, const char *from, char *chunk);
void deal_gather(const struct piece *p, const struct chunk *c, size_t size, const char *chunk, char *to);

#endif
