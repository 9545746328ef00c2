/* trainer summary: the options of a run, and what it would be: the layers of its model with shapes, parameters and
 * FLOP, its data with the pictures of each class and what is left out, its memory and its schedule. One rank's;
 * nothing is written and nothing is run (session/forecast.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "worker/cli/cli.h"
#include "worker/config/config.h"
#include "worker/config/exit_code.h"
#include "worker/data/sets/dataset.h"
#include "worker/manifest/run_model.h"
#include "worker/optim/schedule.h"
#include "worker/optim/update.h"
#include "worker/personality/personality.h"
#include "worker/program/program.h"
#include "worker/run/rate.h"
#include "worker/session/forecast.h"
#include "worker/session/hints.h"
#include "worker/session/session.h"

#define MIB (1024.0 * 1024)
#define CLASSES_SHOWN 20

struct summary_config {
    struct train_config train;
    bool classes, epochs;
};

static const struct arg_spec own[] = {
    ARG_GROUP("Summary"),
    {.name = "all-classes",
     .type = ARG_FLAG,
     .at = offsetof(struct summary_config, classes),
     .help = "each class with its pictures, not the first 20 alone"},
    {.name = "all-epochs",
     .type = ARG_FLAG,
     .at = offsetof(struct summary_config, epochs),
     .help = "the rate at the beginning of each epoch, and the share of --ema that its first step keeps"},
    ARG_END,
};

static const struct personality_default defaults[] = {{NULL, NULL, 0, NULL}};

static int apply(void *config, const struct personality_args *a, struct err *e)
{
    (void)a;
    return train_config_check(&((struct summary_config *)config)->train, e);
}

static const struct personality summary_options = {
    .name = "summary",
    .usage = "--train-data DIR [options of trainer]",
    .summary =
        "Print what a run with these options would train: layers, shapes, parameters, FLOP, the pictures of each "
        "class, what is left out, memory, and the schedule. Nothing is written, and nothing is run.",
    .epilog = "FLOP are those of products (convolutions, linear layers, attention) of one sample forward, an addition "
              "and a multiplication counted as two; a step of training takes some three times as many. trainer plan "
              "prints what each of several ranks holds and sends.",
    .own = own,
    .defaults = defaults,
    .config_size = sizeof(struct summary_config),
    .recipes = true,
    .operands = ARG_NO_OPERANDS,
    .apply = apply,
};

/* --- the model */

static size_t trained(const struct program *p, const struct op *o)
{
    size_t n = 0;
    for (int i = 0; i < 4; i++)
        if (o->param[i] >= 0 && p->params[o->param[i]].role == PARAM_TRAIN)
            n += p->params[o->param[i]].count;
    return n;
}

/* Of one sample. */
static double flop(const struct program *p, const struct op *o)
{
    const struct tensor *x = o->in[0] >= 0 ? &p->tensors[o->in[0]] : NULL,
                        *y = o->out >= 0 ? &p->tensors[o->out] : NULL;
    const double weights = o->param[0] >= 0 ? (double)p->params[o->param[0]].count : 0;
    switch (o->kind) {
    case OP_CONV:
        return 2 * weights * y->h * y->w;
    case OP_LINEAR:
        return 2 * weights * (o->each ? (double)y->h * y->w : 1);
    case OP_HEAD:
        return 2 * weights * x->h * x->w;
    case OP_ATTENTION: { /* each position with each: queries times keys, and what comes of it times values */
        const double t = (double)x->h * x->w;
        return 4 * t * t * y->c;
    }
    default:
        return 0;
    }
}

