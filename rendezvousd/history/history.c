/* The life of records, and what they take from jobs. See history.h. */
#include "rendezvousd/history/history.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/json/json.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/history/history_impl.h"
#include "rendezvousd/jobs/jobs_watch.h"

#define PATH_MAX_BYTES 1024

static double system_wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double history_now_(const struct history *h)
{
    return h->o.wall();
}

/* --- records */

void job_figures_clear_(struct job_figures *f)
{
    f->step = f->total_steps = NAN;
    for (int i = 0; i < CURVE_N; i++)
        f->v[i] = NAN;
}

struct record *record_new_(struct history *h, const char *instance, const char *run, const char *principal)
{
    struct record *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->history = h;
    r->rank = -1;
    snprintf(r->instance, sizeof r->instance, "%s", instance);
    job_figures_clear_(&r->now);
    r->run = strdup(run);
    r->principal = strdup(principal);
    if (r->run && r->principal)
        HASH_ADD_STR(h->all, instance, r);
    if (!r->hh.tbl) {
        free(r->run);
        free(r->principal);
        free(r);
        return NULL;
    }
    DL_PREPEND(h->live, r);
    return r;
}

void record_free_nodes_(struct record *r)
{
    struct node_figures *f, *next;
    HASH_ITER (hh, r->reports, f, next) {
        HASH_DEL(r->reports, f);
        node_figures_free(f);
        free(f);
    }
}

void record_free_(struct record *r)
{
    struct history *h = r->history;
    HASH_DEL(h->all, r);
    if (r->number) {
        DL_DELETE(h->finished, r);
        h->n_finished--;
    } else {
        DL_DELETE(h->live, r);
    }
    store_close_home_(r);
    record_free_nodes_(r);
    curve_free(&r->curve);
    free(r->marks);
    free(r->failure);
    free(r->logs);
    free(r->run);
    free(r->principal);
    free(r);
}

static struct record *find(const struct history *h, const char *instance)
{
    struct record *r;
    HASH_FIND_STR(h->all, instance, r);
    return r;
}

static void shrink_marks(struct record *r)
{
    struct mark *m = r->marks && r->mark_count < HISTORY_MARKS ? realloc(r->marks, r->mark_count * sizeof *m) : NULL;
    r->marks = m ? m : r->marks;
}

void record_finish_(struct record *r)
{
    struct history *h = r->history;
    DL_DELETE(h->live, r);
    r->over = true;
    r->number = ++h->last_number;
    r->ended_s = r->ended_s > 0 ? r->ended_s : history_now_(h);
    record_free_nodes_(r);
    curve_end(&r->curve);
    DL_APPEND(h->finished, r);
    h->n_finished++;
    shrink_marks(r);
    store_write_(r);
    while (h->n_finished > h->o.max_jobs) {
        struct record *oldest = h->finished;
        store_remove_(oldest);
        record_free_(oldest);
    }
}

/* --- what becomes of a job */

static float seconds_of(const struct record *r)
{
    const float t = (float)(history_now_(r->history) - r->started_s);
    const float last = r->curve.n ? r->curve.v[r->curve.n - 1].t_s : 0;
    return t > last ? t : last; /* the wall clock may go back */
}

static void add_mark(struct record *r, uint64_t round, int rank, int exit_code, const char *why)
{
    if (!r->marks && !(r->marks = calloc(HISTORY_MARKS, sizeof *r->marks)))
        return;
    struct mark *m = &r->marks[r->mark_count++ % HISTORY_MARKS];
    *m = (struct mark){.t_s = seconds_of(r), .round = round, .rank = rank, .exit_code = exit_code};
    m->step = isfinite(r->now.step) ? (uint32_t)r->now.step : 0;
    utf8_copy(m->why, sizeof m->why, why);
    utf8_clean(m->why);
}

static void note_round(struct record *r, const struct jobs_facts *f)
{
    char why[64];
    if (f->restarts > r->restarts && f->restart)
        add_mark(r, f->restart->round, f->restart->cause.rank, f->restart->cause.exit_code, f->restart->cause.text);
    else if (f->round > r->round && r->round > 0 && f->restarts == r->restarts && f->world_size != r->world_size) {
        snprintf(why, sizeof why, "%d ranks instead of %d", f->world_size, r->world_size);
        add_mark(r, r->round, -1, 0, why);
    }
}

static void take_facts(struct record *r, const struct jobs_facts *f)
{
    note_round(r, f);
    if (f->round != r->round) /* nodes that are not in the round any more are ignored */
        record_free_nodes_(r);
    snprintf(r->state, sizeof r->state, "%s", f->state);
    r->round = f->round;
    r->nodes = f->nodes;
    r->min_nodes = f->min_nodes;
    r->max_nodes = f->max_nodes;
    r->world_size = f->world_size ? f->world_size : r->world_size;
    r->restarts = f->restarts;
    r->max_restarts = f->max_restarts;
    if (!f->over)
        return;
    r->exit_code = f->exit_code;
    r->rank = f->cause ? f->cause->rank : -1;
    snprintf(r->cause, sizeof r->cause, "%s", f->cause ? f->cause->text : "");
    utf8_clean(r->cause);
}

