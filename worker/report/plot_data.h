/* What a plot shows, read from metrics.jsonl. */
#ifndef CRUN_WORKER_REPORT_PLOT_DATA_H
#define CRUN_WORKER_REPORT_PLOT_DATA_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct err;

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
};

/* -ENOENT, ERR_CORRUPT (names the line), ERR_DATA without a training step. */
int plot_data_read(struct plot_data *d, const char *jsonl, struct err *e);
void plot_data_free(struct plot_data *d);

#endif
