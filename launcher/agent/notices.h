/* Notices that this node will be taken away; each becomes AGENT_PREEMPTED. They are the signal of
 * --preemption-signal (signals.c), the file of --preemption-file (for which the output process looks), and the end
 * of --time-limit. */
#ifndef CRUN_LAUNCHER_NOTICES_H
#define CRUN_LAUNCHER_NOTICES_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct run;

enum notice { NOTICE_NONE, NOTICE_SIGNAL, NOTICE_FILE, NOTICE_TIME };

int notices_open(struct run *r, struct err *e); /* sets r->notices; the time limit begins */
void notices_came(struct run *r, enum notice n);
void notices_file_found(
    struct run *r); /* at any time, also while the agent is put together; takes effect in the loop's next turn */
bool notices_has(const struct run *r); /* one came */

/* What the notice was, for a sentence: "SIGUSR1, a preemption notice". NULL: none came. */
#define NOTICES_TEXT_MAX 96
const char *notices_text(const struct run *r, char out[NOTICES_TEXT_MAX]);

void notices_close(struct run *r);
void notices_free(struct run *r); /* call after the loop's last turn */

#endif
