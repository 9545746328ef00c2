/* The Caffe2 trainer's CSV log: <arch>_gpu%d_b%d_L%d_lr%.2f_v2_YYYYMMDD_HHMMSS.log: a "# parameters" line, a header, a
 * row per epoch (columns and their order: caffe2/python/experiment_util.py; values as documented in
 * docs/reference/files.md). */
#ifndef CRUN_WORKER_CAFFE2_LOG_H
#define CRUN_WORKER_CAFFE2_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct err;
struct caffe2_log;

struct caffe2_log_options {
    const char *dir;
    const char *arch; /* stands where the original has resnet50 */
    int devices;      /* ranks */
    int batch;        /* global */
    int labels;
    double lr;
    const char *parameters; /* one line; newlines in it become spaces */
    bool resume;            /* go on with the log that is there even from epoch 0; implied by first_epoch > 0 */
};

struct caffe2_row {
    double time_spent, cumulative_time_spent; /* seconds */
    int64_t input_count, cumulative_input_count, cumulative_batch_count;
    double inputs_per_sec, accuracy;           /* accuracy of training, 0..1 */
    int64_t epoch;                             /* 0-based, as Caffe2 */
    double learning_rate, loss, test_accuracy; /* -1 without test data */
};

/* A new file, or on resume the newest one in dir of this arch (whatever its other numbers: a resized job goes on with
 * its log): rows of epochs from first_epoch on and a torn last row are cut off, and *ret_seconds is the cumulative time
 * of the last row kept (0 if none). A log without a row, left by a start with the same numbers that did not get that
 * far, is used again rather than left lying about, unless the run that made it is alive: two runs never share a
 * file. */
int caffe2_log_open(struct caffe2_log **ret, const struct caffe2_log_options *o, int64_t first_epoch,
                    double *ret_seconds, struct err *e);
int caffe2_log_row(struct caffe2_log *l, const struct caffe2_row *r, struct err *e); /* flushed */
const char *caffe2_log_path(const struct caffe2_log *l);
void caffe2_log_close(struct caffe2_log *l); /* NULL allowed */

#endif
