/* Are all replicas equal? Every rank hashes what it holds copies of, of its parameters, momentum and running
 * statistics; the hashes are compared within the groups that hold those copies (ownership.h). */
#ifndef CRUN_WORKER_REPLICAS_H
#define CRUN_WORKER_REPLICAS_H

struct comm;
struct err;
struct state;

/* All ranks. 0 if equal bit for bit; ERR_MISMATCH names the arena and the first rank that differs from the first of its
 * group. */
int replicas_check(struct state *s, struct comm *c, struct err *e);

#endif
