#include "worker/journal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/err.h"
#include "worker/config.h"
#include "worker/data/dataset.h"
#include "worker/eval.h"
#include "worker/report/caffe2_log.h"
#include "worker/report/metrics.h"
#include "worker/session.h"
#include "worker/snapshot.h"
#include "worker/step.h"

/* A new run in the log folder of an older one: what that one wrote is kept under another name. */
static int set_aside(const char *path, struct err *e)
{
    char old[4200], when[CLOCK_ISO_LEN];
    struct stat st;
    if (stat(path, &st) < 0 || st.st_size == 0)
        return 0;
    snprintf(old, sizeof old, "%s.until-%s", path, clock_iso(when, sizeof when));
    return rename(path, old) < 0 ? err_errno(e, errno, "rename %s", path) : 0;
}

static int open_files(struct journal *j, const struct session *s, const struct position *at, int restart,
                      const char *dir, const char *command_line, struct err *e)
{
    char path[4096];
    double seconds;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (at->updates == 0 && restart == 0)
        TRY(set_aside(path, e));
    TRY(metrics_open(&j->metrics, path, at->updates, &seconds, e));
    TRY(metrics_event(j->metrics, at->updates ? "resume" : "start", at->updates, restart, e));
    struct caffe2_log_options o = {.dir = dir,
                                   .arch = s->cfg->arch,
                                   .devices = s->world,
                                   .batch = (int)s->cfg->batch_size,
                                   .labels = (int)s->identity.num_labels,
                                   .lr = s->cfg->base_lr,
                                   .parameters = command_line,
                                   .resume = at->updates > 0};
    return caffe2_log_open(&j->csv, &o, at->epoch, &seconds, e);
}

int journal_open(struct journal *j, const struct session *s, const struct position *at, int restart,
                 const char *command_line, struct err *e)
{
    const char *dir = s->cfg->log_dir ? s->cfg->log_dir : s->cfg->checkpoint_dir;
    *j = (struct journal){.active = s->rank == 0};
    progress_init(&j->progress, (int)s->cfg->print_freq);
    if (!j->active || !dir || s->cfg->evaluate)
        return 0;
    int rc = open_files(j, s, at, restart, dir, command_line, e);
    if (rc < 0)
        journal_close(j);
    return rc;
}

void journal_close(struct journal *j)
{
    if (j->active)
        progress_end_line(&j->progress);
    if (j->csv)
        caffe2_log_close(j->csv);
    if (j->metrics)
        metrics_close(j->metrics);
    *j = (struct journal){0};
}

static double percent(double hits, double count)
{
    return count > 0 ? 100 * hits / count : 0;
}

static double mean(double sum, double count)
{
    return count > 0 ? sum / count : 0;
}

static double epochs_done(const struct session *s, const struct position *at)
{
    return (double)at->epoch + (double)at->step / (double)s->steps_per_epoch;
}

int journal_step(struct journal *j, const struct session *s, const struct position *at, const struct step_result *r,
                 double lr, double comm_wait, struct err *e)
{
    if (!j->active)
        return 0;
    double seconds = (double)r->total_ns / 1e9;
    int64_t done = at->epoch * s->steps_per_epoch + at->step, total = s->total_steps;
    struct progress_state p = {.epoch = at->epoch,
                               .epochs = s->cfg->num_epochs,
                               .step = at->step,
                               .steps_per_epoch = s->steps_per_epoch,
                               .total_done = done,
                               .total_steps = total,
                               .loss = mean(at->epoch_loss, at->epoch_count),
                               .acc1 = percent(at->epoch_top1, at->epoch_count),
                               .images_per_sec = mean(at->epoch_count, at->epoch_seconds),
                               .data_wait = mean((double)r->wait_ns, (double)r->total_ns),
                               .eta_seconds = mean(at->seconds, (double)done) * (double)(total - done)};
    progress_step(&j->progress, &p);
    if (!j->metrics)
        return 0;
    struct metrics_step m = {.step = at->updates,
                             .epoch = epochs_done(s, at),
                             .loss = mean(r->loss, r->count),
                             .acc1 = percent(r->top1, r->count),
                             .acc5 = percent(r->top5, r->count),
                             .lr = lr,
                             .images_per_sec = mean(r->count, seconds),
                             .data_wait = p.data_wait,
                             .comm_wait = comm_wait,
                             .seconds = at->seconds,
                             .bad_samples = (int64_t)r->bad};
    return metrics_step(j->metrics, &m, e);
}

int journal_epoch(struct journal *j, const struct session *s, const struct position *at, const struct eval_result *v,
                  double lr, struct err *e)
{
    if (!j->active)
        return 0;
    if (v)
        journal_say(j, "epoch %lld: train loss %.4f Acc@1 %.2f, test loss %.4f Acc@1 %.2f (%lld images)",
                    (long long)at->epoch + 1, mean(at->epoch_loss, at->epoch_count),
                    percent(at->epoch_top1, at->epoch_count), mean(v->loss, v->count), percent(v->top1, v->count),
                    (long long)v->count);
    if (v && v->bad > 0)
        journal_say(j, "%lld test images could not be decoded and count nowhere", (long long)v->bad);
    if (!j->metrics)
        return 0;
    if (v) {
        struct metrics_eval m = {.step = at->updates,
                                 .epoch = epochs_done(s, at),
                                 .loss = mean(v->loss, v->count),
                                 .acc1 = percent(v->top1, v->count),
                                 .acc5 = percent(v->top5, v->count),
                                 .seconds = at->seconds,
                                 .images = (int64_t)v->count,
                                 .bad_samples = (int64_t)v->bad};
        TRY(metrics_eval(j->metrics, &m, e));
    }
    struct caffe2_row row = {.time_spent = at->epoch_seconds,
                             .cumulative_time_spent = at->seconds,
                             .input_count = (int64_t)at->epoch_count,
                             .cumulative_input_count = at->epoch * (int64_t)s->train_set->n + (int64_t)at->epoch_count,
                             .cumulative_batch_count = at->updates,
                             .inputs_per_sec = mean(at->epoch_count, at->epoch_seconds),
                             .accuracy = mean(at->epoch_top1, at->epoch_count),
                             .epoch = at->epoch,
                             .learning_rate = lr,
                             .loss = mean(at->epoch_loss, at->epoch_count),
                             .test_accuracy = v ? mean(v->top1, v->count) : -1};
    return caffe2_log_row(j->csv, &row, e);
}

void journal_say(struct journal *j, const char *fmt, ...)
{
    if (!j->active)
        return;
    progress_end_line(&j->progress);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}
