/* Answers questions of the job's principal about this node (RDZV.ASK, reference/rendezvous-protocol.md).
 *
 * How data flows: the rendezvous passes a question on as a record; answers.c looks at this node's workers with
 * threads (hang/gather.h), because tools and disks may take time; the answer, JSON, is sent within the time that the
 * question sets. A newer question replaces one that is under way. Loop thread only. */
#ifndef CRUN_LAUNCHER_ANSWERS_H
#define CRUN_LAUNCHER_ANSWERS_H

#include <stdint.h>
#include <uv.h>

struct agent_view;
struct answers;
struct err;
struct log_layout;

struct answers_options { /* borrowed */
    uv_loop_t *loop;
    const struct log_layout *logs;
    void (*look)(void *arg, struct agent_view *ret); /* at the agent, for its workers */
    void (*answer)(void *arg, uint64_t id, const char *text);
    void *arg;
};

int answers_open(struct answers **ret, const struct answers_options *o, struct err *e);
/* handle a question; one that makes no sense is not answered */
void answers_hear(struct answers *a, const char *record);
void answers_close(struct answers *a); /* NULL allowed; the loop must turn once more */

#endif
