/* Which nodes are there while a job waits for its nodes, for people: who is missing, since when, and when the job is
 * given up. Pure. Also as a record of fields (rdzv_wire.h), which servers publish. */
#ifndef CRUN_COMMON_PRESENCE_H
#define CRUN_COMMON_PRESENCE_H

#include <stddef.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

struct buf;

struct presence {
    enum rdzv_state state;
    int joined, min_nodes, max_nodes, restarts;
    uint64_t round;
    /* Milliseconds from now; -1: does not apply, or not known. waiting_ms: JOINING: for how long too few nodes have
     * been there. left_ms: JOINING: until the job is given up; LAST_CALL: until the round begins */
    int64_t waiting_ms, left_ms;
    char missing[128]; /* "0,2": node ranks below min_nodes that are not there, where the nodes are numbered; else "" */
    char silent[160];  /* "node2,node5": hosts of nodes that are not heard; as many as fit */
    char here[160];    /* likewise: of nodes that wait */
    /* If one node alone waits for the first round: the run id (cut if long) of another job of the same user that
     * waits for nodes, too; "": none, or not known */
    char beside[132];
};

void presence_look(struct rdzv *machine, const struct rdzv_config *c, int64_t now_ms, struct presence *ret);

int presence_record(const struct presence *p, struct buf *out);         /* -ENOMEM, -E2BIG */
void presence_read(const char *record, size_t n, struct presence *ret); /* members missing in it become 0, "", -1 */

/* "1 of 3 nodes, missing node ranks 0,2; here: node1; for 12 s, given up in 588 s". Returns out. */
char *presence_text(const struct presence *p, char *out, size_t cap);

#endif
