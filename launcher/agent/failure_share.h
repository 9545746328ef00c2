/* The failure report of the whole job. When the job has failed, each node tells group rank 0 which of its workers
 * failed (RDZV.FAILURE at the bootstrap store of the round), and its agent prints all of them in one report. A node
 * that cannot tell reports for itself. Loop thread. */
#ifndef CRUN_LAUNCHER_FAILURE_SHARE_H
#define CRUN_LAUNCHER_FAILURE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct dial;
struct failure_heard;
struct rdzv_conn;
struct run;

/* The end of a job waits no longer than this for what the other nodes have to tell. */
#define FAILURE_SHARE_MS 3000

struct failure_share {
    int others;                  /* nodes of the round but this */
    struct failure_heard *heard; /* on group rank 0: what each node told, the newest only */
    struct dial *dial;           /* elsewhere: the way to group rank 0 */
    struct rdzv_conn *conn;
    char *pending;  /* to be sent when the connection is there */
    int unanswered; /* requests on their way */
    bool ready, refused;
    uv_timer_t late;
    bool is_late;
};

void failure_share_open(struct run *r);
void failure_share_begin_round(struct run *r, int nodes); /* what was heard of the round before is forgotten */

/* struct bootstrap_options.failure */
int failure_share_on_told(void *arg, const char *node, const char *text, size_t n);

/* The job has failed while workers of this node are being stopped: what is known so far. */
void failure_share_tell_early(struct run *r);

/* No worker is left: the report, or on nodes other than group rank 0 one line. Runs the loop, for FAILURE_SHARE_MS at
 * most or until r->hurry. */
void failure_share_report(struct run *r);

void failure_share_close(struct run *r); /* the loop must turn once more */

#endif
