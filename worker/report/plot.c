/* Drawing metrics.jsonl with gnuplot.
 *
 *   - the data is read, smoothed and written with a script into a new folder under $TMPDIR;
 *   - gnuplot runs there, without a shell and with fixed file names, so no path is ever quoted; its stderr goes to
 *     a file;
 *   - the picture is copied beside the target and renamed.
 * The folder goes in any case. A gnuplot that takes longer than a minute is killed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/err.h"
#include "worker/report/lines.h"
#include "worker/report/metrics.h"
#include "worker/report/plot_data.h"

#define DEADLINE_MS 60000
#define PICTURE_MAX (64 << 20)
#define POINTS_MAX 3000 /* more raw points than pixels only make the file slow to draw */

extern char **environ;

static const char *const work_files[] = {"steps.dat", "evals.dat", "plot.gp", "plot.png", "stderr"};

static int in_folder(char out[PATH_MAX], const char *dir, const char *name)
{
    return snprintf(out, PATH_MAX, "%s/%s", dir, name) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

static FILE *create(const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    FILE *f = in_folder(path, dir, name) == 0 ? fopen(path, "wxe") : NULL;
    if (!f)
        err_errno(e, errno, "create %s in %s", name, dir);
    return f;
}

static int finish(FILE *f, const char *name, struct err *e)
{
    bool bad = ferror(f);
    return fclose(f) < 0 || bad ? err_errno(e, errno ? errno : EIO, "write %s", name) : 0;
}

static int write_steps(const struct plot_data *d, const char *dir, struct err *e)
{
    FILE *f = create(dir, "steps.dat", e);
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
    return finish(f, "steps.dat", e);
}

static int write_evals(const struct plot_data *d, const char *dir, struct err *e)
{
    FILE *f = create(dir, "evals.dat", e);
    if (!f)
        return e ? e->code : -EIO;
    for (size_t i = 0; i < d->n_evals; i++)
        fprintf(f, "%.0f %g %g\n", d->evals[i].step, d->evals[i].loss, d->evals[i].acc1);
    return finish(f, "evals.dat", e);
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
        q = v[(size_t)(share * (double)(n - 1))];
    }
    free(v);
    return q;
}

struct panel {
    enum plot_series series;
    const char *label, *colour, *line;
    double top; /* of the axis; NAN: gnuplot's choice */
};

static void write_panel(FILE *f, const struct plot_data *d, const struct panel *p, double low, double high)
{
    int raw = 2 + 2 * (int)p->series, smooth = raw + 1;
    fprintf(f, "set tmargin at screen %.3f\nset bmargin at screen %.3f\nset ylabel '%s'\n", high, low, p->label);
    if (isfinite(p->top) && p->top > 0)
        fprintf(f, "set yrange [0:%g]\n", p->top);
    else
        fprintf(f, "set yrange [0:*]\n");
    fprintf(f, "plot 'steps.dat' using 1:%d with points pt 7 ps 0.5 lc rgb '%s' notitle", raw, p->colour);
    if (d->n_steps > 1)
        fprintf(f, ", '' using 1:%d with lines lw 2.5 lc rgb '%s' title '%s'", smooth, p->line,
                p->series == PLOT_RATE ? "training" : "training (smoothed)");
    if (d->n_evals > 0 && p->series != PLOT_RATE)
        fprintf(f, ", 'evals.dat' using 1:%d with linespoints pt 7 ps 1.4 lw 2 lc rgb '#d95f02' title 'test'",
                p->series == PLOT_LOSS ? 2 : 3);
    fprintf(f, "\n");
}

/* A dashed line through the panel; the top one also carries the labels. */
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

static void write_title(FILE *f, const struct plot_data *d)
{
    double acc = d->n_evals ? d->evals[d->n_evals - 1].acc1 : NAN;
    fprintf(f, "set label 1000 \"%.0f steps", d->steps[d->n_steps - 1].step);
    if (isfinite(acc))
        fprintf(f, ", test Acc@1 %.2f %%", acc);
    if (d->n_restarts)
        fprintf(f, ", %zu restart%s", d->n_restarts, d->n_restarts == 1 ? "" : "s");
    fprintf(f, "\" at screen 0.53, screen 0.975 center font ',16' noenhanced\n");
}

static int write_script(const struct plot_data *d, const char *dir, struct err *e)
{
    const struct panel panels[] = {
        {PLOT_LOSS, "loss", "#a6cee3", "#1f78b4", 1.15 * quantile(d, PLOT_LOSS, 0.99)},
        {PLOT_ACC1, "Acc@1 (%)", "#b2df8a", "#33a02c", 105},
        {PLOT_RATE, "images/s", "#cab2d6", "#6a3d9a", 1.25 * quantile(d, PLOT_RATE, 0.99)},
    };
    FILE *f = create(dir, "plot.gp", e);
    if (!f)
        return e ? e->code : -EIO;
    double last = d->steps[d->n_steps - 1].step;
    fprintf(
        f,
        "if (strstrt(GPVAL_TERMINALS, ' pngcairo ') > 0) set terminal pngcairo size 1200,900 noenhanced font 'Sans,13';"
        " else set terminal png size 1200,900 noenhanced\n"
        "set output 'plot.png'\nset datafile missing 'nan'\nset encoding utf8\n"
        "set border 3 lc rgb '#444444'\nset tics nomirror out\nset grid ytics lc rgb '#cccccc' lw 1 lt 1\n"
        "set lmargin at screen 0.08\nset rmargin at screen 0.98\nset xrange [0:%g]\n"
        "set key top right opaque box lc rgb '#cccccc' samplen 2 spacing 1.1 font ',12'\n"
        "set multiplot\nset format x ''\n",
        1.01 * (last > 1 ? last : 1));
    write_title(f, d);
    for (int i = 0; i < 3; i++) {
        double high = 0.915 - 0.285 * i;
        if (i == 1)
            fprintf(f, "unset label 1000\nset key bottom right\n");
        if (i == 2)
            fprintf(f, "set format x '%%.0f'\nset xlabel 'step'\n");
        write_restarts(f, d, i == 0);
        write_panel(f, d, &panels[i], high - 0.26, high);
    }
    fprintf(f, "unset multiplot\n");
    return finish(f, "plot.gp", e);
}

