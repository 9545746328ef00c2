/* metrics.jsonl: one JSON object per training step and per evaluation, append-only within a run, cut back to the resumed step. */
#ifndef CRUN_WORKER_METRICS_H
#define CRUN_WORKER_METRICS_H

#include <stdint.h>

struct err;
struct metrics;

/* path is created, or on resume (first_step > 0) every line with "step" > first_step is cut off, as is a torn last line.
 * Lines without a step (comments on restarts) are kept. *ret_seconds: "seconds" of the last line kept, 0 if none. */
int metrics_open(struct metrics **ret, const char *path, int64_t first_step, double *ret_seconds, struct err *e);
void metrics_close(struct metrics *m);

struct metrics_step {
    int64_t step;            /* steps finished so far */
    double epoch;            /* fractional */
    double loss, acc1, acc5, lr; /* means over the global batch; acc in percent */
    double images_per_sec;   /* global */
    double data_wait;        /* share of the step's time waiting for data, 0..1 */
    double comm_wait;        /* share waiting for collectives */
    double seconds;          /* training time so far, restarts carried on */
    int64_t bad_samples;     /* of this step, all ranks */
};
int metrics_step(struct metrics *m, const struct metrics_step *s, struct err *e);

struct metrics_eval {
    int64_t step;
    double epoch, loss, acc1, acc5, seconds;
    int64_t images;
};
int metrics_eval(struct metrics *m, const struct metrics_eval *v, struct err *e);

/* {"event": name, "step": ..., "restart": n, "time": iso} */
int metrics_event(struct metrics *m, const char *name, int64_t step, int restart, struct err *e);

/* PNG of loss, Acc@1 and images/s over steps, drawn by gnuplot from metrics.jsonl. -ENOENT if gnuplot is not installed. */
int metrics_plot(const char *jsonl, const char *png, struct err *e);

#endif
