/* Writes metrics.jsonl, logs and progress of a run; on rank 0. */
#include "worker/run/journal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "worker/config/config.h"
#include "worker/data/sets/dataset.h"
#include "worker/report/caffe2_log.h"
#include "worker/report/metrics.h"
#include "worker/report/tensorboard.h"
#include "worker/run/eval.h"
#include "worker/run/step.h"
#include "worker/session/memory.h"
#include "worker/session/session.h"
#include "worker/snapshot/snapshot.h"
#include "worker/snapshot/snapshot_writer.h"

bool journal_lacks(const struct journal *j, int64_t step)
{
    return j->metrics && metrics_last_step(j->metrics) < step;
}

static double percent(double hits, double count)
{
    return count > 0 ? 100 * hits / count : 0;
}

static double mean(double sum, double count)
{
    return count <= 0 ? 0 : isnan(sum) ? NAN : sum / count; /* no "-nan" */
}

static double epochs_done(const struct session *s, const struct position *at)
{
    return (double)at->epoch + (double)at->step / (double)s->steps_per_epoch;
}

/* Evaluations that follow the current epoch and those after it. */
static int64_t evaluations_left(const struct session *s, const struct position *at)
{
    int64_t last = s->total_steps > 0 ? (s->total_steps - 1) / s->steps_per_epoch : 0, every = s->cfg->eval_every;
    if (!s->test_set || last < at->epoch)
        return 0;
    return every ? 1 + last / every - at->epoch / every : 1;
}

static double seconds_left(const struct journal *j, const struct session *s, const struct position *at, int64_t done)
{
    return meters_step_seconds(&j->meters) * (double)(s->total_steps - done) +
           j->eval_seconds * (double)evaluations_left(s, at);
}

/* Loss and accuracy are those of the whole epoch, also of what was done of it before a restart. */
static void show_progress(struct journal *j, const struct session *s, const struct position *at)
{
    int64_t done = at->epoch * s->steps_per_epoch + at->step;
    struct progress_state p = {.epoch = at->epoch,
                               .epochs = s->cfg->num_epochs,
                               .step = at->step,
                               .steps_per_epoch = s->steps_per_epoch,
                               .total_done = done,
                               .total_steps = s->total_steps,
                               .eta_seconds = seconds_left(j, s, at, done),
                               .tokens = s->cfg->length > 0,
                               .synthetic = strcmp(s->train_set->ops->name, "null") == 0};
    meters_show(&j->meters, &p);
    p.loss.mean = mean(at->epoch_loss, at->epoch_count);
    p.acc1.mean = percent(at->epoch_top1, at->epoch_count);
    progress_step(&j->progress, &p);
}

static int scalars_step(struct tensorboard *t, const struct metrics_step *m, struct err *e)
{
    const bool scaled = m->loss_scale > 0;
    const struct tensorboard_scalar v[] = {
        {"train/loss", m->loss},
        {"train/perplexity", m->tokens ? exp(m->loss) : NAN},
        {"train/acc1", m->acc1},
        {"train/acc5", m->acc5},
        {"train/lr", m->lr},
        {"epoch", m->epoch},
        {m->tokens ? "speed/tokens_per_sec" : "speed/images_per_sec", m->rate},
        {"speed/data_wait", m->data_wait},
        {"speed/comm_wait", m->comm_wait},
        {"train/skipped_steps", scaled ? (double)m->skipped : NAN},
        {"train/loss_scale", scaled ? m->loss_scale : NAN},
        {"train/grad_norm", m->grad_norm != 0 ? m->grad_norm : NAN},
    };
    return tensorboard_add(t, m->step, v, sizeof v / sizeof *v, e); /* what is not a number is left out */
}

static int scalars_eval(struct tensorboard *t, const struct metrics_eval *m, struct err *e)
{
    const struct tensorboard_scalar v[] = {{"test/loss", m->loss},
                                           {"test/perplexity", m->tokens ? exp(m->loss) : NAN},
                                           {"test/acc1", m->acc1},
                                           {"test/acc5", m->acc5}};
    return tensorboard_add(t, m->step, v, sizeof v / sizeof *v, e);
}

static struct meters_step sample(const struct position *at, const struct step_result *r)
{
    return (struct meters_step){.epoch = at->epoch,
                                .loss = r->loss,
                                .top1 = r->top1,
                                .top5 = r->top5,
                                .count = r->count,
                                .seconds = (double)r->total_ns / 1e9,
                                .data_seconds = (double)r->wait_ns / 1e9};
}

/* Each takes what became of writing to its file. */
static void log_failure(struct journal *j, int rc, const struct err *e)
{
    if (rc < 0) {
        progress_end_line(&j->progress);
        log_error("train", "%s; this log is incomplete, training goes on", e->text);
    }
}

