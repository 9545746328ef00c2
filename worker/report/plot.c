/* Drawing runs: their data and a script go to gnuplot.
 *
 *   - each run is read and smoothed; what it is called in the legend is settled;
 *   - steps<k>.dat and evals<k>.dat of run k, and plot.gp, are written where gnuplot runs;
 *   - the script draws three panels of one x axis: one run with its points and restarts, or several as curves. */
#include "worker/report/plot.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/utf8.h"
#include "worker/report/gnuplot.h"
#include "worker/report/plot_data.h"

#define POINTS_MAX 3000 /* more raw points than pixels only make the file slow to draw */
#define NAME_BYTES 48   /* of a run in the legend */

struct run {
    struct plot_data data;
    char path[PATH_MAX];   /* of the log */
    char name[NAME_BYTES]; /* fit for the legend */
};

struct picture {
    const struct run *runs;
    size_t n;
};

/* Okabe and Ito, Color Universal Design (2008), without yellow, which is too faint for lines on white. */
static const char *const colours[PLOT_RUNS_MAX] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                   "#e69f00", "#56b4e9", "#000000"};
static const int points[PLOT_RUNS_MAX] = {7, 5, 9, 11, 13, 6, 4}; /* gnuplot's point types: shapes that differ, too */

/* The end of text, which tells more than its beginning, without what a script or a terminal takes for more than
 * text. */
static void set_name(char name[NAME_BYTES], const char *text)
{
    size_t n = strlen(text);
    if (n >= NAME_BYTES)
        snprintf(name, NAME_BYTES, "...%.*s", NAME_BYTES - 4, text + n - (NAME_BYTES - 4));
    else
        snprintf(name, NAME_BYTES, "%.*s", NAME_BYTES - 1, text);
    utf8_clean(name);
    for (char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == '\'' || *c == 0x7f)
            *c = '?';
}

/* A folder's name, a log's without its ending. */
static void name_run(struct run *r, bool folder)
{
    char path[PATH_MAX];
    if (!realpath(r->path, path))
        snprintf(path, sizeof path, "%s", r->path);
    char *base = strrchr(path, '/');
    if (base && (folder || strcmp(base, "/metrics.jsonl") == 0)) {
        *base = '\0';
        base = strrchr(path, '/');
    }
    base = base && base[1] ? base + 1 : path;
    char *dot = strrchr(base, '.');
    if (!folder && dot && strcmp(dot, ".log") == 0)
        *dot = '\0';
    set_name(r->name, base);
}

static int open_run(struct run *r, const char *given, double smoothing, struct err *e)
{
    struct stat st;
    bool folder = stat(given, &st) == 0 && S_ISDIR(st.st_mode);
    if (snprintf(r->path, PATH_MAX, folder ? "%s/metrics.jsonl" : "%s", given) >= PATH_MAX)
        return err_set(e, -ENAMETOOLONG, "a path is too long: %s", given);
    if (access(r->path, R_OK) < 0)
        return err_set(e, ERR_DATA, "open %s: %s", r->path, strerror(errno));
    TRY(plot_data_read(&r->data, r->path, smoothing, e));
    name_run(r, folder);
    return 0;
}

/* Runs of one name are shown by their paths. */
static void tell_apart(struct run *runs, const char *const *given, size_t n)
{
    bool twice[PLOT_RUNS_MAX] = {false};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            twice[i] |= k != i && strcmp(runs[i].name, runs[k].name) == 0;
    for (size_t i = 0; i < n; i++)
        if (twice[i])
            set_name(runs[i].name, given[i]);
}

