/* Prometheus' text format. */
#ifndef CRUN_COMMON_METRICS_TEXT_H
#define CRUN_COMMON_METRICS_TEXT_H

#include <stddef.h>

struct buf;

#define METRICS_GAUGE "gauge"
#define METRICS_COUNTER "counter"
#define METRICS_SUMMARY "summary"
#define METRICS_HISTOGRAM "histogram"

/* Errors are sticky: after one, nothing more is written. */
struct metrics_text {
    struct buf *out;
    const char *prefix; /* of all names, "crun_" */
    int rc;             /* 0, or the error of the buffer */
};

void metrics_head(struct metrics_text *m, const char *name, const char *type, const char *help);
/* labels: NULL, or with their braces. */
void metrics_value(struct metrics_text *m, const char *name, const char *labels, double v);
/* Both, of a figure without labels. */
void metrics_figure(struct metrics_text *m, const char *name, const char *type, const char *help, double v);

/* Escape a label's value as it is written between quotes, as much of it as fits; returns out. */
const char *metrics_quoted(const char *text, char *out, size_t cap);

double metrics_resident_bytes(void); /* memory of this process, 0: unknown */

#endif
