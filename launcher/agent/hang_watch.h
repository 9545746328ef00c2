/* Watching the workers for hangs: the timer, /proc and the saving of stacks around hang.h.
 *
 *   - a look at the pages when a step's time may be over, at most once a second; no wake-up of its own before the first
 *     step but one a minute;
 *   - somebody hangs: said, stacks of all local workers saved on a thread (SAVE_MS at most), then AGENT_HUNG;
 *   - crun itself was stopped (Ctrl-Z, SIGSTOP) or did not run for a second: all workers get a fresh time.
 * Loop thread only. */
#ifndef CRUN_LAUNCHER_HANG_WATCH_H
#define CRUN_LAUNCHER_HANG_WATCH_H

struct err;
struct run;

int hang_watch_open(struct run *r, struct err *e); /* sets r->hang; NULL if switched off */
void hang_watch_begin_round(struct run *r);        /* the workers are started */
void hang_watch_progressed(struct run *r);         /* the first one made a step */
void hang_watch_end_round(struct run *r);          /* nobody is left; the pages are still there */
const char *hang_watch_text(const struct run *r);  /* of the hang that was seen last, for people; "": none */
void hang_watch_close(struct run *r);              /* before the loop's last turns */

#endif