static void print_layers(const struct program *p)
{
    double all = 0;
    size_t params = 0;
    printf("%-32s %-10s %-18s %12s %10s\n", "layer", "what", "channels x h x w", "parameters", "MFLOP");
    for (int i = 0; i < p->nfwd; i++) {
        const struct op *o = &p->ops[i];
        if (o->out < 0)
            continue;
        const struct tensor *y = &p->tensors[o->out];
        const double f = flop(p, o);
        const size_t n = trained(p, o);
        char shape[40], mega[16] = "";
        snprintf(shape, sizeof shape, "%d x %d x %d", y->c, y->h, y->w);
        if (f > 0)
            snprintf(mega, sizeof mega, "%.2f", f / 1e6);
        printf("%-32s %-10s %-18s %12.0zu %10s\n", y->name, op_name(o->kind), shape, n, mega);
        all += f;
        params += n;
    }
    printf("in sum: %zu parameters, %.3f GFLOP for a sample forward\n\n", params, all / 1e9);
}

/* --- data */

static int by_count(const void *a, const void *b)
{
    const size_t x = **(size_t *const *)a, y = **(size_t *const *)b;
    return x < y ? -1 : x > y;
}

/* Smallest and largest class, and how many pictures are in the middle one. */
static int print_spread(const struct dataset *d, size_t *counts, struct err *e)
{
    size_t **order = malloc((size_t)d->classes * sizeof *order);
    if (!order)
        return err_errno(e, ENOMEM, "counts of %d classes", d->classes);
    for (int i = 0; i < d->classes; i++)
        order[i] = &counts[i];
    qsort(order, (size_t)d->classes, sizeof *order, by_count);
    const size_t *least = order[0], *most = order[d->classes - 1];
    printable_line(stdout, "  of a class: %zu (%s) to %zu (%s), half of the classes have up to %zu", *least,
                   d->class_names[least - counts], *most, d->class_names[most - counts], *order[(d->classes - 1) / 2]);
    free(order);
    return 0;
}

static int print_classes(struct dataset *d, bool all, struct err *e)
{
    size_t *counts = calloc((size_t)d->classes, sizeof *counts);
    if (!counts)
        return err_errno(e, ENOMEM, "counts of %d classes", d->classes);
    for (size_t i = 0; i < d->n; i++) {
        const int label = d->ops->label(d, i);
        if (label >= 0 && label < d->classes)
            counts[label]++;
    }
    const int rc = print_spread(d, counts, e);
    const int shown = all || d->classes <= CLASSES_SHOWN ? d->classes : CLASSES_SHOWN;
    for (int i = 0; rc == 0 && i < shown; i++)
        printable_line(stdout, "  %8zu  %s", counts[i], d->class_names[i]);
    if (rc == 0 && shown < d->classes)
        printf("  and %d classes more (--all-classes)\n", d->classes - shown);
    free(counts);
    return rc;
}

static int print_set(const char *option, const char *path, struct dataset *d, bool all, struct err *e)
{
    if (!d)
        return 0;
    if (d->length)
        printable_line(stdout, "%s %s: %s, %zu sequences", option, path, d->ops->name, d->n);
    else
        printable_line(stdout, "%s %s: %s, %zu images, %d classes", option, path, d->ops->name, d->n, d->classes);
    if (d->left_out)
        printable_line(stdout, "  %s", d->left_out);
    if (d->length || !d->class_names)
        return 0;
    if (d->ops->label)
        return print_classes(d, all, e);
    puts("  the images of each class are known only when their records are read");
    return 0;
}

/* --- schedule */

/* Of a run whose epochs all have so many steps. */
static void print_epochs(const struct train_config *c, const struct schedule *s, int64_t steps)
{
    const struct optimizer o = {
        .ema = c->ema, .ema_every = c->ema_every, .ema_copied = rate_copied(s, steps), .epoch = steps};
    for (int64_t i = 0; i < c->num_epochs; i++)
        printf("  epoch %lld: rate %.17g, kept %.17g\n", (long long)i + 1, schedule_lr(s, i * steps),
               c->ema > 0 ? optimizer_kept(&o, i * steps + 1) : 0);
}

