/* What plans call for ops over a group (device.h), over a communicator. */
#ifndef CRUN_WORKER_GROUP_CALLS_H
#define CRUN_WORKER_GROUP_CALLS_H

struct comm;
struct plan_group;

/* c: of the group, borrowed. Its COMM_STATISTICS channel carries the calls: from the thread that runs plans alone. */
void group_calls(struct plan_group *ret, struct comm *c);

#endif
