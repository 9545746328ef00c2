/* Figures of single jobs, for metrics.c. */
#ifndef CRUN_RENDEZVOUSD_METRICS_JOBS_H
#define CRUN_RENDEZVOUSD_METRICS_JOBS_H

struct history;
struct history_reader;
struct metrics_text;

void metrics_of_each_job(struct metrics_text *m, const struct history *h, const struct history_reader *who);

#endif
