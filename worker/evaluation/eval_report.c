/* Writes the files of an evaluation's report: predictions, classes, confusion. */
#include "worker/evaluation/eval_report.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/utf8.h"
#include "worker/comm/comm.h"
#include "worker/data/sets/dataset.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/report/gnuplot.h"

#define NAMED 5           /* classes that people are told of */
#define LABELLED 40       /* classes whose names are written at the picture's sides */
#define NAME_BYTES 20     /* of a class there */
#define PICTURE_MAX 2000u /* classes of the picture: there are no more pixels */

struct note {
    uint32_t sample;
    int32_t label, predicted, place; /* place: of the label, from 1 */
    float p_predicted, p_label;
};

struct eval_report {
    const char *dir;
    const struct program *program;
    size_t rows;    /* of a batch */
    double *logits; /* (rows, classes) */
    struct note *notes;
    size_t n, cap;
};

int eval_report_open(struct eval_report **ret, const char *dir, const struct program *p, size_t rows, struct err *e)
{
    if (dir && mkdir(dir, 0777) != 0 && errno != EEXIST)
        return err_set(e, ERR_OUTPUT, "--report: cannot make the folder '%s': %s", dir, strerror(errno));
    struct eval_report *r = calloc(1, sizeof *r);
    double *logits = calloc(rows * (size_t)p->classes, sizeof *logits);
    if (!r || !logits) {
        free(r);
        free(logits);
        return err_set(e, -ENOMEM, "no memory for what the model says of %zu pictures", rows);
    }
    *r = (struct eval_report){.dir = dir, .program = p, .rows = rows, .logits = logits};
    *ret = r;
    return 0;
}

void eval_report_close(struct eval_report *r)
{
    if (!r)
        return;
    free(r->logits);
    free(r->notes);
    free(r);
}

/* z: (classes). Ties go to the lower class, as in the accuracy. */
static struct note note_of(const double *z, int classes, int32_t label, uint32_t sample)
{
    struct note n = {.sample = sample, .label = label, .place = 1};
    double sum = 0;
    for (int i = 1; i < classes; i++)
        n.predicted = z[i] > z[n.predicted] ? i : n.predicted;
    for (int i = 0; i < classes; i++) {
        sum += exp(z[i] - z[n.predicted]);
        n.place += z[i] > z[label] || (z[i] == z[label] && i < label);
    }
    n.p_predicted = (float)(1 / sum);
    n.p_label = (float)(exp(z[label] - z[n.predicted]) / sum);
    return n;
}

int eval_report_batch(struct eval_report *r, struct device *d, struct plan *plan, const struct batch *b, struct err *e)
{
    const int classes = r->program->classes;
    TRY(d->ops->get(plan, r->program->logits, r->logits, e));
    TRY(ARRAY_GROW(r->notes, r->cap, r->n + r->rows, "notes", e));
    for (size_t i = 0; i < r->rows; i++)
        if (b->weights[i] > 0)
            r->notes[r->n++] = note_of(r->logits + i * (size_t)classes, classes, b->labels[i], b->samples[i]);
    return 0;
}

/* --- all ranks' notes */