/* What it could not take is missing; each line is tried, for a disk is seldom full for good. */
static void metrics_wrote(struct journal *j, int rc, const struct err *e)
{
    if (rc < 0 && j->metrics_missing++ == 0) {
        progress_end_line(&j->progress);
        log_error("train", "%s; lines are missing in this log until it can be written, training goes on", e->text);
    }
    if (rc < 0 || j->metrics_missing == 0)
        return;
    progress_end_line(&j->progress);
    log_warn("train", "metrics.jsonl can be written again; %" PRId64 " of its lines are missing", j->metrics_missing);
    j->metrics_missing = 0;
}

static void tensorboard_wrote(struct journal *j, int rc, const struct err *e)
{
    log_failure(j, rc, e);
    if (rc < 0) {
        tensorboard_close(j->tensorboard);
        j->tensorboard = NULL;
    }
}

static void csv_wrote(struct journal *j, int rc, const struct err *e)
{
    log_failure(j, rc, e);
    if (rc < 0) {
        caffe2_log_close(j->csv);
        j->csv = NULL;
    }
}

/* Into the files of metrics. */
static void keep_step(struct journal *j, const struct session *s, const struct position *at,
                      const struct step_result *r, double lr, double comm_wait)
{
    struct err e;
    struct metrics_step m = {.step = at->updates,
                             .epoch = epochs_done(s, at),
                             .loss = r->count > 0 ? r->loss / r->count : NAN, /* nothing counted: not a loss of 0 */
                             .acc1 = r->count > 0 ? percent(r->top1, r->count) : NAN,
                             .acc5 = r->count > 0 ? percent(r->top5, r->count) : NAN,
                             .grad_norm = r->grad_norm,
                             .lr = lr,
                             .rate = mean(r->count, sample(at, r).seconds),
                             .tokens = s->cfg->length > 0,
                             .data_wait = mean((double)r->wait_ns, (double)r->total_ns),
                             .comm_wait = comm_wait,
                             .seconds = at->seconds,
                             .bad_samples = (int64_t)r->bad};
    if (s->state.loss_scale.dynamic || s->state.loss_scale.scale != 1) {
        m.loss_scale = s->state.loss_scale.scale;
        m.skipped = s->state.loss_scale.skipped;
    }
    if (j->tensorboard)
        tensorboard_wrote(j, scalars_step(j->tensorboard, &m, &e), &e);
    if (j->metrics)
        metrics_wrote(j, metrics_step(j->metrics, &m, &e), &e);
}

/* The files first: a process that dies once its line was read has its step in them, and nobody tells of it again
 * (journal_lacks()). */
void journal_step(struct journal *j, const struct session *s, const struct position *at, const struct step_result *r,
                  double lr, double comm_wait)
{
    if (!j->lines)
        return;
    const struct meters_step now = sample(at, r);
    meters_add(&j->meters, &now);
    if (j->metrics || j->tensorboard)
        keep_step(j, s, at, r, lr, comm_wait);
    show_progress(j, s, at);
}

static void on_test_batch(void *ctx, int64_t done, int64_t steps, const struct eval_result *now,
                          const struct eval_result *so_far)
{
    struct journal *j = ctx;
    const double all = (double)j->world;
    const struct progress_state p = {
        .step = done,
        .steps_per_epoch = steps,
        .loss = {mean(now->loss, now->count), mean(so_far->loss, so_far->count)},
        .acc1 = {percent(now->top1, now->count), percent(so_far->top1, so_far->count)},
        .acc5 = {percent(now->top5, now->count), percent(so_far->top5, so_far->count)},
        .time = {now->seconds, so_far->seconds / (double)done},
        .rate = {all * mean(now->count, now->seconds), all * mean(so_far->count, so_far->seconds)}};
    if (j->lines)
        progress_test(&j->progress, &p);
}

struct eval_watch journal_watch(struct journal *j, const struct session *s)
{
    j->world = s->batch.count;
    return (struct eval_watch){.ctx = j, .batch = on_test_batch};
}

static void tell_evaluation(struct journal *j, const struct session *s, const struct position *at,
                            const struct eval_result *v)
{
    char line[96];
    bool last = at->epoch * s->steps_per_epoch + at->step >= s->total_steps; /* then stdout gets it */
    progress_summary_text(j->progress.format, percent(v->top1, v->count), percent(v->top5, v->count), line,
                          sizeof line);
    if (line[0] && !(last && j->progress.format == PROGRESS_TORCH))
        journal_say(j, "%s", line);
    if (!line[0] && s->cfg->length)
        journal_say(j, "epoch %lld: train loss %.4f, test loss %.4f perplexity %.3f Acc@1 %.2f (%lld tokens)",
                    (long long)at->epoch + 1, mean(at->epoch_loss, at->epoch_count), mean(v->loss, v->count),
                    exp(mean(v->loss, v->count)), percent(v->top1, v->count), (long long)v->count);
    else if (!line[0])
        journal_say(j, "epoch %lld: train loss %.4f Acc@1 %.2f, test loss %.4f Acc@1 %.2f (%lld images)",
                    (long long)at->epoch + 1, mean(at->epoch_loss, at->epoch_count),
                    percent(at->epoch_top1, at->epoch_count), mean(v->loss, v->count), percent(v->top1, v->count),
                    (long long)v->count);
    if (v->bad > 0)
        journal_say(j, "%lld test images could not be read or decoded, or are of no class, and count nowhere",
                    (long long)v->bad);
}

