/* Reads the points of a plot from the log of a run. */
#include "worker/report/plot_data.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/report/lines.h"

#define STEPS_MAX ((size_t)20000000)
#define RESTARTS_MAX 100 /* more lines than that would hide the curves */

/* Room for one more in a growing array; NULL when there is none. */
static void *grow(void *base, size_t n, size_t size)
{
    if (n >= STEPS_MAX)
        return NULL;
    return n & (n - 1) ? base : realloc(base, (n ? 2 * n : 1) * size); /* n is a power of two or 0: it is full */
}

bool plot_data_add_step(struct plot_data *d, double step, double loss, double acc1, double rate)
{
    struct plot_step *more = grow(d->steps, d->n_steps, sizeof *more);
    if (!more)
        return false;
    d->steps = more;
    d->steps[d->n_steps++] = (struct plot_step){.step = step, .raw = {loss, acc1, rate}};
    return true;
}

bool plot_data_add_eval(struct plot_data *d, double step, double loss, double acc1)
{
    struct plot_eval *more = grow(d->evals, d->n_evals, sizeof *more);
    if (!more)
        return false;
    d->evals = more;
    d->evals[d->n_evals++] = (struct plot_eval){.step = step, .loss = loss, .acc1 = acc1};
    return true;
}

static bool add_event(struct plot_data *d, const cJSON *o, double step)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(o, "event");
    double restart = json_f64_or(o, "restart", NAN);
    bool resumed = cJSON_IsString(name) && strcmp(name->valuestring, "resume") == 0;
    if (!(restart > 0) && !resumed)
        return true;
    int n = restart > 0 && restart < 1e6 ? (int)restart : 0;
    for (size_t i = 0; i < d->n_restarts; i++)
        if (d->restarts[i].number == n && d->restarts[i].step == step)
            return true;
    if (d->n_restarts == RESTARTS_MAX)
        return true;
    struct plot_restart *more = grow(d->restarts, d->n_restarts, sizeof *more);
    if (!more)
        return false;
    d->restarts = more;
    d->restarts[d->n_restarts++] = (struct plot_restart){.step = step, .number = n};
    return true;
}

static bool add_step(struct plot_data *d, const cJSON *o, double step)
{
    const double tokens = json_f64_or(o, "tokens_per_sec", NAN);
    d->tokens = d->tokens || isfinite(tokens);
    return plot_data_add_step(d, step, json_f64_or(o, "loss", NAN), json_f64_or(o, "acc1", NAN),
                              d->tokens ? tokens : json_f64_or(o, "images_per_sec", NAN));
}

static int add_line(struct plot_data *d, const struct lines *l, int64_t at, struct err *e)
{
    cJSON *o = cJSON_Parse(l->text);
    if (!cJSON_IsObject(o)) {
        cJSON_Delete(o);
        return err_set(e, ERR_CORRUPT, "line %" PRId64 " of %s is not a JSON object", at, l->path);
    }
    double step = json_f64_or(o, "step", NAN);
    bool ok = true;
    if (!isnan(step)) {
        if (cJSON_HasObjectItem(o, "event"))
            ok = add_event(d, o, step);
        else if (cJSON_HasObjectItem(o, "test_acc1"))
            ok = plot_data_add_eval(d, step, json_f64_or(o, "test_loss", NAN), json_f64_or(o, "test_acc1", NAN));
        else if (cJSON_HasObjectItem(o, "loss"))
            ok = add_step(d, o, step);
    }
    cJSON_Delete(o);
    return ok ? 0 : err_set(e, -ENOMEM, "no memory for line %" PRId64 " of %s", at, l->path);
}

static int by_step(const void *a, const void *b)
{
    double x = ((const struct plot_step *)a)->step, y = ((const struct plot_step *)b)->step;
    return x < y ? -1 : x > y;
}

/* Mean over a window centred on each step. It narrows towards the start, where curves are steep, and is cut off at the
 * end, where they are flat and noise would show. */
static size_t half_window(const struct plot_data *d, double smoothing)
{
    double n = (double)d->n_steps, half = smoothing >= 1 ? smoothing / 2 : smoothing / 2 * n;
    if (smoothing > 0 && smoothing < 1 && half < 2 && !d->means)
        return 2;
    return (size_t)fmin(half, n);
}

static int smooth(struct plot_data *d, enum plot_series which, double smoothing)
{
    size_t n = d->n_steps, half = half_window(d, smoothing);
    double *sum = calloc(n + 1, sizeof *sum), *count = calloc(n + 1, sizeof *count);
    if (!sum || !count) {
        free(sum);
        free(count);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        double v = d->steps[i].raw[which];
        sum[i + 1] = sum[i] + (isfinite(v) ? v : 0);
        count[i + 1] = count[i] + (isfinite(v) ? 1 : 0);
    }
    for (size_t i = 0; i < n; i++) {
        size_t w = i < half ? i : half, end = i + w + 1 < n ? i + w + 1 : n;
        double c = count[end] - count[i - w];
        d->steps[i].smooth[which] = c > 0 ? (sum[end] - sum[i - w]) / c : NAN;
    }
    free(sum);
    free(count);
    return 0;
}

static int read_json(struct plot_data *d, struct lines *l, struct err *e)
{
    int rc = 1;
    for (int64_t at = 1; rc > 0; rc = lines_next(l, e), at++)
        TRY(add_line(d, l, at, e));
    return rc;
}

static int read_lines(struct plot_data *d, const char *path, struct err *e)
{
    struct lines *l = malloc(sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory to read %s", path);
    int rc = lines_open(l, path, e);
    if (rc == 0) {
        rc = lines_next(l, e);
        if (rc > 0)
            rc = l->text[0] == '{' ? read_json(d, l, e) : plot_csv_read(d, l, e);
        lines_close(l);
    }
    free(l);
    return rc;
}

int plot_data_read(struct plot_data *d, const char *path, double smoothing, struct err *e)
{
    *d = (struct plot_data){0};
    int rc = read_lines(d, path, e);
    if (rc == 0 && d->n_steps == 0)
        rc = err_set(e, ERR_DATA, "%s holds no training step", path);
    if (rc == 0)
        qsort(d->steps, d->n_steps, sizeof *d->steps, by_step);
    for (int i = 0; i < PLOT_SERIES && rc == 0; i++)
        if (smooth(d, (enum plot_series)i, smoothing) < 0)
            rc = err_set(e, -ENOMEM, "no memory to smooth %zu steps", d->n_steps);
    if (rc < 0)
        plot_data_free(d);
    return rc;
}

void plot_data_free(struct plot_data *d)
{
    free(d->steps);
    free(d->evals);
    free(d->restarts);
    *d = (struct plot_data){0};
}
