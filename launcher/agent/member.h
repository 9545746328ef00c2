/* This node as a member of the job: passes news of the rendezvous to the agent, and the agent's requests to the
 * rendezvous. Owns the client of the rendezvous and the bootstrap store, and holds what this node knows of the job. */
#ifndef CRUN_LAUNCHER_MEMBER_H
#define CRUN_LAUNCHER_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

struct endpoint;
struct err;
struct rdzv_cause;
struct rdzv_news;
struct run;

int member_open(struct run *r, struct err *e); /* sets r->member */
void member_close(struct run *r);              /* before the loop's last turns */
void member_free(struct run *r);               /* after them */

/* Requests, as struct rdzv_client_ops has them. */
int member_join(struct run *r, struct err *e);
int member_fail(struct run *r, const struct rdzv_cause *cause, struct err *e);
int member_done(struct run *r, struct err *e);
int member_leave(struct run *r, const struct rdzv_cause *why, struct err *e);

/* Answer a question of the rendezvous (answer/answers.h). run: the struct run. */
void member_answer(void *run, uint64_t id, const char *text);

/* Begin a round of which this node is a member: serve its bootstrap store if this is group rank 0, and note where it
 * is. */
int member_begin_round(struct run *r, const struct rdzv_news *news, struct err *e);

/* This node is group rank 0 of the round in `news`: serve its members at the port that this node's JOIN named. */
int member_serve(struct run *r, const struct rdzv_news *news, struct err *e);

/* Where group rank 0 of a round serves the store; borrowed from the news or from the options. */
struct member_leader {
    const char *host;
    int port;
};
struct member_leader member_leader(const struct run *r, const struct rdzv_news *news);
void member_leader_endpoint(const struct run *r, const struct rdzv_news *news, struct endpoint *ret); /* the same */
uint64_t member_store_changes(const struct run *r); /* bootstrap_changes() */
const char *member_store_url(const struct run *r);  /* of the current round's store */

/* A worker has made a step: report steps from now on (observe/node_report.h), if the rendezvous accepts reports. */
void member_note_progress(struct run *r);

/* Send the failure report (failure.h) for the status page. Runs the loop until it is acknowledged, a second at most. */
void member_publish_failure(struct run *r, const char *text);

const struct rdzv_news *member_end(const struct run *r); /* news of the job's end; zeroed until it is over */
/* what this node waits for while it joins, for people; "": not known */
const char *member_waits_for(const struct run *r);
const bool *member_refused(const struct run *r); /* true: the rendezvous refuses this node, and that has been printed */
struct page *member_page(const struct run *r);   /* the status page, while this crun hosts or leads; NULL */
bool member_hosts(const struct run *r);          /* this crun does the rendezvous */
int member_reached(const struct run *r);         /* rendezvous_reached() */
int member_socket(const struct run *r);          /* this node's connection to the rendezvous, -1: none */

/* A hosting crun leaves last, because the others may still be stopping their workers. Runs the loop. */
void member_see_off(struct run *r);

#endif