static int write_steps(const struct gnuplot *g, const struct plot_data *d, size_t run, struct err *e)
{
    char name[32];
    snprintf(name, sizeof name, "steps%zu.dat", run);
    FILE *f = gnuplot_create(g, name, e);
    if (!f)
        return e ? e->code : -EIO;
    size_t stride = d->n_steps / POINTS_MAX + 1;
    for (size_t i = 0; i < d->n_steps; i += stride) {
        const struct plot_step *s = &d->steps[i];
        fprintf(f, "%.0f", s->step);
        for (int k = 0; k < PLOT_SERIES; k++)
            fprintf(f, " %g %g", s->raw[k], s->smooth[k]);
        fputc('\n', f);
    }
    return gnuplot_finish(f, name, e);
}

static int write_evals(const struct gnuplot *g, const struct plot_data *d, size_t run, struct err *e)
{
    char name[32];
    snprintf(name, sizeof name, "evals%zu.dat", run);
    FILE *f = gnuplot_create(g, name, e);
    if (!f)
        return e ? e->code : -EIO;
    for (size_t i = 0; i < d->n_evals; i++)
        fprintf(f, "%.0f %g %g\n", d->evals[i].step, d->evals[i].loss, d->evals[i].acc1);
    return gnuplot_finish(f, name, e);
}

/* The value that `share` of all raw ones do not exceed: an axis should not be set by one outlier. */
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(const struct plot_data *d, enum plot_series which, double share)
{
    double *v = malloc(d->n_steps * sizeof *v), q = NAN;
    size_t n = 0;
    for (size_t i = 0; v && i < d->n_steps; i++)
        if (isfinite(d->steps[i].raw[which]))
            v[n++] = d->steps[i].raw[which];
    if (n > 0) {
        qsort(v, n, sizeof *v, by_value);
        q = v[(size_t)ceil(share * (double)(n - 1))];
    }
    free(v);
    return q;
}

/* The largest of the runs'. */
static double highest(const struct picture *p, enum plot_series which, double share)
{
    double q = NAN;
    for (size_t i = 0; i < p->n; i++)
        q = fmax(q, quantile(&p->runs[i].data, which, share));
    return q;
}

struct panel {
    enum plot_series series;
    const char *label, *colour, *line;
    double top; /* of the axis; NAN: gnuplot's choice */
};

static void write_frame(FILE *f, const struct panel *p, double low, double high)
{
    fprintf(f, "set tmargin at screen %.3f\nset bmargin at screen %.3f\nset ylabel '%s'\n", high, low, p->label);
    if (isfinite(p->top) && p->top > 0)
        fprintf(f, "set yrange [0:%g]\n", p->top);
    else
        fprintf(f, "set yrange [0:*]\n");
}

/* Column of an evaluation's value in its file, 0: it has none in this panel. */
static int eval_column(const struct plot_data *d, enum plot_series series)
{
    bool known = false;
    for (size_t i = 0; i < d->n_evals && series != PLOT_RATE; i++)
        known |= isfinite(series == PLOT_LOSS ? d->evals[i].loss : d->evals[i].acc1);
    return !known ? 0 : series == PLOT_LOSS ? 2 : 3;
}

static void write_one(FILE *f, const struct plot_data *d, const struct panel *p)
{
    int raw = 2 + 2 * (int)p->series, smooth = raw + 1, test = eval_column(d, p->series);
    fprintf(f, "plot 'steps0.dat' using 1:%d with points pt 7 ps 0.5 lc rgb '%s' notitle", raw, p->colour);
    if (d->n_steps > 1)
        fprintf(f, ", '' using 1:%d with lines lw 2.5 lc rgb '%s' title '%s'", smooth, p->line,
                p->series == PLOT_RATE || d->means ? "training" : "training (smoothed)");
    if (test)
        fprintf(f, ", 'evals0.dat' using 1:%d with linespoints pt 7 ps 1.4 lw 2 lc rgb '#d95f02' title 'test'", test);
    fprintf(f, "\n");
}

