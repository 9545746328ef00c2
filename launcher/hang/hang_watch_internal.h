/* Shared by the hang_*.c files of the watch; for them alone. */
#ifndef CRUN_LAUNCHER_HANG_WATCH_INTERNAL_H
#define CRUN_LAUNCHER_HANG_WATCH_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/hang/hang_watch.h"
#include "launcher/hang/quiet.h"

struct gather;
struct hang_witness;

/* State of the search for signs of life. */
struct hang_quiet {
    int base, world;
    bool leads;
    struct quiet_mark *marks; /* of this node's workers */
    struct quiet_rank *ranks; /* (world) on group rank 0, else this node's */
    int64_t sign_ns;          /* the last sign of any worker of this node, or of the store */
    uint64_t changes;         /* of the store, at the last look */
    int64_t found_ns;         /* on group rank 0: when it was found that no worker gives any, 0: some do */
    bool foreign;             /* the verdict is about a rank of another node, and that node ends the round */
};

struct hang_watch {
    struct hang_watch_options o;
    struct hang hang;
    struct hang_worker *workers;
    int n;
    uv_timer_t timer;
    int64_t planned_ns; /* time of the next look, 0: none */
    bool was_traced;
    struct hang_quiet quiet;
    struct hang_witness *witness; /* NULL: none is asked */
    struct gather *save;          /* the saving of stacks in progress; NULL: none */
    struct gather *flights;       /* the Flight Recorders being asked before that; NULL: none */
    int save_rank;                /* rank whose stacks are saved first */
    bool save_ends;               /* the round ends when the stacks are saved; false: it goes on */
    struct hang_verdict verdict;
};

/* --- hang_watch.c */

void hang_read_workers(struct hang_watch *w);
void hang_read_processes(struct hang_watch *w, int64_t now_ns);
void hang_plan(struct hang_watch *w, int64_t now_ns); /* set the timer for the next look */
void hang_tell(struct hang_watch *w);                 /* end the round */
void hang_save_and_tell(struct hang_watch *w);

/* --- hang_quiet.c */

int hang_quiet_begin(struct hang_watch *w, int64_t now_ns, int base, int world, bool leads); /* -ENOMEM */
void hang_quiet_end(struct hang_watch *w);
/* Look for signs of life. True: there is none in the whole job, and the consequences are under way. */
bool hang_quiet_look(struct hang_watch *w, int64_t now_ns);

/* --- hang_witness.c: w->witness may be NULL in all of these */

int hang_witness_open(struct hang_watch *w);                                                   /* -ENOMEM */
int hang_witness_begin(struct hang_watch *w, int64_t now_ns, int base, int world, bool leads); /* -ENOMEM */
void hang_witness_end(struct hang_watch *w);
void hang_witness_close(struct hang_watch *w);
/* As hang_watch_hear() and hang_watch_answer(); false: the text is not about the witness. */
bool hang_witness_hear(struct hang_watch *w, const char *text, size_t n, char *answer, size_t cap, bool *ret_good);
bool hang_witness_answer(struct hang_watch *w, const char *answer);
/* Does the witness name workers? Then only their signs of life count. On other nodes than group rank 0: only this
 * node's ranks. */
bool hang_witness_is_naming(const struct hang_watch *w);
bool hang_witness_names(const struct hang_watch *w, int rank);
int64_t hang_witness_last(const struct hang_watch *w);     /* last sign of life of the named workers */
const char *hang_witness_text(const struct hang_watch *w); /* what RAS said last, for people; "": nothing */

/* --- hang_save.c */

/* Save the stacks of all workers here, on a thread, that of `rank` first; then call hang_tell() if the round ends
 * with it. False: there is no place for files. */
bool hang_save_stacks(struct hang_watch *w, int rank, const char *why, bool ends);
void hang_abandon_save(struct hang_watch *w);

#endif
