/* What hang_watch.c and hang_save.c share; for them alone. */
#ifndef CRUN_LAUNCHER_HANG_WATCH_INTERNAL_H
#define CRUN_LAUNCHER_HANG_WATCH_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/hang/hang_watch.h"
#include "launcher/hang/quiet.h"

struct gather;
struct hang_witness;

/* Signs of life of workers that report nothing. */
struct hang_quiet {
    int base, world;
    bool leads;
    struct quiet_mark *marks; /* of this node's workers */
    struct quiet_rank *ranks; /* (world) on group rank 0, else this node's */
    int64_t sign_ns;          /* the last sign of any of this node's, or of the store */
    uint64_t changes;         /* of the store, at the last look */
    int64_t found_ns;         /* on group rank 0: nobody gives one, 0: somebody does */
    bool foreign;             /* the verdict is about a rank of another node, which ends the round */
};

struct hang_watch {
    struct hang_watch_options o;
    struct hang hang;
    struct hang_worker *workers;
    int n;
    uv_timer_t timer;
    int64_t planned_ns; /* of the next look, 0: none */
    bool was_traced;
    struct hang_quiet quiet;
    struct hang_witness *witness; /* NULL: none is asked */
    struct gather *save;          /* stacks that are being saved; NULL: none are */
    struct gather *flights;       /* Flight Recorders that are asked before; NULL: none are */
    int save_rank;                /* whose come first */
    bool save_ends;               /* the round, with it; else the round goes on */
    struct hang_verdict verdict;
};

/* --- hang_watch.c */

void hang_read_workers(struct hang_watch *w);
void hang_read_processes(struct hang_watch *w, int64_t now_ns);
void hang_plan(struct hang_watch *w, int64_t now_ns); /* the next look */
void hang_tell(struct hang_watch *w);                 /* the round is to end */
void hang_save_and_tell(struct hang_watch *w);

/* --- hang_quiet.c */

int hang_quiet_begin(struct hang_watch *w, int64_t now_ns, int base, int world, bool leads); /* -ENOMEM */
void hang_quiet_end(struct hang_watch *w);
/* Look for signs of life. True: nobody gives one, and what follows from it is under way. */
bool hang_quiet_look(struct hang_watch *w, int64_t now_ns);

/* --- hang_witness.c: NULL as w->witness is allowed everywhere */

int hang_witness_open(struct hang_watch *w);                                                   /* -ENOMEM */
int hang_witness_begin(struct hang_watch *w, int64_t now_ns, int base, int world, bool leads); /* -ENOMEM */
void hang_witness_end(struct hang_watch *w);
void hang_witness_close(struct hang_watch *w);
/* As hang_watch_hear() and hang_watch_answer(); false: that is not about the witness. */
bool hang_witness_hear(struct hang_watch *w, const char *text, size_t n, char *answer, size_t cap, bool *ret_good);
bool hang_witness_answer(struct hang_watch *w, const char *answer);
/* Some are named: their signs of life alone count. Elsewhere than on group rank 0 this node's ranks only. */
bool hang_witness_is_naming(const struct hang_watch *w);
bool hang_witness_names(const struct hang_watch *w, int rank);
int64_t hang_witness_last(const struct hang_watch *w);     /* sign of life of those that are named */
const char *hang_witness_text(const struct hang_watch *w); /* what RAS said last, for people; "": nothing */

/* --- hang_save.c */

/* Of all workers here, on a thread, that of `rank` first; then, if the round ends with it, hang_tell(). False: there is
 * nowhere to save anything. */
bool hang_save_stacks(struct hang_watch *w, int rank, const char *why, bool ends);
void hang_abandon_save(struct hang_watch *w);

#endif
