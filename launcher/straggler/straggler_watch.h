/* Watches for the worker that the others wait for: the timer, the pages and the other nodes around straggler.h.
 *
 *   pages of this node's workers --- ten steps ---> on group rank 0: with those of the other nodes -> straggler_judge()
 *                                                   elsewhere: straggler_steps_write() -> tell -> group rank 0
 *
 * Steps have the same numbers on all ranks, so all nodes look at the same ten: those up to a multiple of 10, or of
 * 100 or 1000 if ten steps take less than 100 ms. A worker's page has the newest 32 steps, so the watch looks when
 * ten are due, and skips those that it is too late for. It does not wake up before the first step of a worker that
 * reports the parts of its steps, and at most ten times a second. Loop thread only. Every function accepts a NULL
 * watch. */
#ifndef CRUN_LAUNCHER_STRAGGLER_WATCH_H
#define CRUN_LAUNCHER_STRAGGLER_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/straggler/straggler.h"

struct crun_page;
struct err;
struct straggler_watch;

struct straggler_watch_options {
    uv_loop_t *loop;
    int workers;                                         /* of this node */
    bool (*is_running)(void *arg);                       /* workers run, and are not being stopped */
    struct crun_page *(*page)(void *arg, int local);     /* NULL: that worker has ended, or has no page */
    void (*tell)(void *arg, const char *text, size_t n); /* send ten steps of this node's workers to group rank 0 */
    /* On group rank 0: a straggler that was not named already. step: last of the ten. */
    void (*found)(void *arg, const struct straggler_verdict *v, uint64_t step);
    void *arg;
};

int straggler_watch_open(struct straggler_watch **ret, const struct straggler_watch_options *o, struct err *e);

/* The workers of a round have been started: ranks base .. base + workers - 1 of world. */
int straggler_watch_begin_round(struct straggler_watch *w, int base, int world, bool leads, struct err *e);
void straggler_watch_progressed(struct straggler_watch *w); /* the first one made a step */
void straggler_watch_end_round(struct straggler_watch *w);
/* On group rank 0: handle another node's report. false: it makes no sense. */
bool straggler_watch_hear(struct straggler_watch *w, const char *text, size_t n);

void straggler_watch_close(struct straggler_watch *w); /* before the loop's last turns */

#endif
