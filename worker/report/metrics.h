/* metrics.jsonl: one JSON object per training step and per evaluation, append-only within a run, cut back to the
 * resumed step.
 *
 *     {"step":120,"epoch":1.905,"loss":1.234,"acc1":54.7,"acc5":92.2,"lr":0.09,"images_per_sec":81.2,"data_wait":0.01,
 *      "comm_wait":0.04,"seconds":98.1,"bad_samples":0}                                                     (one line)
 * with loss scaling also "loss_scale" and "skipped"; where gradients are looked at (clipping, fp16) "grad_norm"
 *     {"step":126,"epoch":2,"test_loss":1.1,"test_acc1":60.1,"test_acc5":95,"test_images":1000,"seconds":103.2,
 *      "bad_samples":0}
 *     {"event":"resume","step":120,"restart":1,"time":"2026-11-21T13:46:37.123Z"}
 *
 * Losses are written so that they read back exactly. Numbers that are not finite are written as null. Every line is one
 * write(2), so a killed run leaves at most one torn line. */
#ifndef CRUN_WORKER_METRICS_H
#define CRUN_WORKER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct metrics;

/* path is created if missing. Every line with "step" > first_step is cut off, and a torn last line; lines without a
 * step and events up to it (restarts, also those at step 0) are kept. evaluates: the run evaluates at first_step, (once
 * more) before its first step, and an evaluation there is cut off, too. *ret_seconds: "seconds" of the last line kept
 * that has it, 0 if none. */
int metrics_open(struct metrics **ret, const char *path, int64_t first_step, bool evaluates, double *ret_seconds,
                 struct err *e);
/* The last step of which a line was kept; 0: none. */
int64_t metrics_last_step(const struct metrics *m);
void metrics_close(struct metrics *m); /* NULL allowed */

struct metrics_step {
    int64_t step;                /* steps finished so far */
    double epoch;                /* fractional */
    double loss, acc1, acc5, lr; /* means over the global batch; acc in percent */
    double rate;                 /* images, or tokens, a second, global */
    bool tokens;                 /* the model reads tokens: "tokens_per_sec" and "perplexity" are written */
    double data_wait;            /* share of the step's time waiting for data, 0..1 */
    double comm_wait;            /* share waiting for collectives */
    double seconds;              /* training time so far, restarts carried on */
    int64_t bad_samples;         /* of this step, all ranks */
    double loss_scale;           /* of the next step; 0: nothing is scaled, neither this nor `skipped` is written */
    int64_t skipped;             /* steps so far that were left out because gradients overflowed */
    double grad_norm;            /* of the mean gradient, before clipping; 0: not known, not written */
};
int metrics_step(struct metrics *m, const struct metrics_step *s, struct err *e);

struct metrics_eval {
    int64_t step;
    double epoch, loss, acc1, acc5, seconds;
    int64_t counted;     /* images, or tokens */
    bool tokens;         /* as above */
    int64_t bad_samples; /* could not be decoded */
};
int metrics_eval(struct metrics *m, const struct metrics_eval *v, struct err *e);

/* {"event": name, "step": ..., "restart": n, "time": iso}, then the members of more (NULL: none), which it takes
 * over. */
struct cJSON;
int metrics_event(struct metrics *m, const char *name, int64_t step, int restart, struct cJSON *more, struct err *e);

/* {"event": "checkpoint", "step": ..., "copy_ms": ..., "write_ms": ..., "bytes": ...}: training stood still for copy_ms
 * (--checkpoint-sync: for both). */
int metrics_checkpoint(struct metrics *m, int64_t step, double copy_ms, double write_ms, int64_t bytes, struct err *e);

#endif
