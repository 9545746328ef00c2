/* Reads the points of a plot from a CSV log of Caffe2's trainer. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/report/lines.h"
#include "worker/report/plot_data.h"

/* Columns that are drawn; without the required ones there is nothing to draw. */
#define COLUMNS(X)                                                                                                     \
    X(cumulative_batch_count, true)                                                                                    \
    X(loss, true)                                                                                                      \
    X(accuracy, false)                                                                                                 \
    X(inputs_per_sec, false)                                                                                           \
    X(test_accuracy, false)

enum column {
#define X(name, required) COL_##name,
    COLUMNS(X)
#undef X
        COL_COUNT
};

static const struct {
    const char *name;
    bool required;
} columns[] = {
#define X(name, required) {#name, required},
    COLUMNS(X)
#undef X
};

/* Which column of the file each of ours is, -1: none. */
static int read_header(const char *text, int place[COL_COUNT], const char *path, struct err *e)
{
    for (int k = 0; k < COL_COUNT; k++)
        place[k] = -1;
    for (int at = 0; *text; at++) {
        size_t n = strcspn(text, ",\r");
        for (int k = 0; k < COL_COUNT; k++)
            if (strlen(columns[k].name) == n && strncmp(text, columns[k].name, n) == 0)
                place[k] = at;
        text += n + (text[n] != '\0');
    }
    for (int k = 0; k < COL_COUNT; k++)
        if (columns[k].required && place[k] < 0)
            return err_set(e, ERR_DATA,
                           "%s is neither metrics.jsonl nor a CSV log of Caffe2's trainer: it has no column %s", path,
                           columns[k].name);
    return 0;
}

/* false: a field is not a number. An empty one is not known. */
static bool read_row(const char *text, const int place[COL_COUNT], double values[COL_COUNT])
{
    for (int k = 0; k < COL_COUNT; k++)
        values[k] = NAN;
    for (int at = 0;; at++) {
        size_t n = strcspn(text, ",\r");
        char *end = (char *)text;
        double v = n ? strtod(text, &end) : NAN;
        if (end != text + n)
            return false;
        for (int k = 0; k < COL_COUNT; k++)
            if (place[k] == at && isfinite(v))
                values[k] = v;
        if (text[n] != ',')
            return true;
        text += n + 1;
    }
}

static bool add_row(struct plot_data *d, const double v[COL_COUNT])
{
    double step = v[COL_cumulative_batch_count], test = v[COL_test_accuracy];
    if (!plot_data_add_step(d, step, v[COL_loss], 100 * v[COL_accuracy], v[COL_inputs_per_sec]))
        return false;
    return !(test >= 0) || plot_data_add_eval(d, step, NAN, 100 * test); /* -1: no test data */
}

int plot_csv_read(struct plot_data *d, struct lines *l, struct err *e)
{
    int place[COL_COUNT], rc = 1;
    bool header = false;
    double values[COL_COUNT];
    d->means = true;
    for (int64_t at = 1; rc > 0; rc = lines_next(l, e), at++) {
        if (l->text[0] == '#' || l->text[0] == '\0')
            continue;
        if (!header) {
            TRY(read_header(l->text, place, l->path, e));
            header = true;
            continue;
        }
        if (!read_row(l->text, place, values) || isnan(values[COL_cumulative_batch_count]))
            return err_set(e, ERR_CORRUPT, "line %" PRId64 " of %s is not a row of numbers", at, l->path);
        if (!add_row(d, values))
            return err_set(e, -ENOMEM, "no memory for line %" PRId64 " of %s", at, l->path);
    }
    return rc;
}
