/* Who is there while a job waits for its nodes, for people: who is missing, since when, and when the job is given up.
 * Pure; also as a record of fields (rdzv_wire.h), with which servers and pulses publish it. */
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
    /* JOINING: since when too few are there, and when the job is given up. LAST_CALL: left_ms, when it begins.
     * Milliseconds from now. -1: not so, or not known */
    int64_t waiting_ms, left_ms;
    char missing[128]; /* "0,2": node ranks below min_nodes that are not there, where the nodes are numbered; else "" */
    char silent[160];  /* "node2,node5": hosts of nodes that are not heard of, as many as there is room for */
    char here[160];    /* likewise: of nodes that wait */
    /* While one node alone waits for the first round: the run id of another job of its user that waits for nodes, too,
     * cut if it is long; "": there is none, or it is not known. */
    char beside[132];
};

void presence_look(struct rdzv *machine, const struct rdzv_config *c, int64_t now_ms, struct presence *ret);

int presence_record(const struct presence *p, struct buf *out);         /* -ENOMEM, -E2BIG */
void presence_read(const char *record, size_t n, struct presence *ret); /* what is missing there: 0, "", -1 */

/* "1 of 3 nodes, missing node ranks 0,2; here: node1; for 12 s, given up in 588 s". Returns out. */
char *presence_text(const struct presence *p, char *out, size_t cap);

#endif
