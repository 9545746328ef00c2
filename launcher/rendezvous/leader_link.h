/* The way to group rank 0 of a round: a connection to its bootstrap store, over which this node tells what group rank 0
 * puts together for all of them. Dialled when there is something to send. What waits for the connection is replaced by
 * what is newer. Loop thread only. */
#ifndef CRUN_LAUNCHER_LEADER_LINK_H
#define CRUN_LAUNCHER_LEADER_LINK_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct endpoint;
struct leader_link;

#define LEADER_LINK_MS 3000 /* to dial */

struct leader_link_options { /* strings are borrowed */
    uv_loop_t *loop;
    const char *command; /* "RDZV.FAILURE": COMMAND RUN NODE ROUND TEXT */
    const char *run_id, *node;
    void (*answer)(void *arg, const char *status); /* of one of them; NULL: it was refused */
    void (*lost)(void *arg, const char *why);      /* what was not answered will not be; the next one is dialled for */
    void *arg;
};

int leader_link_open(struct leader_link **ret, const struct leader_link_options *o); /* -ENOMEM */

/* Takes text (malloc'ed) over. Returns at once; then comes answer(), lost(), or, where newer text took its place,
 * nothing. < 0: it cannot be sent. */
int leader_link_tell(struct leader_link *l, uint64_t round, const struct endpoint *to, char *text);

int leader_link_unanswered(const struct leader_link *l); /* how many texts wait to be sent, or answered */

void leader_link_hang_up(struct leader_link *l); /* what waits is dropped; no callback comes of it */
void leader_link_close(struct leader_link *l);   /* NULL allowed */

#endif
