/* Inside of train.h: a run, and what its files do with it.
 *
 *   train.c    the rounds of a process
 *   round.c      a round: step after step, ends of epochs, saves, the end of the run
 *   begin.c        before the first step of a round
 *   take_up.c        the state: of ranks that have it, else of a checkpoint
 *   steps.c        from one place where something is due to the next
 *   epoch.c        the end of an epoch: its figures, an evaluation
 *   replay.c       replicas are compared, and what comes of it
 *   run.c      where a run stands
 *
 * On a device that goes on by itself results come one step late: `at` is where results are. Steps are done from one
 * place to the next: the end of an epoch or of the run, a comparison of replicas, a checkpoint. There the state is of
 * `at`. All on the thread of training; all ranks make the same calls, unless noted otherwise. */
#ifndef CRUN_WORKER_TRAIN_RUN_H
#define CRUN_WORKER_TRAIN_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/optim/schedule.h"
#include "worker/run/drill.h"
#include "worker/run/eval.h"
#include "worker/run/guard.h"
#include "worker/run/journal.h"
#include "worker/run/keep.h"
#include "worker/run/links.h"
#include "worker/run/saver.h"
#include "worker/run/settle.h"
#include "worker/run/step.h"
#include "worker/run/trace.h"
#include "worker/session/session.h"

struct env_contract;
struct err;
struct train_config;

struct run {
    const struct train_config *cfg;
    const struct env_contract *env; /* of this round */
    const char *command_line;
    struct session s;
    struct journal journal;
    struct trace trace;
    int64_t steps;   /* of this process, begun */
    int64_t stop_at; /* ranks agreed to stop: at the latest after so many updates; 0: no */
    struct position at;
    bool has_state; /* what is in memory is of `at` */
    struct step_result last_step;
    struct schedule schedule;
    struct step step;
    struct eval_result last; /* count 0: nothing evaluated yet */
    bool save_asked;         /* the last step's sums say that some rank wants to save */
    double epoch_bad;        /* samples of this epoch that could not be decoded, since it began or was resumed */
    bool sound;              /* this process has seen an image that counted */
    int64_t unsound_steps;   /* until then: steps of images that could not be decoded, */
    double unsound;          /* and how many these were */
    int64_t started_ns;
    struct saver saver;
    struct keep keep;
    struct guard guard;
    struct drill drill;
    struct links links;
    bool all_wait; /* for the network, in the last step */
};

/* --- run.c */

/* Learning rate of the step to do, or (ahead = -1) of the last one done. */
double run_rate(const struct run *r, int ahead);

/* Is `at` the end of an epoch, or of the run? */
bool run_over_at(const struct run *r, const struct position *at);
bool run_epoch_over(const struct run *r);
/* Evaluations have been no better for as long as --early-stop waits. */
bool run_stands_still(const struct run *r);
/* No step may follow in any epoch. */
bool run_training_over(const struct run *r);

bool run_wants_stop(const struct run *r); /* this rank */
/* All ranks find the same: they have begun the same steps, or come to the same end of an epoch, whoever caught up in
 * between to save. */
bool run_stops_now(const struct run *r);

/* Ranks that do the whole of a step each, and know what it was made of. In a pipeline, or a tensor group, they also
 * wait for others in the middle of their work; a device that goes on by itself tells nobody when it does what. */
bool run_tells_parts(const struct run *r);
bool run_outlives_rounds(const struct run *r);
/* Nothing is left of it in the end. A run on made-up images has none worth a word. */
bool run_loses_model(const struct run *r);

struct settled run_standing(const struct run *r);
/* After r->at was set: the optimizer's count and the device's loss scale follow from where the run stands. */
void run_follow_position(struct run *r);
/* The loader's next batch is that of r->at. */
int run_seek(struct run *r, struct err *e);

/* --- begin.c, take_up.c */

/* Everything between session_open_round() and the first step. */
int begin_run(struct run *r, const struct env_contract *env, const char *command_line, struct err *e);

/* r->at and the state become those of ranks that have them, or of copies in memory, where this is a round after another
 * one; else of a checkpoint. */
enum taken { TAKEN_NOTHING, TAKEN_FILES, TAKEN_MEMORY, TAKEN_RANKS };
int take_up(struct run *r, const struct env_contract *env, enum taken *ret, struct err *e);

/* --- steps.c */

/* Steps up to the next place where something has to happen: on a device that goes on by itself as many as lie between,
 * each enqueued before the last one's result is there; else one. Then none is outstanding, and the state is of
 * r->at. Errors of train_step(). */
int steps_to_next_place(struct run *r, struct err *e);
/* This rank alone, after the round has failed and its communicator was aborted: steps that the device had done, or
 * was doing, before that count, too. */
void steps_drain(struct run *r);

/* --- replay.c */

/* step.before_update: between the sums of a step and its update; arg is the run. */
int replay_before_update(void *arg, struct err *e);
/* steps_to_next_place(). 1: it came to no number, and all ranks went back. */
int replay_next_place(struct run *r, struct err *e);
/* All ranks, at a place. > 0: they went back. */
int replay_where_due(struct run *r, struct err *e);

/* --- epoch.c */

/* After a step. ERR_DATA: so far not one image could be decoded, and these are too many for an accident. The same on
 * all ranks. */
int epoch_check_sound(struct run *r, const struct step_result *res, struct err *e);
bool epoch_counted_nothing(const struct run *r); /* so far; at its end it is refused, and not worth saving */
/* Where this rank writes what was left out; NULL: nowhere. */
const char *epoch_bad_samples(const struct run *r);

/* Is `at` the end of an epoch (still to be handled) where there is an evaluation? */
bool epoch_evaluates(const struct run *r);
int epoch_evaluate(struct run *r, struct eval_result *v, struct err *e);
/* ERR_DIVERGED where the test loss is no number; last: no step follows. */
int epoch_check_test_loss(const struct run *r, const struct eval_result *v, bool last, struct err *e);
/* *ret_stop: some rank wants to stop; the epoch's end is then still to be handled. */
int epoch_end(struct run *r, bool *ret_stop, struct err *e);
void epoch_next(struct position *at);

/* --- round.c */

/* One round, up to the end of the run: then 0 and *ret_exit. */
int run_round(struct run *r, const struct env_contract *env, const char *command_line, int *ret_exit, struct err *e);

#endif