static int wait_for(pid_t pid, int *status, struct err *e)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n = fd < 0 ? -1 : poll(&p, 1, DEADLINE_MS), why = errno;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        kill(pid, SIGKILL);
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        continue;
    if (n == 0)
        return err_set(e, -ETIMEDOUT, "gnuplot took longer than %d seconds", DEADLINE_MS / 1000);
    return n < 0 ? err_errno(e, why, "wait for gnuplot") : 0;
}

static int failure(const char *dir, int status, struct err *e)
{
    char path[PATH_MAX], text[300] = "";
    FILE *f = in_folder(path, dir, "stderr") == 0 ? fopen(path, "re") : NULL;
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)text[i] < ' ')
                text[i] = ' ';
    }
    return err_set(e, -EIO, "gnuplot failed with %s %d: %s", WIFSIGNALED(status) ? "signal" : "code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), text);
}

static int run_gnuplot(const char *dir, struct err *e)
{
    char *argv[] = {(char[]){"gnuplot"}, (char[]){"plot.gp"}, NULL};
    posix_spawn_file_actions_t a;
    pid_t pid;
    if (posix_spawn_file_actions_init(&a) != 0)
        return err_set(e, -ENOMEM, "no memory to start gnuplot");
    posix_spawn_file_actions_addchdir_np(&a, dir);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&a, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&a, 2, "stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int why = posix_spawnp(&pid, argv[0], &a, NULL, argv, environ), status;
    posix_spawn_file_actions_destroy(&a);
    if (why == ENOENT)
        return err_set(e, -ENOENT, "gnuplot is not installed, so no plot can be drawn (Debian: gnuplot-nox)");
    if (why)
        return err_errno(e, why, "start gnuplot");
    TRY(wait_for(pid, &status, e));
    return status == 0 ? 0 : failure(dir, status, e);
}

static int copy_file(const char *from, const char *to, struct err *e)
{
    char *data = malloc(PICTURE_MAX);
    FILE *f = fopen(from, "re");
    size_t n = data && f ? fread(data, 1, PICTURE_MAX, f) : 0;
    if (f)
        fclose(f);
    int rc = n == 0 ? err_set(e, -EIO, "gnuplot drew nothing") : 0, fd = -1;
    if (rc == 0 && (fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        rc = err_set(e, ERR_OUTPUT, "create %s: %s", to, strerror(errno));
    if (rc == 0 && lines_write(fd, data, n, to, e) < 0)
        rc = err_set(e, ERR_OUTPUT, "write %s: %s", to, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(data);
    return rc;
}

static int put_in_place(const char *dir, const char *png, struct err *e)
{
    char from[PATH_MAX], tmp[PATH_MAX];
    if (in_folder(from, dir, "plot.png") < 0 || snprintf(tmp, sizeof tmp, "%s.tmp", png) >= PATH_MAX)
        return err_set(e, -ENAMETOOLONG, "a path is too long: %s", png);
    int rc = copy_file(from, tmp, e);
    if (rc == 0 && rename(tmp, png) < 0)
        rc = err_set(e, ERR_OUTPUT, "rename %s to %s: %s", tmp, png, strerror(errno));
    if (rc < 0)
        unlink(tmp);
    return rc;
}

static void remove_folder(const char *dir)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof work_files / sizeof *work_files; i++)
        if (in_folder(path, dir, work_files[i]) == 0)
            unlink(path);
    rmdir(dir);
}

static int draw(const struct plot_data *d, const char *dir, const char *png, struct err *e)
{
    TRY(write_steps(d, dir, e));
    TRY(write_evals(d, dir, e));
    TRY(write_script(d, dir, e));
    TRY(run_gnuplot(dir, e));
    return put_in_place(dir, png, e);
}

int metrics_plot(const char *jsonl, const char *png, struct err *e)
{
    const char *base = getenv("TMPDIR");
    char dir[PATH_MAX];
    struct plot_data d;
    if (snprintf(dir, sizeof dir, "%s/plot-XXXXXX", base && base[0] ? base : "/tmp") >= (int)sizeof dir)
        return err_set(e, -ENAMETOOLONG, "TMPDIR is too long");
    TRY(plot_data_read(&d, jsonl, e));
    int rc = mkdtemp(dir) ? 0 : err_errno(e, errno, "make a folder %s", dir);
    if (rc == 0) {
        rc = draw(&d, dir, png, e);
        remove_folder(dir);
    }
    plot_data_free(&d);
    return rc;
}
