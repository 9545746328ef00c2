/* This node as a member of the job: what the rendezvous tells the agent, and what the agent tells it. Owns the way to
 * the rendezvous and the bootstrap store, and knows how the job stands as far as this node knows. */
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

/* To a question of the rendezvous (answer/answers.h). run: the struct run. */
void member_answer(void *run, uint64_t id, const char *text);

/* A round with this node as a member: serve its workers' store if this is group rank 0, and note where it is. */
int member_begin_round(struct run *r, const struct rdzv_news *news, struct err *e);

/* This node is group rank 0 of the round of these news: serve its members at the port that its JOIN named. */
int member_serve(struct run *r, const struct rdzv_news *news, struct err *e);

/* Where group rank 0 of the round of these news serves; borrowed from them or from the options. */
struct member_leader {
    const char *host;
    int port;
};
struct member_leader member_leader(const struct run *r, const struct rdzv_news *news);
void member_leader_endpoint(const struct run *r, const struct rdzv_news *news, struct endpoint *ret); /* the same */
uint64_t member_store_changes(const struct run *r); /* bootstrap_changes() */
const char *member_store_url(const struct run *r);  /* of the current round's store */

/* A worker has made a step: this node reports steps from now on (observe/node_report.h), where the rendezvous takes
 * reports. */
void member_note_progress(struct run *r);

/* For the status page: the failure report (failure.h). Runs the loop until it is taken, a second at most. */
void member_publish_failure(struct run *r, const char *text);

const struct rdzv_news *member_end(const struct run *r); /* of the job; zeroed until it is over */
const char *member_waits_for(const struct run *r);       /* while this node joins, for people; "": not known */
const bool *member_refused(const struct run *r); /* the rendezvous does not take this node, and that is reported */
struct page *member_page(const struct run *r);   /* the status page, while this crun hosts or leads; NULL */
bool member_hosts(const struct run *r);          /* this crun does the rendezvous */
int member_socket(const struct run *r);          /* the connection that stands for this node, -1: none */

/* A crun that hosts leaves last: the others may still be stopping their workers. Runs the loop. */
void member_see_off(struct run *r);

#endif
