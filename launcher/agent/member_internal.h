/* What member.c, member_news.c and member_advice.c share; for them alone. */
#ifndef CRUN_LAUNCHER_MEMBER_INTERNAL_H
#define CRUN_LAUNCHER_MEMBER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/agent/member.h"
#include "launcher/base/repeat.h"
#include "launcher/observe/node_report.h"
#include "launcher/rendezvous/addresses.h"
#include "launcher/rendezvous/bootstrap.h"
#include "launcher/rendezvous/hosting.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/rendezvous/rendezvous.h"

struct member {
    struct run *r;
    struct hosting_page page;
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
    char joining[512];    /* who was there when that was printed last */
    struct repeat joinings;
    char secret_help[2][640]; /* what member_secret_help() said last, for each `take` */
    char strangers[512];      /* " HOST  HOST ": who was turned away for another secret than ours, and that was said */
    bool hinted, port_told;
    bool company;            /* another node of the job was here */
    struct own_host *asked;  /* whether the master address is this machine; NULL: that is not being asked */
    struct dial *store_dial; /* to the store of the round; NULL: none */
    char trouble[256];       /* what stands between this node and the rendezvous, as it was printed; "": nothing */
    struct repeat troubles;
};

/* --- member_news.c */

void member_listen(struct run *r, struct rdzv_client_options *o); /* the client's calls are for it */
void member_announce_hosting(struct run *r);
void member_may_host(void *arg); /* struct rendezvous_options.may_host */

/* --- member_advice.c */

/* Of struct rdzv_client_options. */
const char *member_secret_help(void *arg, const char *host, bool take);
void member_note_stranger(void *arg, const char *host);
/* Once, to a node that stays alone: how the others may have gone elsewhere. */
void member_hint_alone(struct run *r, const struct presence *now);
/* Once, to a node that would host at a port which another program of its machine has: for_ms without an answer. */
void member_hint_taken(struct run *r, int64_t for_ms);
/* Once, to a node that cannot reach a crun that was to host: which node that is. */
void member_hint_unhosted(struct run *r, const struct rdzv_progress *p);
/* The workers of this node will dial group rank 0: try it once, and say so if it cannot be reached. */
void member_try_store(struct run *r, const struct endpoint *leader);
void member_drop_store_dial(struct run *r);

#endif