static int by_sample(const void *a, const void *b)
{
    const struct note *x = a, *y = b;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* Of all ranks, by their numbers in the set. Each rank sends as many as the one with the most has. */
static int gather(struct eval_report *r, struct comm *c, struct note **ret, size_t *ret_n, struct err *e)
{
    int64_t most = (int64_t)r->n, total = (int64_t)r->n;
    TRY(c->ops->all_reduce(c, COMM_CONTROL, &most, 1, DT_I64, COMM_MAX, NULL, e));
    TRY(c->ops->all_reduce(c, COMM_CONTROL, &total, 1, DT_I64, COMM_SUM, NULL, e));
    struct note *mine = calloc((size_t)most + 1, sizeof *mine);
    struct note *all = calloc((size_t)most * (size_t)c->world + 1, sizeof *all);
    int rc = mine && all ? 0 : err_set(e, -ENOMEM, "no memory for the notes of %lld pictures", (long long)total);
    for (int64_t i = 0; rc == 0 && i < most; i++)
        mine[i] = (size_t)i < r->n ? r->notes[i] : (struct note){.sample = UINT32_MAX};
    if (rc == 0 && most > 0)
        rc = c->ops->all_gather(c, COMM_CONTROL, mine, all, (size_t)most * sizeof *mine, NULL, e);
    free(mine);
    if (rc < 0) {
        free(all);
        return rc;
    }
    qsort(all, (size_t)most * (size_t)c->world, sizeof *all, by_sample);
    *ret = all;
    *ret_n = (size_t)total;
    return 0;
}

/* --- files */

struct table {
    struct dataset *d;
    const char *dir;
    const struct note *notes;
    size_t n;
    int classes;     /* of the model; the set may have fewer */
    int64_t *counts; /* (classes, classes), of a class as predicted; NULL: more than REPORT_CLASSES_MAX */
    struct sum {
        int64_t n, right, right5;
    } * sums; /* (classes) */
};

static const char *class_name(const struct table *t, int i, char number[16])
{
    snprintf(number, 16, "%d", i);
    return t->d->class_names && i < t->d->classes ? t->d->class_names[i] : number;
}

/* A field of CSV; what does not print is a '?'. */
static void put_field(FILE *f, const char *s)
{
    const bool quoted = strpbrk(s, ",\"") != NULL;
    if (quoted)
        putc('"', f);
    for (; *s; s++) {
        if (*s == '"')
            putc('"', f);
        putc(printable_byte(*s), f);
    }
    if (quoted)
        putc('"', f);
}

static void put_class(FILE *f, const struct table *t, int i)
{
    char number[16];
    put_field(f, class_name(t, i, number));
}

static void write_predictions(FILE *f, const struct table *t)
{
    fputs("file,class,predicted,probability,probability_of_class,place_of_class\n", f);
    for (size_t i = 0; i < t->n; i++) {
        const struct note *n = &t->notes[i];
        put_field(f, t->d->ops->sample_name(t->d, n->sample));
        putc(',', f);
        put_class(f, t, n->label);
        putc(',', f);
        put_class(f, t, n->predicted);
        fprintf(f, ",%.6g,%.6g,%d\n", (double)n->p_predicted, (double)n->p_label, n->place);
    }
}

/* The class that most of the pictures of class i were taken for, but for itself; -1: none was. */
static int confused_with(const struct table *t, int i)
{
    const int64_t *row = t->counts + (size_t)i * (size_t)t->classes;
    int most = -1;
    for (int j = 0; j < t->classes; j++)
        if (j != i && row[j] > 0 && (most < 0 || row[j] > row[most]))
            most = j;
    return most;
}

static void write_classes(FILE *f, const struct table *t)
{
    fputs("class,images,right,acc1,acc5,mostly_taken_for,images_taken_for_it\n", f);
    for (int i = 0; i < t->classes; i++) {
        const struct sum *s = &t->sums[i];
        const int other = t->counts ? confused_with(t, i) : -1;
        put_class(f, t, i);
        fprintf(f, ",%lld,%lld,", (long long)s->n, (long long)s->right);
        if (s->n > 0)
            fprintf(f, "%.3f,%.3f,", 100.0 * (double)s->right / (double)s->n, 100.0 * (double)s->right5 / (double)s->n);
        else
            fputs(",,", f);
        if (other >= 0)
            put_class(f, t, other);
        fprintf(f, ",%lld\n", other >= 0 ? (long long)t->counts[(size_t)i * (size_t)t->classes + (size_t)other] : 0);
    }
}

static void write_confusion(FILE *f, const struct table *t)
{
    fputs("class", f);
    for (int i = 0; i < t->classes; i++) {
        putc(',', f);
        put_class(f, t, i);
    }
    putc('\n', f);
    for (int i = 0; i < t->classes; i++) {
        put_class(f, t, i);
        for (int j = 0; j < t->classes; j++)
            fprintf(f, ",%lld", (long long)t->counts[(size_t)i * (size_t)t->classes + (size_t)j]);
        putc('\n', f);
    }
}

/* As fopen(3), but that no pipe is waited for, and none is written. */
static FILE *create(const char *path)
{
    struct stat st;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    const bool regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *f = regular ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !f) {
        close(fd);
        errno = regular ? ENOMEM : EINVAL;
    }
    return f;
}