static void write_evaluation(struct journal *j, const struct session *s, const struct position *at,
                             const struct eval_result *v)
{
    struct err e;
    struct metrics_eval m = {.step = at->updates,
                             .epoch = epochs_done(s, at),
                             .loss = mean(v->loss, v->count),
                             .acc1 = percent(v->top1, v->count),
                             .acc5 = percent(v->top5, v->count),
                             .seconds = at->seconds,
                             .counted = (int64_t)v->count,
                             .tokens = s->cfg->length > 0,
                             .bad_samples = (int64_t)v->bad};
    if (j->tensorboard)
        tensorboard_wrote(j, scalars_eval(j->tensorboard, &m, &e), &e);
    if (j->metrics)
        metrics_wrote(j, metrics_eval(j->metrics, &m, &e), &e);
}

void journal_epoch(struct journal *j, const struct session *s, const struct position *at, const struct eval_result *v,
                   double lr)
{
    struct err e;
    if (!j->active)
        return;
    if (v) {
        j->eval_seconds = v->seconds;
        tell_evaluation(j, s, at, v);
        write_evaluation(j, s, at, v);
    }
    if (!j->csv)
        return;
    struct caffe2_row row = {.time_spent = at->epoch_seconds,
                             .cumulative_time_spent = at->seconds,
                             .input_count = (int64_t)at->epoch_count,
                             .cumulative_input_count = at->epoch * sampler_images(&s->identity.order) *
                                                           (s->cfg->length ? s->cfg->length : 1) +
                                                       (int64_t)at->epoch_count,
                             .cumulative_batch_count = at->updates,
                             .inputs_per_sec = mean(at->epoch_count, at->epoch_seconds),
                             .accuracy = mean(at->epoch_top1, at->epoch_count),
                             .epoch = at->epoch,
                             .learning_rate = lr,
                             .loss = mean(at->epoch_loss, at->epoch_count),
                             .test_accuracy = v ? mean(v->top1, v->count) : -1};
    csv_wrote(j, caffe2_log_row(j->csv, &row, &e), &e);
}

void journal_end(struct journal *j, const struct session *s, const struct position *at)
{
    char text[512];
    struct memory_report m;
    struct err e;
    if (!j->active)
        return;
    memory_report(s, &m);
    if (j->meters.run_steps > 0)
        journal_say(j, "speed: %.1f %s/s over %lld steps without warm-up%s", meters_run_rate(&j->meters),
                    s->cfg->length ? "tokens" : "images", (long long)j->meters.run_steps,
                    strcmp(s->train_set->ops->name, "null") == 0 ? ", of made-up data" : "");
    journal_say(j, "memory: %s", memory_text(&m, true, text, sizeof text));
    cJSON *o = j->metrics ? cJSON_CreateObject() : NULL, *memory = o ? cJSON_AddObjectToObject(o, "memory") : NULL;
    if (!memory)
        return;
#define X(field, name) cJSON_AddNumberToObject(memory, #field, (double)m.field);
    MEMORY_PARTS(X)
#undef X
    cJSON_AddNumberToObject(memory, "resident_peak", (double)m.resident_peak);
    if (m.device_peak > 0)
        cJSON_AddNumberToObject(memory, "device_peak", (double)m.device_peak);
    cJSON_AddNumberToObject(o, s->cfg->length ? "mean_tokens_per_sec" : "mean_images_per_sec",
                            meters_run_rate(&j->meters));
    metrics_wrote(j, metrics_event(j->metrics, "end", at->updates, 0, o, &e), &e);
}

void journal_event(struct journal *j, const char *name, int64_t step, struct cJSON *more)
{
    struct err e;
    if (j->metrics)
        metrics_wrote(j, metrics_event(j->metrics, name, step, 0, more, &e), &e);
    else
        cJSON_Delete(more);
}

void journal_complete(struct journal *j)
{
    char took[48];
    if (j->progress.format == PROGRESS_ARTICLE)
        journal_say(j, "Training complete in: %s",
                    progress_timedelta((clock_ns() - j->opened_ns) / 1000, took, sizeof took));
}

void journal_checkpoint(struct journal *j, const struct snapshot_saved *saved)
{
    struct err e;
    if (j->metrics)
        metrics_wrote(j, metrics_checkpoint(j->metrics, saved->step, saved->copy_ms, saved->write_ms, saved->bytes, &e),
                      &e);
}

void journal_say(struct journal *j, const char *fmt, ...)
{
    if (!j->active)
        return;
    progress_end_line(&j->progress);
    va_list ap;
    va_start(ap, fmt);
    printable_vline(stderr, fmt, ap);
    va_end(ap);
}
