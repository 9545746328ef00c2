/* What member.c and member_news.c share; for them alone. */
#ifndef CRUN_LAUNCHER_MEMBER_INTERNAL_H
#define CRUN_LAUNCHER_MEMBER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/agent/member.h"
#include "launcher/base/repeat.h"
#include "launcher/observe/node_report.h"
#include "launcher/rendezvous/bootstrap.h"
#include "launcher/rendezvous/rendezvous.h"

struct member {
    struct run *r;
    struct rendezvous *rendezvous;
    int socket; /* the connection that stands for this node, -1: none */
    struct bootstrap store;
    char store_url[280];          /* where the workers of the round meet */
    char *addresses;              /* every address of every node, on group rank 0 */
    uv_timer_t report, take_over; /* to the rendezvous, for people who look; of the rendezvous */
    struct node_report reported;
    struct rdzv_news end; /* zeroed until the job is over */
    bool announced;       /* to the crun that started this one, that it has joined */
    bool has_seat;        /* in the newest round; where false, it waits as a spare, or heard of none */
    bool refused;         /* the rendezvous does not take this node, and that is reported */
    char waits_for[640];  /* while this node joins, for people */
    char spare[512];      /* why it waits as a spare; "": it does not */
    char trouble[256];    /* what stands between this node and the rendezvous, as it was printed; "": nothing */
    struct repeat troubles;
};

/* --- member_news.c */

void member_listen(struct run *r, struct rdzv_client_options *o); /* the client's calls are for it */
void member_announce_hosting(struct run *r);
void member_may_host(void *arg); /* struct rendezvous_options.may_host */

#endif
