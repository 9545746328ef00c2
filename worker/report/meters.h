/* What a run tells of itself, for people and programs. Nothing here knows what training is: numbers come in, lines and
 * files go out.
 *
 *   result of a step -> meters.h: means and rates -> progress.h: lines on stderr
 *                    -> metrics.h: metrics.jsonl, caffe2_log.h: CSV, tensorboard.h: event files
 *   spans of time -> timeline.h: Chrome's trace format
 *   metrics.jsonl or CSV -> plot_data.h -> plot.h -> gnuplot.h: pictures (`trainer plot`)
 *
 * Logs are cut back by lines.h to the step that a run resumes from.
 *
 * This header: values of the last step and means over the epoch, as this process saw them, and images/s without the
 * steps in which a process warms up (first touch of memory, kernels generated, threads started). */
#ifndef CRUN_WORKER_REPORT_METERS_H
#define CRUN_WORKER_REPORT_METERS_H

#include <stdint.h>

#include "worker/report/progress.h"

enum { METERS_WARM_UP_STEPS = 2 };

struct meter {
    double now, sum, weight;
};

struct meters_step { /* one step; loss and hits are sums over the global batch */
    int64_t epoch;
    double loss, top1, top5, count; /* images that counted */
    double seconds, data_seconds;
};

struct meters { /* all-zero: nothing seen */
    int64_t epoch, steps;
    struct meter loss, acc1, acc5, time, data;
    double rate_now;
    double epoch_images, epoch_seconds, run_images, run_seconds; /* without warm-up */
    int64_t run_steps;
};

void meters_add(struct meters *m, const struct meters_step *s);
double meters_mean(const struct meter *m); /* 0 before anything was added */
/* Images/s over the epoch and the whole process; all steps count as long as there are none but those of the warm-up. */
double meters_epoch_rate(const struct meters *m);
double meters_run_rate(const struct meters *m);
double meters_step_seconds(const struct meters *m);                 /* mean over the process */
void meters_show(const struct meters *m, struct progress_state *s); /* loss, acc1, acc5, time, data, rate */

#endif
