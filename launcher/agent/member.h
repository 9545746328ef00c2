/* This node as a member of the job: what the rendezvous tells the agent, and what it tells on its own. */
#ifndef CRUN_LAUNCHER_MEMBER_H
#define CRUN_LAUNCHER_MEMBER_H

struct endpoint;
struct err;
struct rdzv_news;
struct run;

/* Opens r->rendezvous and r->store. */
int member_open(struct run *r, struct err *e);
void member_close(struct run *r);

/* A round with this node as a member: serve its workers' store if this is group rank 0, and note where it is. */
int member_begin_round(struct run *r, const struct rdzv_news *news, struct err *e);

/* This node is group rank 0 of the round of these news: serve its members at the port that its JOIN named. */
int member_serve(struct run *r, const struct rdzv_news *news, struct err *e);

/* Where group rank 0 of the round of these news serves. */
void member_find_leader(const struct run *r, const struct rdzv_news *news, struct endpoint *ret);

/* A worker has made a step: group rank 0 reports steps from now on, every other heartbeat. Nobody wakes for workers
 * that make none. */
void member_progressed(struct run *r);

#endif