static int write_file(const struct table *t, const char *name, void (*write)(FILE *f, const struct table *t),
                      struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", t->dir, name);
    FILE *f = create(path);
    if (f)
        write(f, t);
    const bool failed = !f || ferror(f) != 0;
    const int code = errno;
    if (f && fclose(f) != 0)
        return err_set(e, ERR_OUTPUT, "--report: cannot write '%s': %s", path, strerror(errno));
    return failed ? err_set(e, ERR_OUTPUT, "--report: cannot write '%s': %s", path, strerror(code)) : 0;
}

/* --- the picture */

/* gnuplot reads names in single quotes: nothing of them may end these. */
static void put_tic(FILE *f, const struct table *t, int i)
{
    char number[16];
    const char *name = class_name(t, i, number);
    const size_t n = strlen(name);
    fprintf(f, "%s'", i ? "," : "");
    for (size_t k = 0; k < n && k < NAME_BYTES; k++)
        putc((unsigned char)name[k] < ' ' || strchr("'\\`\x7f", name[k]) ? '?' : name[k], f);
    fprintf(f, "%s' %d", n > NAME_BYTES ? "..." : "", i);
}

static void put_tics(FILE *f, const struct table *t, char axis)
{
    if (t->classes > LABELLED) {
        fprintf(f, "set %ctics out nomirror\n", axis);
        return;
    }
    fprintf(f, "set %ctics out nomirror noenhanced %s(", axis, axis == 'x' ? "rotate by -45 " : "");
    for (int i = 0; i < t->classes; i++)
        put_tic(f, t, i);
    fputs(")\n", f);
}

static void write_script(FILE *f, const struct table *t)
{
    fprintf(f,
            "set terminal pngcairo size 1100,1000 font ',11'\nset output 'plot.png'\nset encoding utf8\nunset key\n");
    fprintf(f, "set title 'confusion: share of the images of a class, %zu images' font ',14'\n", t->n);
    fprintf(f, "set xlabel 'predicted'\nset ylabel 'class'\nset size ratio 1\n");
    fprintf(f, "set xrange [-0.5:%d.5]\nset yrange [%d.5:-0.5]\nset cbrange [0:1]\n", t->classes - 1, t->classes - 1);
    fprintf(f, "set palette defined (0 '#ffffff', 0.02 '#deebf7', 0.3 '#6baed6', 1 '#08306b')\n");
    put_tics(f, t, 'x');
    put_tics(f, t, 'y');
    fprintf(f, "plot 'shares.dat' matrix with image");
    if (t->classes <= LABELLED / 2) /* the numbers themselves, light on dark */
        fprintf(f, ", 'shares.dat' matrix using 1:2:($3 > 0 ? sprintf('%%.2f', $3) : ''):($3 > 0.5 ? 0xffffff : 0) "
                   "with labels tc rgb variable font ',9'");
    fputs("\n", f);
}

static void write_shares(FILE *f, const struct table *t)
{
    for (int i = 0; i < t->classes; i++) {
        const double n = t->sums[i].n > 0 ? (double)t->sums[i].n : 1;
        for (int j = 0; j < t->classes; j++)
            fprintf(f, "%s%.4g", j ? " " : "", (double)t->counts[(size_t)i * (size_t)t->classes + (size_t)j] / n);
        putc('\n', f);
    }
}

static int add_to_plot(const struct gnuplot *g, const struct table *t, const char *name,
                       void (*write)(FILE *f, const struct table *t), struct err *e)
{
    FILE *f = gnuplot_create(g, name, e);
    if (!f)
        return -EIO;
    write(f, t);
    return gnuplot_finish(f, name, e);
}

