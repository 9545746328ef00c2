/* What a collective or a message takes: alpha-beta models of the links inside of a node and between nodes. Pure.
 *
 *   seconds = trips * alpha + bytes that a rank sends * beta
 *
 * by the algorithms of the communicators (comm/gloo/gloo.cc): an all-reduce of B bytes over n ranks is a ring, 2 (n -
 * 1) trips and 2 (n - 1) / n B sent, or for little an exchange in one trip; a reduce-scatter one trip, an all-gather
 * n - 1, (n - 1) / n B each; a message is one trip. With `halving` an all-reduce takes 2 log2(n) trips instead. A group
 * that lies on several nodes goes at the pace of the links between them, which the groups that cross them side by side
 * share (flows).
 *
 * A message goes beside the threads that compute. It takes time of theirs to ask for it and, when it begins, to hand it
 * over (the system copies it, as much as a socket takes).
 *
 * Calls keep processors busy meanwhile: `cores` of each rank. How that slows what else runs, and is slowed by it:
 * simulate.h. */
#ifndef CRUN_WORKER_NETWORK_H
#define CRUN_WORKER_NETWORK_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/choice.h"

struct err;
struct layout_ranks;

#define NETWORK_EACH_CALL(X)                                                                                           \
    X(NETWORK_ALL_REDUCE, "all_reduce")                                                                                \
    X(NETWORK_SCATTER, "reduce_scatter")                                                                               \
    X(NETWORK_GATHER, "all_gather")                                                                                    \
    X(NETWORK_MESSAGE, "message")     /* from the call that sends it until it is there */                              \
    X(NETWORK_HAND_OVER, "hand_over") /* of a message, by the thread that sends it */                                  \
    X(NETWORK_ASK, "ask")             /* for a message, by the thread that will wait for it */
enum network_call { NETWORK_EACH_CALL(CHOICE_ID) NETWORK_CALLS };

struct network_link {
    double alpha; /* seconds a trip */
    double beta;  /* seconds a byte */
    double cores; /* that a rank keeps busy meanwhile */
};

struct network {
    struct network_link inside[NETWORK_CALLS], between[NETWORK_CALLS];
    bool known[2];     /* inside, between: else nothing is there to say it */
    int local;         /* ranks of a node */
    bool hierarchical; /* all-reduces go node by node (comm.h, comm_hierarchy()) */
    bool halving;      /* an all-reduce takes 2 log2(n) trips: by halving and doubling, or trees; else it is a ring */
};

/* Who makes a call: so many ranks on so many nodes, and groups that cross the links of a node side by side. */
struct network_span {
    int ranks, nodes, flows;
};
struct network_span network_span(const struct network *n, const struct layout_ranks *g);

/* seconds where nobody else needs a processor. bytes: of the whole buffer; of an all-gather: of all parts. 0 for a rank
 * alone. */
struct network_cost {
    double seconds, cores;
};
struct network_cost network_cost(const struct network *n, enum network_call c, struct network_span s, double bytes);

/* Does an all-reduce go node by node? Ranks of one node, or alone on theirs, go straight. */
bool network_is_hierarchical(const struct network *n, struct network_span s, double bytes);

/* The line through measured (bytes, seconds) of `n` calls between two ranks, by the smallest relative error; cores as
 * given. */
struct network_link network_fit(enum network_call c, const double *bytes, const double *seconds, int n, double cores);

/* "50us,10" (time of a trip, gigabit a second) for all calls of a link; handing over and asking take nothing.
 * ERR_USAGE. */
int network_parse(const char *text, struct network_link ret[NETWORK_CALLS], struct err *e);

#endif
