/* When checkpoints are saved: by steps, by time, at the end of an epoch, when one is the best so far, at the end. */
#ifndef CRUN_WORKER_SAVER_H
#define CRUN_WORKER_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/snapshot/snapshot_writer.h"

struct err;
struct eval_result;
struct journal;
struct position;
struct session;
struct trace;

struct saver {
    struct session *s;
    struct journal *journal;
    const struct trace *trace;
    struct snapshot_writer *writer; /* NULL: this rank has nothing to do with what is saved */
    bool together;                  /* what is saved takes all ranks */
    bool asks;                      /* a wish to save is announced to all ranks first */
    bool last;                      /* the caller's: no step follows, and saver_finish() does */
    bool pending;                   /* a save is due and the one before is not on the disk yet */
    int64_t saved_ns;
    int64_t saved_updates;     /* of the newest save of this process that has not failed, -1: none */
    struct snapshot_best told; /* the newest that was to be saved as the best */
    struct snapshot_best on_disk;
};

/* Takes the host memory of a copy of the state. at: where the run stands, with the best so far. */
int saver_open(struct saver *v, struct session *s, struct journal *j, const struct trace *t, const struct position *at,
               struct err *e);
/* failed: a write that takes long is not waited for. One that was never opened, too. */
void saver_close(struct saver *v, bool failed);

/* Nothing is being written. */
bool saver_is_idle(const struct saver *v);

/* Will saver_step() want to save at this position? For those who must see to it that the state is of that step. */
bool saver_due(const struct saver *v, const struct position *at, bool over);

/* Where ranks tell one another, before each step: does this one want to save, once it is done and leads to this
 * position? What is due and has to wait stays pending. */
bool saver_wants(struct saver *v, const struct position *at, bool over);

/* After a step, before the next. over: it was the last of an epoch or of the run. asked: where ranks save together,
 * that some rank wanted to, the same on all of them. Errors are logged: training goes on. Did training stand still for
 * a save? */
bool saver_step(struct saver *v, struct position *at, bool over, bool asked);

/* After an evaluation: is it better than the best that was saved? Then it is saved. What is still being written counts
 * as saved until it fails. Where several ranks write (--checkpoint-per-node), the best is the best that any of them
 * has: a node that could not save that one keeps its older one until a better one comes. Errors of saving are logged;
 * others are those of ranks' agreement. All ranks. */
int saver_evaluated(struct saver *v, struct position *at, const struct eval_result *r, bool over, struct err *e);

/* The last checkpoint: it must succeed, and is complete on return. All ranks. */
int saver_finish(struct saver *v, struct position *at, bool over, struct err *e);

#endif
