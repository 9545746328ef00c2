/* Exchanges failures (arrays of failure.h) between the nodes of a failed round: each node sends group rank 0 its own
 * (RDZV.FAILURE at the bootstrap store of the round), and group rank 0 collects them. Loop thread only; the waits
 * run the loop. */
#ifndef CRUN_LAUNCHER_FAILURE_SHARE_H
#define CRUN_LAUNCHER_FAILURE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct cJSON;
struct endpoint;
struct err;
struct failure_share;

/* ms for which the end of a job waits for reports of other nodes */
#define FAILURE_SHARE_MS 3000

/* Strings and hurry are borrowed; *hurry true: wait for no other node. */
int failure_share_open(struct failure_share **ret, uv_loop_t *loop, const char *run_id, const char *node,
                       const bool *hurry, struct err *e);

/* A round with so many nodes begins: forget reports of the one before. */
void failure_share_begin_round(struct failure_share *s, int nodes);

/* Send failures of this node, and the fault of its machine (NULL: none), to group rank 0, replacing those that are not
 * sent yet; returns at once. final: no more will follow. */
void failure_share_send(struct failure_share *s, uint64_t round, const struct endpoint *group_rank_0,
                        const struct cJSON *own, const char *fault, bool final);
/* Wait until they are acknowledged; false: they will not be. */
bool failure_share_wait_sent(struct failure_share *s);

/* On group rank 0: handle what another node sent. 0; ERR_REFUSED. */
int failure_share_receive(struct failure_share *s, const char *node, const char *text, size_t n);
/* Wait for all nodes but `lost`, of which nothing can come, and append what they sent (failure_merge()). Returns how
 * many nodes sent nothing. */
int failure_share_collect(struct failure_share *s, int lost, struct cJSON *all, struct cJSON *faults);

void failure_share_close(struct failure_share *s); /* NULL allowed; the loop must turn once more */

#endif
