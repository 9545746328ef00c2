/* Curves of one run or several, as a PNG of 1200 x 900 drawn by gnuplot. */
#ifndef CRUN_WORKER_REPORT_PLOT_H
#define CRUN_WORKER_REPORT_PLOT_H

#include <stddef.h>

struct err;

enum { PLOT_RUNS_MAX = 7 }; /* as many colours as everybody can distinguish, black among them */

/* Loss, Acc@1 and images/s, or tokens/s, over steps. runs: folders with metrics.jsonl, such files, or CSV logs of
 * Caffe2's trainer. smoothing: steps of a centred mean if >= 1, else the share of a run's steps.
 *   - one run: every step as a point, the smoothed curve, evaluations, a dashed line at every event named "resume" or
 *     with restart > 0;
 *   - several: smoothed curves of training and dashed ones of evaluations, a colour a run, named in the legend by its
 *     folder with the last test Acc@1; by its whole path where two folders have the same name.
 * Written beside png and renamed. -ENOENT if gnuplot is not installed; ERR_DATA if a run is not there or holds no
 * training step; ERR_CORRUPT names the line; ERR_USAGE for more runs than colours; ERR_OUTPUT if png cannot be written;
 * -ETIMEDOUT if gnuplot takes longer than a minute. */
int plot_draw(const char *const *runs, size_t n, double smoothing, const char *png, struct err *e);

#endif
