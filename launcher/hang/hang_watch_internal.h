/* What hang_watch.c and hang_save.c share; for them alone. */
#ifndef CRUN_LAUNCHER_HANG_WATCH_INTERNAL_H
#define CRUN_LAUNCHER_HANG_WATCH_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/hang/hang_watch.h"

struct save;

struct hang_watch {
    struct hang_watch_options o;
    struct hang hang;
    struct hang_worker *workers;
    int n;
    uv_timer_t timer;
    uv_async_t saved; /* a save is done */
    int open_handles;
    int64_t planned_ns; /* of the next look, 0: none */
    bool said_mute, was_traced;
    struct save *save; /* under way */
    struct hang_verdict verdict;
};

/* --- hang_watch.c */

void hang_read_workers(struct hang_watch *w);
void hang_tell(struct hang_watch *w); /* the round is to end */

/* --- hang_save.c */

/* Of the workers that hang, on a thread; then hang_tell(). False: there is nowhere to save anything. */
bool hang_save_stacks(struct hang_watch *w);
void hang_on_saved(uv_async_t *saved);
void hang_abandon_save(struct hang_watch *w);
void hang_wait_for_threads(void); /* a second at most */

#endif