/* The name and, where there was one, the result of the last evaluation. */
static void write_legend(FILE *f, const struct run *r)
{
    double acc = r->data.n_evals ? r->data.evals[r->data.n_evals - 1].acc1 : NAN;
    fprintf(f, " title '%s", r->name);
    if (isfinite(acc))
        fprintf(f, " (%.2f %%)", acc);
    fprintf(f, "'");
}

/* One legend for the panels, in the first of them. */
static void write_several(FILE *f, const struct picture *pic, const struct panel *p)
{
    bool tests = false;
    fprintf(f, "%splot NaN notitle", p->series == PLOT_LOSS ? "" : "unset key\n");
    for (size_t i = 0; i < pic->n; i++) {
        const struct plot_data *d = &pic->runs[i].data;
        fprintf(f, ", 'steps%zu.dat' using 1:%d with %s lc rgb '%s'", i, 3 + 2 * (int)p->series,
                d->n_steps > 1 ? "lines lw 2.5" : "points pt 7 ps 1", colours[i]);
        if (p->series == PLOT_LOSS)
            write_legend(f, &pic->runs[i]);
        else
            fprintf(f, " notitle");
    }
    for (size_t i = 0; i < pic->n; i++) {
        int test = eval_column(&pic->runs[i].data, p->series);
        if (test)
            fprintf(f, ", 'evals%zu.dat' using 1:%d with linespoints pt %d ps 1.1 lw 1.5 dt 2 lc rgb '%s' notitle", i,
                    test, points[i], colours[i]);
        tests |= pic->runs[i].data.n_evals > 0;
    }
    if (p->series == PLOT_LOSS && tests)
        fprintf(f, ", NaN with linespoints pt 7 ps 1.1 lw 1.5 dt 2 lc rgb '#777777' title 'test'");
    fprintf(f, "\n");
}

/* A dashed line through the panel at each restart; the top one also carries the labels. */
static void write_restarts(FILE *f, const struct plot_data *d, bool labels)
{
    for (size_t i = 0; i < d->n_restarts; i++) {
        const struct plot_restart *r = &d->restarts[i];
        fprintf(f,
                "set arrow %zu from first %.0f, graph 0 to first %.0f, graph 1 nohead dt 2 lw 1.5 lc rgb '#777777'\n",
                i + 1, r->step, r->step);
        if (!labels)
            fprintf(f, "unset label %zu\n", i + 1);
        else if (r->number > 0)
            fprintf(f, "set label %zu 'restart %d' at first %.0f, graph 1.05 center font ',11' tc rgb '#555555'\n",
                    i + 1, r->number, r->step);
        else
            fprintf(f, "set label %zu 'resumed' at first %.0f, graph 1.05 center font ',11' tc rgb '#555555'\n", i + 1,
                    r->step);
    }
}

static void title_one(FILE *f, const struct plot_data *d)
{
    double acc = d->n_evals ? d->evals[d->n_evals - 1].acc1 : NAN;
    fprintf(f, "%.0f steps", d->steps[d->n_steps - 1].step);
    if (isfinite(acc))
        fprintf(f, ", test Acc@1 %.2f %%", acc);
    if (d->n_restarts)
        fprintf(f, ", %zu restart%s", d->n_restarts, d->n_restarts == 1 ? "" : "s");
}

static void title_several(FILE *f, const struct picture *p)
{
    bool tests = false;
    for (size_t i = 0; i < p->n; i++)
        tests |= p->runs[i].data.n_evals > 0;
    fprintf(f, "%zu runs%s", p->n, tests ? ", the last test Acc@1 in brackets" : "");
}

static void write_title(FILE *f, const struct picture *p)
{
    fputs("set label 1000 \"", f);
    if (p->n > 1)
        title_several(f, p);
    else
        title_one(f, &p->runs[0].data);
    fputs("\" at screen 0.53, screen 0.975 center font ',16' noenhanced\n", f);
}

static double last_step(const struct picture *p)
{
    double last = 1;
    for (size_t i = 0; i < p->n; i++)
        last = fmax(last, p->runs[i].data.steps[p->runs[i].data.n_steps - 1].step);
    return last;
}

