/* Figures that a program names by itself: the field `metrics` of a report. */
#include "rendezvousd/jobs/job_metrics.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json_write.h"
#include "common/rdzv/wire/rdzv_wire.h"

static bool is_number(const char *text, double *ret)
{
    char *end;
    *ret = strtod(text, &end);
    return text[0] && !*end && isfinite(*ret) && !text[strspn(text, "+-.0123456789eE")];
}

/* One of them, "name:value:unit"; cut into its parts. */
static int read_one(char *text, struct job_metric *m)
{
    char *value = strchr(text, ':'), *unit = value ? strchr(value + 1, ':') : NULL;
    if (!unit)
        return -EINVAL;
    *value++ = 0;
    *unit++ = 0;
    if (!crun_page_is_metric(text, unit) || !is_number(value, &m->value))
        return -EINVAL;
    strcpy(m->name, text);
    strcpy(m->unit, unit);
    return 0;
}

int job_metrics_read(const char *fields, size_t n, struct job_metric v[JOB_METRICS_MAX])
{
    char text[JOB_METRICS_TEXT_MAX], *rest = NULL;
    int count = 0;
    const int rc = rdzv_field_find(fields, n, "metrics", text, sizeof text);
    if (rc <= 0)
        return rc < 0 ? -EINVAL : 0;
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (count == JOB_METRICS_MAX || read_one(one, &v[count++]) < 0)
            return -EINVAL;
    return count;
}

void job_metrics_write(const struct job_metric *v, int n, struct json_write *w)
{
    if (n <= 0)
        return;
    json_begin(w, "metrics", '[');
    for (int i = 0; i < n; i++) {
        json_begin(w, NULL, '{');
        json_text(w, "name", v[i].name);
        json_number(w, "value", v[i].value);
        json_text(w, "unit", v[i].unit);
        json_end(w, '}');
    }
    json_end(w, ']');
}