static void print_schedule(const struct summary_config *all, const struct forecast *f)
{
    const struct train_config *c = &all->train;
    int64_t total = c->num_epochs * f->steps;
    if (c->max_steps && c->max_steps < total)
        total = c->max_steps;
    const struct schedule s = rate_schedule(c, rate_workers(c, 1, c->batch_size), f->parts, f->steps, total);
    printf("\nschedule: %lld steps, %lld an epoch of %zu samples in batches of %lld; %lld steps of warm-up; %s\n",
           (long long)total, (long long)f->steps, f->images, (long long)c->batch_size, (long long)s.warmup_steps,
           schedule_policy_name(s.policy));
    const int64_t at[] = {0, s.warmup_steps, total / 4, total / 2, total * 3 / 4, total - 1};
    int64_t before = -1;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        if (at[i] <= before || at[i] >= total)
            continue;
        before = at[i];
        printf("  step %9lld, epoch %8.2f: rate %.6g\n", (long long)at[i], (double)at[i] / (double)f->steps,
               schedule_lr(&s, at[i]));
    }
    if (all->epochs)
        print_epochs(c, &s, f->steps);
}

static void print_memory(const struct forecast *f)
{
    const struct memory_report *m = &f->ranks[0].memory;
    printf("\nmemory of a run on one rank, in MiB\n");
#define X(field, text)                                                                                                 \
    if (m->field > 0)                                                                                                  \
        printf("  %-20s %12.2f\n", text, (double)m->field / MIB);
    MEMORY_PARTS(X)
#undef X
    printf("  %-20s %12.2f\n", "in sum", (double)memory_planned(m) / MIB);
}

/* --- all of it */

static int print_model(void *ctx, struct session *s, struct err *e)
{
    const struct summary_config *c = ctx;
    char samples[64];
    printable_line(stdout, "%s: %zu parameters trained, %zu frozen, %d %s, %s", c->train.arch,
                   program_trainable(s->whole), program_frozen(s->whole), s->whole->classes,
                   c->train.length ? "numbers of tokens" : "classes", train_config_samples(&c->train, samples));
    putchar('\n');
    print_layers(s->whole);
    if (c->train.train_data)
        hints_tell_part(s->train_set, c->train.train_data);
    TRY(print_set("--train-data", c->train.train_data, s->train_set, c->classes, e));
    return print_set(c->train.val_split > 0 ? "--val-split of" : "--test-data", train_config_held_out(&c->train),
                     s->test_set, c->classes, e);
}

static int print_summary(const struct summary_config *c, struct err *e)
{
    const struct forecast_visit visit = {.ctx = (void *)c, .rank = print_model};
    struct forecast_base *b = NULL;
    struct forecast f;
    TRY(forecast_open(&b, &c->train, 1, 1, e));
    const int rc = forecast_on(&f, b, &c->train, &visit, e);
    if (rc == 0) {
        print_memory(&f);
        print_schedule(c, &f);
        printf("\ndevice: %s; %s\n", f.device, f.precision);
        forecast_free(&f);
    }
    forecast_close(b);
    return rc;
}

static int fail(int rc, const struct err *e)
{
    fprintf(stderr, "trainer summary: %s\n", e->text);
    return exit_code_of(rc);
}

int summary_main(int argc, char **argv)
{
    struct train_config *train;
    struct run_model model;
    struct err e;
    log_init(LOG_WARN, "");
    int rc = personality_parse(&summary_options, argc, argv, "trainer " CRUN_VERSION, &train, &e);
    if (rc != 0)
        return rc > 0 ? EXIT_OK : fail(rc, &e);
    int code = EXIT_OK;
    if ((rc = run_model_choose(&model, train, &e)) < 0) {
        code = fail(rc, &e);
    } else {
        run_model_tell(&model);
        if ((rc = print_summary((const struct summary_config *)train, &e)) < 0)
            code = fail(rc, &e);
        run_model_free(&model);
    }
    free(train);
    return code;
}
