/* Saving while training goes on: the state is copied to host memory between two steps, a thread writes the copy.
 *
 * One copy exists, taken when the writer is made: while it is being written no other can be saved (busy). The caller
 * decides whether to wait or to save a newer state later. Where a save takes all ranks, each of them has a writer; some
 * of these only send what others write (deal.h), from a copy of that and in a thread, too. */
#ifndef CRUN_WORKER_SNAPSHOT_WRITER_H
#define CRUN_WORKER_SNAPSHOT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct err;
struct position;
struct snapshot_identity;
struct snapshot_writer;
struct state;

struct snapshot_writer_options {
    const char *dir;
    const char *name; /* also DIR/<name>_<epochs>.mdl at the end of an epoch; NULL: no */
    int keep;         /* ckpt_save() */
    bool sync;        /* write in the caller's thread, without a copy: a save is complete when the call returns */
    bool writes;      /* false: this rank only gives what others write */
    /* Of the ranks that keep what this one does not: all of them have a writer. NULL: this one keeps all. Borrowed:
     * while they agree; for the rest they open groups of it. */
    struct comm *comm;
    int64_t timeout_ms; /* of a message of a save */
};

struct snapshot_saved {
    int64_t step;
    double copy_ms, write_ms; /* training stood still for the first (sync: for both) */
    int64_t began_ns;         /* writing began, by clock_ns() */
    int64_t bytes;            /* of tensors */
};

struct snapshot_best {
    int64_t updates; /* of its checkpoint's step; 0: there is none */
    double top1;     /* struct position's */
};

/* state and id: borrowed until close. Strings of *o, too. With o->comm: all of its ranks. */
int snapshot_writer_open(struct snapshot_writer **ret, struct state *s, const struct snapshot_identity *id,
                         const struct snapshot_writer_options *o, struct err *e);

bool snapshot_writer_busy(struct snapshot_writer *w);

/* Until nothing is being written. ERR_OUTPUT after timeout_ms names the step. */
int snapshot_writer_wait(struct snapshot_writer *w, int64_t timeout_ms, struct err *e);

/* With o->comm, before a save: all ranks. Does any rank want to write? free: this one's last save is over. *ret: the
 * same on all ranks; if true, all of them call snapshot_writer_save(). False if a rank is not free: ERR_OUTPUT names it
 * on those that want to write. */
int snapshot_writer_agree(struct snapshot_writer *w, bool want, bool free, bool *ret, struct err *e);

/* Copy the state and have it written as DIR/step-<updates>, or given, as agreed; not while busy, and after the last
 * result was taken. epochs: done with this step, -1: it ends none. An error is one of copying; that of writing is a
 * result. */
int snapshot_writer_save(struct snapshot_writer *w, const struct position *at, int64_t epochs, struct err *e);

/* This checkpoint, once written, is the best so far: DIR/best and its own manifest say so. Not while busy with another
 * one's, or before its result was taken. */
void snapshot_writer_best(struct snapshot_writer *w, const struct snapshot_best *best);

/* What became of the last that was to be the best (*ret, unless 0): 1 DIR/best says so, 0 nothing new, < 0 it is not
 * saved, or nothing says that it is the best (logged). Once for each. */
int snapshot_writer_best_result(struct snapshot_writer *w, struct snapshot_best *ret);

/* What became of the last save: 1 it is on the disk, 0 nothing new (or given), < 0 it failed (ret->step says which).
 * Once for each. ERR_DIVERGED: a tensor is not finite; nothing was written then, so that rotation keeps the last
 * good one. */
int snapshot_writer_result(struct snapshot_writer *w, struct snapshot_saved *ret, struct err *e);

/* After a result of -ENOSPC or -EDQUOT: ckpt_make_room(). Did it remove one? What it removed, or could not, is logged.
 * Not while busy. */
bool snapshot_writer_make_room(struct snapshot_writer *w);

/* Waits for what is being written. After timeout_ms it is left to its thread, whose memory is not freed: for a process
 * that ends. NULL allowed. */
void snapshot_writer_close(struct snapshot_writer *w, int64_t timeout_ms);

#endif
