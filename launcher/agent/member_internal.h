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
    int64_t lease_ms; /* until when the workers of the newest round may run, as far as was known; 0: no lease */
    int socket;       /* this node's connection to the rendezvous, -1: none */
    struct bootstrap store;
    char store_url[280];          /* where the workers of the round meet */
    char *addresses;              /* on group rank 0: every address of every node */
    uv_timer_t report, take_over; /* when to report to the rendezvous, for status pages; when to host it here */
    struct node_report reported;
    struct rdzv_news end; /* zeroed until the job is over */
    bool announced;       /* the crun that started this one has been told that it joined */
    bool has_seat;        /* it has one in the newest round; false: it waits as a spare, or has heard of none */
    bool refused;         /* the rendezvous refuses this node, and that has been printed */
    char waits_for[640];  /* while this node joins, for people */
    char spare[512];      /* why it waits as a spare; "": it does not wait */
    char joining[512];    /* the nodes that were there when this was last printed */
    struct repeat joinings;
    char secret_help[2][640]; /* what member_secret_help() said last, for each `take` */
    char strangers[512]; /* " HOST  HOST ": hosts that were turned away for another secret, and that has been printed */
    bool hinted, port_told, gloo_hinted;
    char broke[160];  /* what ended the newest round here, in short; "": nothing has */
    bool fenced;      /* the newest round's workers were ended because this node lost touch: that costs a restart */
    bool loss_hinted; /* what helps against that was said */
    bool company;     /* another node of the job was seen */
    struct own_host *asked;  /* look-up whether the master address is this machine; NULL: none is under way */
    struct dial *store_dial; /* trial connection to the round's store; NULL: none */
    char trouble[256];       /* why the rendezvous cannot be reached, as it was printed; "": it can */
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
/* Printed once by a node that stays alone: where the others may have gone. */
void member_hint_alone(struct run *r, const struct presence *now);
/* Printed once by a node that would host at a port which another program of its machine has; for_ms: without an
 * answer. */
void member_hint_taken(struct run *r, int64_t for_ms);
/* Printed once by a node that cannot reach the crun that should host: which node that is. */
void member_hint_unhosted(struct run *r, const struct rdzv_progress *p);
/* A round of several nodes begins: once, if PyTorch's Gloo would wait on this machine where no other one reaches it. */
void member_hint_gloo(struct run *r, const struct rdzv_news *news);
/* Once in each round that was lost with its host: what helps. True: nothing does, and `why` says so: this node is to
 * end. */
bool member_hint_lost_host(struct run *r, const struct rdzv_progress *p, char *why, size_t cap);
/* The newest round is over for this reason, a sentence; "": a round begins. */
void member_note_broken(struct run *r, const char *why);
/* The workers of this node will dial group rank 0: try it once, and print it if that fails. */
void member_try_store(struct run *r, const struct endpoint *leader);
void member_drop_store_dial(struct run *r);

#endif
