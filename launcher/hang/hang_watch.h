/* Watches the workers for hangs: the timer, /proc and the saving of stacks around hang.h.
 *
 * How data flows: workers that call libcrun write each step and phase into a page of shared memory. The watch reads the
 * pages when hang.h says that a worker may be late, and /proc only then. stacks.c finds out what all threads of the
 * workers are doing; the output process writes it into files.
 *
 *   - it looks at the pages when a step's time may be over, at most once a second; before the first step it wakes up
 *     only once a minute;
 *   - a worker hangs: it is logged, `found` is called, the stacks of all local workers are saved on a thread (SAVE_MS
 *     at most), then `hung` is called, which must end the round;
 *   - crun itself was stopped (SIGSTOP) or did not run for a second, or the workers were paused (Ctrl-Z): all workers
 *     get their full time again.
 * If no worker reports anything and a time was given, the watch looks at /proc for signs of life instead (quiet.h),
 * ten times in that time. The other nodes tell group rank 0 when theirs give none; it answers when no worker of the
 * job gives any. The node of the rank to blame ends the round; group rank 0, if nobody stands out. All save their
 * stacks. If NCCL's RAS is a witness (hang_options.witness_ns), group rank 0 also asks it whom the others wait for,
 * once no worker reads or writes (hang_witness.c). The workers that it names are logged, and from then on only their
 * signs of life count. Loop thread only. A NULL watch (switched off) takes every call. */
#ifndef CRUN_LAUNCHER_HANG_WATCH_H
#define CRUN_LAUNCHER_HANG_WATCH_H

#include <stddef.h>
#include <uv.h>

#include "launcher/hang/hang.h"

struct err;
struct hang_watch;
struct logmux;

struct hang_watch_options { /* pointers are borrowed */
    uv_loop_t *loop;
    struct logmux *mux; /* for people */
    struct hang_options hang;
    int workers;
    bool keeps_stacks; /* false: stacks are removed when crun ends, and that is printed */
    /* What the watch asks. */
    bool (*is_running)(void *arg); /* workers run, and are neither being stopped nor paused */
    void (*read_worker)(void *arg, int local, struct hang_worker *ret); /* fills in all but stopped and traced */
    bool (*stacks_path)(void *arg, int rank, char *out, size_t cap); /* path for a new file; false: there is no place */
    /* What the watch reports. */
    void (*found)(void *arg, int64_t now_ns, const struct hang_verdict *v); /* the stacks come next */
    void (*hung)(void *arg, const struct hang_verdict *v);                  /* nothing follows in this round */
    /* For signs of life. On group rank 0: how often keys of the round's store were changed. On other nodes: send a
     * text to group rank 0, whose answer goes to hang_watch_answer(). */
    uint64_t (*store_changes)(void *arg);
    void (*tell_quiet)(void *arg, const char *text, size_t n);
    void *arg;
};

int hang_watch_open(struct hang_watch **ret, const struct hang_watch_options *o, struct err *e); /* NULL if off */
/* The workers have been started: ranks base .. base + workers - 1 of world. leads: this node is group rank 0.
 * -ENOMEM. */
int hang_watch_begin_round(struct hang_watch *w, int base, int world, bool leads);
/* On group rank 0: another node reports that its workers are quiet. answer[cap] gets the verdict if no worker gives
 * a sign of life. false: the text makes no sense. On other nodes, hang_watch_answer() takes the answer. */
bool hang_watch_hear(struct hang_watch *w, const char *text, size_t n, char *answer, size_t cap);
void hang_watch_answer(struct hang_watch *w, const char *answer);
void hang_watch_progressed(struct hang_watch *w);        /* the first worker made a step */
void hang_watch_go_on(struct hang_watch *w);             /* is_running() again: all workers get their full time */
void hang_watch_end_round(struct hang_watch *w);         /* no worker is left; the pages still exist */
const char *hang_watch_text(const struct hang_watch *w); /* the newest hang, for people; "": none */
void hang_watch_close(struct hang_watch *w);             /* before the loop's last turns */

#endif