static int draw(const struct table *t, struct err *e)
{
    char png[PATH_MAX];
    struct gnuplot g;
    snprintf(png, sizeof png, "%s/confusion.png", t->dir);
    TRY(gnuplot_begin(&g, e));
    int rc = add_to_plot(&g, t, "plot.gp", write_script, e);
    if (rc == 0)
        rc = add_to_plot(&g, t, "shares.dat", write_shares, e);
    if (rc == 0)
        rc = gnuplot_draw(&g, png, e);
    gnuplot_end(&g);
    return rc;
}

/* --- together */

static int count(struct table *t, struct err *e)
{
    const size_t c = (size_t)t->classes;
    t->sums = calloc(c, sizeof *t->sums);
    t->counts = c <= REPORT_CLASSES_MAX ? calloc(c * c, sizeof *t->counts) : NULL;
    if (!t->sums || (c <= REPORT_CLASSES_MAX && !t->counts))
        return err_set(e, -ENOMEM, "no memory for what %zu classes are confused with", c);
    for (size_t i = 0; i < t->n; i++) {
        const struct note *n = &t->notes[i];
        struct sum *s = &t->sums[n->label];
        s->n++;
        s->right += n->predicted == n->label;
        s->right5 += n->place <= 5;
        if (t->counts)
            t->counts[(size_t)n->label * c + (size_t)n->predicted]++;
    }
    return 0;
}

/* "the weakest classes: cat 60.0 %, dog 75.0 %": those of which an image is wrong */
static void name_weakest(const struct table *t, char *out, size_t cap)
{
    char number[16];
    size_t at = 0;
    bool *told = calloc((size_t)t->classes, sizeof *told);
    for (int k = 0; told && k < NAMED && at < cap; k++) {
        int worst = -1;
        for (int i = 0; i < t->classes; i++)
            if (!told[i] && t->sums[i].right < t->sums[i].n &&
                (worst < 0 || t->sums[i].right * t->sums[worst].n < t->sums[worst].right * t->sums[i].n))
                worst = i;
        if (worst < 0)
            break;
        told[worst] = true;
        at += (size_t)snprintf(out + at, cap - at, "%s%.40s %.1f %%",
                               k ? ", " : "the weakest classes: ", class_name(t, worst, number),
                               100.0 * (double)t->sums[worst].right / (double)t->sums[worst].n);
    }
    if (told && at == 0)
        snprintf(out, cap, "every image is right");
    free(told);
}

static int write_all(struct table *t, char *text, size_t cap, struct err *e)
{
    struct err why = {0};
    char weakest[400] = "";
    TRY(count(t, e));
    TRY(write_file(t, "predictions.csv", write_predictions, e));
    TRY(write_file(t, "classes.csv", write_classes, e));
    if (t->counts)
        TRY(write_file(t, "confusion.csv", write_confusion, e));
    const bool drawn = t->counts && (unsigned)t->classes <= PICTURE_MAX && draw(t, &why) == 0;
    name_weakest(t, weakest, sizeof weakest);
    snprintf(text, cap, "report: %s: predictions.csv, classes.csv%s%s%s%s; %s", t->dir,
             t->counts ? ", confusion.csv" : "; no confusion of so many classes", drawn ? ", confusion.png" : "",
             why.text[0] ? "; no picture: " : "", why.text, weakest);
    return 0;
}

int eval_report_write(struct eval_report *r, struct comm *c, struct dataset *d, char *text, size_t cap, struct err *e)
{
    struct note *all;
    struct table t = {.d = d, .dir = r->dir, .classes = r->program->classes};
    text[0] = '\0';
    TRY(gather(r, c, &all, &t.n, e));
    t.notes = all;
    const int rc = r->dir ? write_all(&t, text, cap, e) : 0;
    free(t.sums);
    free(t.counts);
    free(all);
    return rc;
}
