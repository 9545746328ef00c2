/* Writes records as JSON, for readers and for the disk. The format is in reference/protocol.md, section "Status". */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utlist.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/json/json_write.h"
#include "rendezvousd/history/history_impl.h"

bool history_shows_all_of(const struct history_reader *who, const char *principal)
{
    return who->all || (who->principal && strcmp(who->principal, principal) == 0);
}

bool history_shows(const struct history_reader *who, const char *principal)
{
    return who->queue || history_shows_all_of(who, principal);
}

double record_eta_s_(const struct record *r, double now_s)
{
    const double left = r->now.total_steps - r->now.step;
    const double speed = curve_steps_per_s(&r->curve, now_s - r->started_s);
    return left >= 0 && speed > 0 ? left / speed : NAN;
}

/* --- a job */

static void write_now(const struct record *r, struct json_write *w)
{
    figures_number(w, "step", r->now.step);
    figures_number(w, "total_steps", r->now.total_steps);
    for (int i = 0; i < CURVE_N; i++)
        figures_number(w, curve_names[i], r->now.v[i]);
    job_metrics_write(r->now.metrics, r->now.n_metrics, w);
}

static void write_seconds(struct json_write *w, const char *key, double s)
{
    char text[40];
    snprintf(text, sizeof text, "%.3f", s);
    json_raw(w, key, text);
}

void record_write_summary_(const struct record *r, struct json_write *w)
{
    json_text(w, "run", r->run);
    json_text(w, "instance", r->instance);
    json_text(w, "principal", r->principal);
    json_text(w, "state", r->state);
    json_int(w, "number", (long long)r->number);
    write_seconds(w, "started", r->started_s);
    write_seconds(w, "ended", r->ended_s);
    json_int(w, "round", (long long)r->round);
    json_int(w, "nodes", r->nodes);
    json_int(w, "min_nodes", r->min_nodes);
    json_int(w, "max_nodes", r->max_nodes);
    json_int(w, "world_size", r->world_size);
    json_int(w, "restarts", r->restarts);
    json_int(w, "max_restarts", r->max_restarts);
    json_int(w, "exit_code", r->exit_code);
    json_int(w, "rank", r->rank);
    json_text(w, "cause", r->cause);
    write_now(r, w);
}

static void write_curve(const struct curve *c, struct json_write *w)
{
    json_begin(w, "curve", '{');
    json_begin(w, "t", '[');
    for (uint32_t i = 0; i < c->n; i++)
        figures_number(w, NULL, c->v[i].t_s);
    json_end(w, ']');
    json_begin(w, "at_step", '[');
    for (uint32_t i = 0; i < c->n; i++)
        json_int(w, NULL, c->v[i].step);
    json_end(w, ']');
    for (int k = 0; k < CURVE_N; k++) {
        json_begin(w, curve_names[k], '[');
        for (uint32_t i = 0; i < c->n; i++)
            figures_number(w, NULL, c->v[i].v[k]);
        json_end(w, ']');
    }
    json_end(w, '}');
}

static void write_marks(const struct record *r, struct json_write *w)
{
    const uint32_t n = r->mark_count;
    json_begin(w, "marks", '[');
    for (uint32_t i = n > HISTORY_MARKS ? n - HISTORY_MARKS : 0; i < n; i++) {
        const struct mark *m = &r->marks[i % HISTORY_MARKS];
        json_begin(w, NULL, '{');
        figures_number(w, "t", m->t_s);
        json_int(w, "step", m->step);
        json_int(w, "round", (long long)m->round);
        json_int(w, "rank", m->rank);
        json_int(w, "exit_code", m->exit_code);
        json_text(w, "why", m->why);
        json_end(w, '}');
    }
    json_end(w, ']');
}

static void write_live(const struct record *r, double now_s, struct json_write *w)
{
    size_t room = HISTORY_RANKS_MAX;
    figures_number(w, "eta_s", record_eta_s_(r, now_s));
    write_seconds(w, "now", now_s);
    json_begin(w, "hosts", '[');
    for (const struct node_figures *f = r->reports; f && w->rc == 0; f = f->hh.next)
        node_figures_write(f, now_s, w);
    json_end(w, ']');
    json_begin(w, "ranks", '[');
    for (const struct node_figures *f = r->reports; f && w->rc == 0; f = f->hh.next)
        node_figures_write_ranks(f, &room, w);
    json_end(w, ']');
}

void record_write_(const struct record *r, bool with_private, double now_s, struct json_write *w)
{
    json_begin(w, NULL, '{');
    record_write_summary_(r, w);
    write_curve(&r->curve, w);
    json_int(w, "stride", r->curve.stride);
    json_int(w, "in_last", r->curve.in_last);
    write_marks(r, w);
    if (now_s > 0)
        write_live(r, now_s, w);
    json_bool(w, "private", with_private);
    if (with_private && r->logs)
        json_text(w, "logs", r->logs);
    if (with_private && r->failure)
        json_raw(w, "failure", r->failure);
    json_end(w, '}');
}

