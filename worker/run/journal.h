/* What rank 0 leaves behind of a run: metrics.jsonl, bad-samples.txt, the Caffe2 CSV log, progress lines. Other ranks
 * have a journal that does nothing, or with --log-all-ranks one that writes progress lines; runs without a log folder
 * leave no files. */
#ifndef CRUN_WORKER_JOURNAL_H
#define CRUN_WORKER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/report/meters.h"
#include "worker/report/progress.h"
#include "worker/run/eval.h"

struct caffe2_log;
struct err;
struct eval_result;
struct metrics;
struct position;
struct session;
struct snapshot_saved;
struct step_result;
struct tensorboard;

struct journal {
    bool active;             /* rank 0 */
    struct metrics *metrics; /* NULL: no files */
    int64_t metrics_missing; /* lines that it could not take, since the last that it could */
    struct caffe2_log *csv;
    char bad_samples[4096];          /* path of the file; "": none */
    int lock_fd;                     /* holds the log folder for this run; 0: none of its own */
    struct tensorboard *tensorboard; /* NULL: not asked for */
    bool lines;                      /* progress lines are written */
    struct progress progress;
    char prefix[24]; /* of them */
    struct meters meters;
    double eval_seconds; /* of the last evaluation */
    int64_t opened_ns;
    int world;
};

/* Before anything is changed: can logs be written where they are to go? ERR_OUTPUT. */
int journal_check(const struct session *s, struct err *e);
/* at: where the run starts or (resumed) goes on; logs are cut back to it. evaluates: an evaluation there is still to
 * come. What an older run has logged is kept under another name where this one starts. at->seconds is raised to what
 * was logged last: another rank, by a clock of its own, may have written that. */
int journal_open(struct journal *j, const struct session *s, struct position *at, bool evaluates, bool resumed,
                 int restart, const char *command_line, struct err *e);
void journal_close(struct journal *j);

/* A file that cannot be written ends there, which is logged once, but for metrics.jsonl, which goes on when it can; the
 * others and the lines for people go on. */
void journal_step(struct journal *j, const struct session *s, const struct position *at, const struct step_result *r,
                  double lr, double comm_wait);
/* Does a file of steps, opened just now, end before this step? */
bool journal_lacks(const struct journal *j, int64_t step);
/* After an epoch; v NULL: it was not evaluated. */
void journal_epoch(struct journal *j, const struct session *s, const struct position *at, const struct eval_result *v,
                   double lr);
/* For evaluate(): lines of batches, where the format has them. What they say is of this rank's share. */
struct eval_watch journal_watch(struct journal *j, const struct session *s);
/* Training is complete: what the format's program prints then. */
void journal_complete(struct journal *j);
/* Images/s without warm-up, and what memory went into; to people and as an event "end". */
void journal_end(struct journal *j, const struct session *s, const struct position *at);
/* An event among the metrics, with what `more` holds, which it takes over. */
struct cJSON;
void journal_event(struct journal *j, const char *name, int64_t step, struct cJSON *more);
/* A checkpoint is complete. */
void journal_checkpoint(struct journal *j, const struct snapshot_saved *saved);
/* A line for people, not torn by the progress line. */
void journal_say(struct journal *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
