/* What a node answers when the job's principal asks (RDZV.ASK, reference/rendezvous-protocol.md).
 *
 * How data flows: the rendezvous hands a question down as a record; answers.c looks at this node's workers with threads
 * (hang/gather.h), for tools and disks may take their time; the answer, JSON, goes up within the time that the question
 * gives. A newer question takes the place of one that is under way. Loop thread only. */
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
void answers_hear(struct answers *a, const char *record); /* a question; what makes no sense is not answered */
void answers_close(struct answers *a);                    /* NULL allowed; the loop must turn once more */

#endif
