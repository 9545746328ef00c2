/* Saving while training goes on: the state is copied to host memory between two steps, a thread writes the copy.
 *
 * One copy exists, taken when the writer is made: while it is being written no other can be saved (busy). The caller
 * decides whether to wait or to save a newer state later. */
#ifndef CRUN_WORKER_SNAPSHOT_WRITER_H
#define CRUN_WORKER_SNAPSHOT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/parallel/layout.h"

struct comm;
struct err;
struct position;
struct snapshot_identity;
struct snapshot_writer;
struct state;

struct snapshot_writer_options {
    const char *dir;
    const char *name;                   /* also DIR/<name>_<epochs>.mdl at the end of an epoch; NULL: no */
    int keep;                           /* ckpt_save() */
    bool sync;                          /* write in the caller's thread: a save is complete when the call returns */
    struct comm *groups[LAYOUT_GROUPS]; /* of ddp_create(); borrowed: what other ranks keep comes over them */
};

struct snapshot_saved {
    int64_t step;
    double copy_ms, write_ms; /* training stood still for the first (sync: for both) */
    int64_t began_ns;         /* writing began, by clock_ns() */
    int64_t bytes;            /* of tensors */
};

/* state and id: borrowed until close. Strings of *o, too. */
int snapshot_writer_open(struct snapshot_writer **ret, struct state *s, const struct snapshot_identity *id,
                         const struct snapshot_writer_options *o, struct err *e);

bool snapshot_writer_busy(struct snapshot_writer *w);

/* Until nothing is being written. ERR_OUTPUT after timeout_ms names the step. */
int snapshot_writer_wait(struct snapshot_writer *w, int64_t timeout_ms, struct err *e);

/* Copy the state and have it written as DIR/step-<updates>; not while busy, and after the last result was taken.
 * epochs: done with this step, -1: it ends none. An error is one of copying; that of writing is a result. Where moments
 * are cut, ranks that do not save call snapshot_give() at the same time. */
int snapshot_writer_save(struct snapshot_writer *w, const struct position *at, int64_t epochs, struct err *e);
int snapshot_give(const struct state *s, struct comm *const groups[LAYOUT_GROUPS], struct err *e);

/* The checkpoint of this step, once written, is the best so far, of this accuracy: DIR/best and its own manifest say
 * so. Not while busy with another one's. */
void snapshot_writer_best(struct snapshot_writer *w, int64_t step, double top1);

/* What became of the last save: 1 it is on the disk, 0 nothing new, < 0 it failed (ret->step says which). Once for
 * each. ERR_DIVERGED: a parameter is not finite; nothing was written then, so that rotation keeps the last good one. */
int snapshot_writer_result(struct snapshot_writer *w, struct snapshot_saved *ret, struct err *e);

/* Waits for what is being written. After timeout_ms it is left to its thread, whose memory is not freed: for a process
 * that ends. NULL allowed. */
void snapshot_writer_close(struct snapshot_writer *w, int64_t timeout_ms);

#endif