static void write_head(FILE *f, const struct picture *p)
{
    fprintf(
        f,
        "if (strstrt(GPVAL_TERMINALS, ' pngcairo ') > 0) set terminal pngcairo size 1200,900 noenhanced font 'Sans,13';"
        " else set terminal png size 1200,900 noenhanced\n"
        "set output 'plot.png'\nset datafile missing 'nan'\nset encoding utf8\n"
        "set border 3 lc rgb '#444444'\nset tics nomirror out\nset grid ytics lc rgb '#cccccc' lw 1 lt 1\n"
        "set lmargin at screen 0.08\nset rmargin at screen 0.98\nset xrange [0:%g]\n"
        "set key top right opaque box lc rgb '#cccccc' samplen %d spacing 1.1 font ',12'\n"
        "set multiplot\nset format x ''\n",
        1.01 * last_step(p), p->n > 1 ? 4 : 2);
    write_title(f, p);
}

static int write_script(const struct gnuplot *g, const struct picture *p, struct err *e)
{
    const struct panel panels[] = {
        {PLOT_LOSS, "loss", "#a6cee3", "#1f78b4", 1.15 * highest(p, PLOT_LOSS, 0.99)},
        {PLOT_ACC1, "Acc@1 (%)", "#b2df8a", "#33a02c", 105},
        {PLOT_RATE, p->runs[0].data.tokens ? "tokens/s" : "images/s", "#cab2d6", "#6a3d9a",
         1.25 * highest(p, PLOT_RATE, 0.99)},
    };
    FILE *f = gnuplot_create(g, "plot.gp", e);
    if (!f)
        return e ? e->code : -EIO;
    write_head(f, p);
    for (int i = 0; i < 3; i++) {
        double high = 0.915 - 0.285 * i;
        if (i == 1)
            fprintf(f, "unset label 1000\nset key bottom right\n");
        if (i == 2)
            fprintf(f, "set format x '%%.0f'\nset xlabel 'step'\n");
        if (p->n == 1)
            write_restarts(f, &p->runs[0].data, i == 0);
        write_frame(f, &panels[i], high - 0.26, high);
        if (p->n == 1)
            write_one(f, &p->runs[0].data, &panels[i]);
        else
            write_several(f, p, &panels[i]);
    }
    fprintf(f, "unset multiplot\n");
    return gnuplot_finish(f, "plot.gp", e);
}

static int draw(const struct picture *p, const char *png, struct err *e)
{
    struct gnuplot g;
    TRY(gnuplot_begin(&g, e));
    int rc = 0;
    for (size_t i = 0; i < p->n && rc == 0; i++) {
        rc = write_steps(&g, &p->runs[i].data, i, e);
        if (rc == 0)
            rc = write_evals(&g, &p->runs[i].data, i, e);
    }
    if (rc == 0)
        rc = write_script(&g, p, e);
    if (rc == 0)
        rc = gnuplot_draw(&g, png, e);
    gnuplot_end(&g);
    return rc;
}

int plot_draw(const char *const *runs, size_t n, double smoothing, const char *png, struct err *e)
{
    if (n == 0 || n > PLOT_RUNS_MAX)
        return err_set(e, ERR_USAGE, "%zu runs in one picture: 1 to %d can be distinguished", n, PLOT_RUNS_MAX);
    struct run *r = calloc(n, sizeof *r);
    int rc = r ? 0 : err_set(e, -ENOMEM, "no memory for %zu runs", n);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = open_run(&r[i], runs[i], smoothing, e);
    if (rc == 0) {
        tell_apart(r, runs, n);
        rc = draw(&(struct picture){r, n}, png, e);
    }
    for (size_t i = 0; r && i < n; i++)
        plot_data_free(&r[i].data);
    free(r);
    return rc;
}
