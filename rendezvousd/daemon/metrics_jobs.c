/* Writes the series of single jobs for /metrics (metrics.h). */
#include "rendezvousd/daemon/metrics_jobs.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/http/metrics_text.h"
#include "rendezvousd/daemon/metrics.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/jobs/job_metrics.h"

#define JOB_METRICS(X)                                                                                                 \
    X("job_running", "1 while its workers run.", strcmp(f->state, "running") == 0)                                     \
    X("job_ranks", "Ranks of its newest round.", f->world_size)                                                        \
    X("job_restarts", "Restarts it has used up.", f->restarts)                                                         \
    X("job_step", "Step that its first worker reported.", f->step)                                                     \
    X("job_total_steps", "Step that will be the last one.", f->total_steps)                                            \
    X("job_loss", "Loss of a recent step.", f->loss)                                                                   \
    X("job_accuracy", "Accuracy of a recent step, 0 to 1.", f->accuracy)                                               \
    X("job_eval_accuracy", "Accuracy of the latest evaluation, 0 to 1.", f->eval_accuracy)                             \
    X("job_images_per_second", "Samples, or tokens, a second, of all ranks.", f->images_per_s)                         \
    X("job_step_seconds", "How long a step of the slowest rank takes.", f->step_s)                                     \
    X("job_eta_seconds", "Until its last step, at the speed it has.", f->eta_s)                                        \
    X("job_progress_age_seconds", "How long ago it reported a new step.", f->progress_age_s)

struct chosen {
    const struct history_reader *who;
    struct history_figures *v;
    size_t n, left_out;
};

static void choose(void *arg, const struct history_figures *f)
{
    struct chosen *c = arg;
    if (!history_shows(c->who, f->principal))
        return;
    if (c->n < METRICS_JOBS_MAX)
        c->v[c->n++] = *f;
    else
        c->left_out++;
}

/* Write one figure of a job; its HELP and TYPE lines come with the first job that has it. */
static void one(struct metrics_text *m, bool *headed, const char *name, const char *help,
                const struct history_figures *f, double v)
{
    char run[1600], principal[400], labels[2048];
    if (!isfinite(v))
        return;
    if (!*headed)
        metrics_head(m, name, METRICS_GAUGE, help);
    *headed = true;
    snprintf(labels, sizeof labels, "{run=\"%s\",principal=\"%s\"}", metrics_quoted(f->run, run, sizeof run),
             metrics_quoted(f->principal, principal, sizeof principal));
    metrics_value(m, name, labels, v);
}

/* What jobs name themselves. */
static void own(struct metrics_text *m, const struct chosen *c)
{
    char run[1600], principal[400], labels[2200];
    bool headed = false;
    for (size_t i = 0; i < c->n; i++)
        for (int k = 0; k < c->v[i].n_metrics; k++) {
            const struct job_metric *own = &c->v[i].metrics[k];
            if (!isfinite(own->value))
                continue;
            if (!headed)
                metrics_head(m, "job_metric", METRICS_GAUGE, "A figure that the job's program names.");
            headed = true;
            snprintf(labels, sizeof labels, "{run=\"%s\",principal=\"%s\",name=\"%s\",unit=\"%s\"}",
                     metrics_quoted(c->v[i].run, run, sizeof run),
                     metrics_quoted(c->v[i].principal, principal, sizeof principal), own->name, own->unit);
            metrics_value(m, "job_metric", labels, own->value);
        }
}

void metrics_of_each_job(struct metrics_text *m, const struct history *h, const struct history_reader *who)
{
    struct chosen c = {.who = who, .v = calloc(METRICS_JOBS_MAX, sizeof *c.v)};
    bool headed;
    if (!c.v)
        return;
    history_each(h, choose, &c);
#define X(name, help, value)                                                                                           \
    headed = false;                                                                                                    \
    for (size_t i = 0; i < c.n; i++) {                                                                                 \
        const struct history_figures *f = &c.v[i];                                                                     \
        one(m, &headed, name, help, f, (double)(value));                                                               \
    }
    JOB_METRICS(X)
#undef X
    own(m, &c);
    metrics_figure(m, "jobs_without_series", METRICS_GAUGE, "Jobs that are too many to have series of their own.",
                   (double)c.left_out);
    free(c.v);
}
