/* Figures that a program names by itself, as a report has them: "tokens:3.1e+05:tokens/s,lr:0.1:"
 * (docs/reference/rendezvous-protocol.md). Pure. */
#ifndef CRUN_RENDEZVOUSD_JOB_METRICS_H
#define CRUN_RENDEZVOUSD_JOB_METRICS_H

#include <stddef.h>

#include "common/crun/crun_page.h"

struct json_write;

#define JOB_METRICS_MAX CRUN_PAGE_METRICS
#define JOB_METRICS_TEXT_MAX (JOB_METRICS_MAX * (CRUN_PAGE_METRIC_NAME + CRUN_PAGE_METRIC_UNIT + 32))

struct job_metric {
    char name[CRUN_PAGE_METRIC_NAME], unit[CRUN_PAGE_METRIC_UNIT];
    double value;
};

/* Of the record `fields`. Returns how many; 0 where the field is not there; -EINVAL. */
int job_metrics_read(const char *fields, size_t n, struct job_metric v[JOB_METRICS_MAX]);

/* "metrics":[{"name":…,"value":…,"unit":…}, …]; nothing where there are none. */
void job_metrics_write(const struct job_metric *v, int n, struct json_write *w);

#endif
