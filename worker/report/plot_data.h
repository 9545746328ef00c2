/* What a plot shows, read from metrics.jsonl or a CSV log of Caffe2's trainer. */
#ifndef CRUN_WORKER_REPORT_PLOT_DATA_H
#define CRUN_WORKER_REPORT_PLOT_DATA_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct lines;

enum plot_series { PLOT_LOSS, PLOT_ACC1, PLOT_RATE, PLOT_SERIES };

struct plot_step {
    double step;
    double raw[PLOT_SERIES], smooth[PLOT_SERIES]; /* NAN: not known */
};

struct plot_eval {
    double step, loss, acc1;
};

struct plot_restart {
    double step;
    int number; /* 0: resumed by hand */
};

struct plot_data {
    struct plot_step *steps;
    struct plot_eval *evals;
    struct plot_restart *restarts;
    size_t n_steps, n_evals, n_restarts;
    bool tokens; /* rates are of tokens */
    bool means;  /* a step here is the mean of many */
};

/* path: metrics.jsonl (its first byte is a '{') or a CSV log. smoothing: see plot_draw().
 * -ENOENT, ERR_CORRUPT (names the line), ERR_DATA without a training step or if it is neither. */
int plot_data_read(struct plot_data *d, const char *path, double smoothing, struct err *e);
void plot_data_free(struct plot_data *d);

/* For readers: false if there is no memory. */
bool plot_data_add_step(struct plot_data *d, double step, double loss, double acc1, double rate);
bool plot_data_add_eval(struct plot_data *d, double step, double loss, double acc1);

/* The rest of a CSV log whose first line is in l: comments, the line of column names, a row an epoch. The step is
 * cumulative_batch_count, accuracies of 0..1 become percent. ERR_DATA where a column is missing. */
int plot_csv_read(struct plot_data *d, struct lines *l, struct err *e);

#endif