/* --- answers */

void history_add_figures(const struct history *h, const struct history_reader *who, struct json_write *w)
{
    const double now_s = history_now_(h);
    json_begin(w, "figures", '[');
    for (const struct record *r = h->live; r; r = r->next) {
        if (!history_shows(who, r->principal))
            continue;
        json_begin(w, NULL, '{');
        json_text(w, "instance", r->instance);
        write_now(r, w);
        figures_number(w, "eta_s", record_eta_s_(r, now_s));
        write_seconds(w, "started", r->started_s);
        json_end(w, '}');
    }
    json_end(w, ']');
    json_begin(w, "history", '{');
    json_int(w, "newest", (long long)h->last_number);
    json_int(w, "count", (long long)h->n_finished);
    write_seconds(w, "now", now_s);
    json_end(w, '}');
}

int history_list(const struct history *h, const struct history_reader *who, uint64_t after, struct buf *out)
{
    struct json_write w = {.out = out};
    size_t room = HISTORY_LIST_MAX;
    uint64_t up_to = h->last_number;
    json_begin(&w, NULL, '{');
    json_begin(&w, "jobs", '[');
    for (const struct record *r = h->finished; r; r = r->next) {
        if (r->number <= after || !history_shows(who, r->principal))
            continue;
        if (room-- == 0) {
            up_to = r->number - 1;
            break;
        }
        json_begin(&w, NULL, '{');
        record_write_summary_(r, &w);
        json_end(&w, '}');
    }
    json_end(&w, ']');
    json_int(&w, "up_to", (long long)up_to);
    json_int(&w, "newest", (long long)h->last_number);
    json_int(&w, "oldest", (long long)(h->finished ? h->finished->number : 0));
    json_end(&w, '}');
    return w.rc;
}

int history_ended(const struct history *h, const struct history_reader *who, const char *run, struct buf *out)
{
    struct json_write w = {.out = out};
    const struct record *first = NULL, *r = h->finished ? h->finished->prev : NULL; /* the newest */
    int n = 0;
    for (; r && n < HISTORY_ENDED_MAX; r = r == h->finished ? NULL : r->prev)
        if (history_shows(who, r->principal) && (!run || strcmp(r->run, run) == 0)) {
            first = r;
            n++;
        }
    json_begin(&w, NULL, '[');
    for (r = first; r; r = r->next) {
        if (!history_shows(who, r->principal) || (run && strcmp(r->run, run) != 0))
            continue;
        json_begin(&w, NULL, '{');
        record_write_summary_(r, &w);
        json_end(&w, '}');
    }
    json_end(&w, ']');
    return w.rc < 0 ? w.rc : n;
}

int history_job(const struct history *h, const struct history_reader *who, const char *instance, struct buf *out,
                struct err *e)
{
    struct json_write w = {.out = out};
    struct record *r;
    HASH_FIND_STR(h->all, instance, r);
    if (!r || !history_shows(who, r->principal))
        return err_set(e, -ENOENT, "job '%.64s' is unknown here, or is another principal's", instance);
    record_write_(r, history_shows_all_of(who, r->principal), r->over ? 0 : history_now_(h), &w);
    return w.rc < 0 ? err_set(e, w.rc, "no memory for the answer") : 0;
}

/* --- metrics */

void history_each(const struct history *h, void (*visit)(void *arg, const struct history_figures *f), void *arg)
{
    const double now_s = history_now_(h);
    for (const struct record *r = h->live; r; r = r->next) {
        const struct history_figures f = {.run = r->run,
                                          .principal = r->principal,
                                          .state = r->state,
                                          .step = r->now.step,
                                          .total_steps = r->now.total_steps,
                                          .loss = r->now.v[CURVE_LOSS],
                                          .accuracy = r->now.v[CURVE_ACCURACY],
                                          .eval_accuracy = r->now.v[CURVE_EVAL_ACCURACY],
                                          .images_per_s = r->now.v[CURVE_RATE],
                                          .step_s = r->now.v[CURVE_STEP_MS] / 1000,
                                          .eta_s = record_eta_s_(r, now_s),
                                          .progress_age_s = r->progress_s > 0 ? now_s - r->progress_s : NAN,
                                          .world_size = r->world_size,
                                          .restarts = r->restarts,
                                          .metrics = r->now.metrics,
                                          .n_metrics = r->now.n_metrics};
        visit(arg, &f);
    }
}

size_t history_finished(const struct history *h)
{
    return h->n_finished;
}
