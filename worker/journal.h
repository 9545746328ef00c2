/* What rank 0 leaves behind of a run: metrics.jsonl, the Caffe2 CSV log, the progress line. Other ranks, and runs without a log folder,
 * have a journal that does nothing. */
#ifndef CRUN_WORKER_JOURNAL_H
#define CRUN_WORKER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/report/progress.h"

struct caffe2_log;
struct err;
struct eval_result;
struct metrics;
struct position;
struct session;
struct step_result;

struct journal {
    bool active;             /* rank 0 */
    struct metrics *metrics; /* NULL: no files */
    struct caffe2_log *csv;
    struct progress progress;
};

/* at: where the run starts or goes on; logs are cut back to it. */
int journal_open(struct journal *j, const struct session *s, const struct position *at, int restart,
                 const char *command_line, struct err *e);
void journal_close(struct journal *j);

int journal_step(struct journal *j, const struct session *s, const struct position *at, const struct step_result *r,
                 double lr, double comm_wait, struct err *e);
/* After an epoch; v NULL: it was not evaluated. */
int journal_epoch(struct journal *j, const struct session *s, const struct position *at, const struct eval_result *v,
                  double lr, struct err *e);
/* A line for people, not torn by the progress line. */
void journal_say(struct journal *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
