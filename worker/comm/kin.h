/* Which groups were opened from which communicator, so that an abort reaches them. Threads: abort from any; the rest as
 * open and close. A communicator without (kin NULL: one inside another) has no groups. */
#ifndef CRUN_WORKER_COMM_KIN_H
#define CRUN_WORKER_COMM_KIN_H

#include "worker/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills c->kin. cancel_fd: what it was opened with, for its groups. -ENOMEM. */
int comm_kin_begin(struct comm *c, int cancel_fd, struct err *e);
int comm_kin_cancel_fd(const struct comm *c);
/* What becomes of parent happens to child from now on. */
void comm_kin_add(struct comm *parent, struct comm *child);
/* For abort(): that of all groups, and of theirs. */
void comm_kin_abort(struct comm *c);
/* For close(), first: no abort comes by way of the parent any more. */
void comm_kin_end(struct comm *c);

#ifdef __cplusplus
}
#endif

#endif