static void on_changed(void *arg, const struct jobs_facts *f)
{
    struct history *h = arg;
    struct record *r = find(h, f->instance);
    if (r ? r->over : f->over) /* known to be over; or it was over, and forgotten, before this daemon began */
        return;
    if (!r && !(r = record_new_(h, f->instance, f->run, f->principal)))
        return;
    if (r->started_s <= 0)
        r->started_s = history_now_(h) - (double)f->age_ms / 1000;
    take_facts(r, f);
    if (f->over)
        record_finish_(r);
    else
        store_touch_(r);
}

/* --- what nodes tell */

static struct node_figures *node_of(struct record *r, const char *node)
{
    struct node_figures *f;
    HASH_FIND_STR(r->reports, node, f);
    if (f || !(f = calloc(1, sizeof *f)))
        return f;
    f->base = -1;
    if ((f->node = strdup(node)))
        HASH_ADD_KEYPTR(hh, r->reports, f->node, strlen(f->node), f);
    if (f->hh.tbl)
        return f;
    node_figures_free(f);
    free(f);
    return NULL;
}

static void take_if_reported(double *to, const char *fields, size_t n, const char *key)
{
    const double v = node_figures_number(fields, n, key);
    *to = isfinite(v) ? v : *to;
}

static double slowest(const struct record *r)
{
    float most = NAN;
    for (const struct node_figures *f = r->reports; f; f = f->hh.next)
        most = fmaxf(most, node_figures_slowest(f));
    return (double)most;
}

static void take_logs(struct record *r, const char *fields, size_t n)
{
    char path[PATH_MAX_BYTES];
    if (rdzv_field_find(fields, n, "logs", path, sizeof path) != 1 || (r->logs && strcmp(r->logs, path) == 0))
        return;
    free(r->logs);
    r->logs = strdup(path);
}

/* Take the job's progress, which the node of rank 0 reports. */
static void take_job(struct record *r, const char *fields, size_t n)
{
    const double before = r->now.step;
    take_if_reported(&r->now.step, fields, n, "step");
    take_if_reported(&r->now.total_steps, fields, n, "total_steps");
    for (int i = 0; i < CURVE_N; i++)
        if (i != CURVE_STEP_MS)
            take_if_reported(&r->now.v[i], fields, n, curve_names[i]);
    r->now.v[CURVE_STEP_MS] = slowest(r);
    struct job_metric metrics[JOB_METRICS_MAX];
    const int named = job_metrics_read(fields, n, metrics);
    if (named > 0) {
        memcpy(r->now.metrics, metrics, sizeof metrics);
        r->now.n_metrics = named;
    }
    if (!(r->now.step >= 0) || r->now.step >= UINT32_MAX || r->now.step == before)
        return;
    r->progress_s = history_now_(r->history);
    struct curve_point p = {.t_s = seconds_of(r), .step = (uint32_t)r->now.step};
    for (int i = 0; i < CURVE_N; i++)
        p.v[i] = (float)r->now.v[i];
    curve_add(&r->curve, &p);
    store_touch_(r);
}

static void on_reported(void *arg, const char *instance, const char *node, const char *fields, size_t n)
{
    struct history *h = arg;
    struct record *r = find(h, instance);
    struct node_figures *f = r && !r->over ? node_of(r, node) : NULL;
    if (!f || node_figures_take(f, fields, n) < 0)
        return;
    f->at_s = history_now_(h);
    take_logs(r, fields, n);
    if (f->base == 0 || (f->base < 0 && isfinite(node_figures_number(fields, n, "step"))))
        take_job(r, fields, n);
}

/* Keep the failure report, if it is JSON, and the first one. */
static void on_failed(void *arg, const char *instance, const char *text, size_t n)
{
    struct record *r = find(arg, instance);
    cJSON *tree = r && r->over && !r->failure ? cJSON_ParseWithLength(text, n) : NULL;
    if (cJSON_IsObject(tree) && json_clean(tree, NULL) == 0 && (r->failure = cJSON_PrintUnformatted(tree)))
        store_write_(r);
    cJSON_Delete(tree);
}

void history_watcher(struct history *h, struct jobs_watcher *ret)
{
    *ret = (struct jobs_watcher){.changed = on_changed, .reported = on_reported, .failed = on_failed, .arg = h};
}

/* --- jobs that nobody speaks of any more */

static void end_unheard(struct record *r)
{
    if (r->round == 0) {
        store_remove_(r);
        record_free_(r);
        return;
    }
    snprintf(r->state, sizeof r->state, "lost");
    snprintf(r->cause, sizeof r->cause, "the rendezvous has no news of its end");
    r->exit_code = -1;
    record_finish_(r);
}

void history_settle(struct history *h)
{
    struct record *r, *next;
    DL_FOREACH_SAFE(h->live, r, next)
    if (!r->state[0]) /* nothing was reported */
        end_unheard(r);
}

void history_forget_run(struct history *h, const char *principal, const char *run)
{
    struct record *r, *next;
    DL_FOREACH_SAFE(h->live, r, next)
    if (strcmp(r->run, run) == 0 && strcmp(r->principal, principal) == 0)
        end_unheard(r);
}

/* --- life */

int history_open(struct history **ret, const struct history_options *o, struct err *e)
{
    struct history *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for the history of jobs");
    h->o = *o;
    h->o.wall = o->wall ? o->wall : system_wall;
    const int rc = o->dir ? store_open_(h, e) : 0;
    if (rc < 0) {
        history_close(h);
        return rc;
    }
    *ret = h;
    return 0;
}

void history_close(struct history *h)
{
    if (!h)
        return;
    store_close_(h);
    while (h->all)
        record_free_(h->all);
    free(h);
}
