/* Records on disk: the directory DIR/history inside the daemon's (rendezvousd/state/state_dir.h) has one file for
 * each record, with the record as JSON. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "common/json/json_write.h"
#include "rendezvousd/history/history_impl.h"
#include "rendezvousd/state/state_dir.h"

#define TURN_MS 5 /* ms of writing at a stretch: curves of many jobs take longer than a heartbeat may wait */

/* --- writing */

void store_close_home_(struct record *r)
{
    if (r->home)
        r->home->ops->close(r->home);
    r->home = NULL;
}

/* A write has landed. The file of a finished record is closed when all of it is on disk. */
static void on_landed(void *arg)
{
    struct record *r = arg;
    if (r->over && !r->home->unlogged && r->home->stands == r->home->asked)
        store_close_home_(r);
}

static void on_rewrite(void *arg)
{
    store_write_(arg);
}

static void take_home(struct record *r, struct rdzv_home *home)
{
    r->home = home;
    home->landed = on_landed;
    home->rewrite = on_rewrite;
    home->arg = r;
}

static bool begin_home(struct record *r)
{
    struct rdzv_home *home;
    if (!r->home && state_dir_home(r->history->dir, r->instance, &home, NULL) == 0)
        take_home(r, home);
    return r->home;
}

void store_write_(struct record *r)
{
    struct buf b = {.max = STATE_RECORD_MAX};
    struct json_write w = {.out = &b};
    if (!r->history->dir || !begin_home(r))
        return;
    record_write_(r, true, 0, &w);
    if (w.rc == 0)
        rdzv_home_append(r->home, &(struct rdzv_write){.decision = &b, .whole = true}, NULL);
    buf_free(&b);
    r->dirty = false;
}

void store_remove_(struct record *r)
{
    if (!r->history->dir || !begin_home(r))
        return;
    r->home->ops->forget(r->home);
    store_close_home_(r);
}

/* Write changed records for most_ms, at least one; true: all are written. */
static bool write_dirty(struct history *h, int64_t most_ms)
{
    const int64_t deadline = clock_deadline(most_ms);
    for (struct record *r = h->live; r; r = r->next) {
        if (!r->dirty)
            continue;
        store_write_(r);
        if (clock_left(deadline) == 0)
            return false;
    }
    return true;
}

static void arm(struct history *h, uint64_t ms);

/* Write some now, and the rest in later turns of the loop, between its other work. */
static void on_timer(uv_timer_t *t)
{
    struct history *h = t->data;
    h->is_armed = false;
    if (!write_dirty(h, TURN_MS))
        arm(h, 1);
}

static void arm(struct history *h, uint64_t ms)
{
    if (!h->is_armed)
        uv_timer_start(h->timer, on_timer, ms, 0);
    h->is_armed = true;
}

void store_touch_(struct record *r)
{
    if (!r->history->dir)
        return;
    r->dirty = true;
    arm(r->history, HISTORY_WRITE_MS);
}

/* --- reading */

static void load_metrics(struct job_figures *f, const cJSON *list)
{
    const cJSON *o;
    cJSON_ArrayForEach(o, list)
    {
        const char *name = json_str_or(o, "name", ""), *unit = json_str_or(o, "unit", "");
        if (f->n_metrics == JOB_METRICS_MAX || !crun_page_is_metric(name, unit))
            return;
        struct job_metric *m = &f->metrics[f->n_metrics++];
        snprintf(m->name, sizeof m->name, "%s", name);
        snprintf(m->unit, sizeof m->unit, "%s", unit);
        m->value = json_f64_or(o, "value", NAN);
    }
}

static void load_figures(struct record *r, const cJSON *o)
{
    r->now.step = json_f64_or(o, "step", NAN);
    r->now.total_steps = json_f64_or(o, "total_steps", NAN);
    for (int i = 0; i < CURVE_N; i++)
        r->now.v[i] = json_f64_or(o, curve_names[i], NAN);
    load_metrics(&r->now, cJSON_GetObjectItemCaseSensitive(o, "metrics"));
    r->started_s = json_f64_or(o, "started", 0);
    r->ended_s = json_f64_or(o, "ended", 0);
    r->round = (uint64_t)json_f64_or(o, "round", 0);
    r->nodes = json_int_or(o, "nodes", 0);
    r->min_nodes = json_int_or(o, "min_nodes", 0);
    r->max_nodes = json_int_or(o, "max_nodes", 0);
    r->world_size = json_int_or(o, "world_size", 0);
    r->restarts = json_int_or(o, "restarts", 0);
    r->max_restarts = json_int_or(o, "max_restarts", 0);
    r->exit_code = json_int_or(o, "exit_code", 0);
    r->rank = json_int_or(o, "rank", 0);
    snprintf(r->state, sizeof r->state, "%s", json_str_or(o, "state", ""));
    snprintf(r->cause, sizeof r->cause, "%s", json_str_or(o, "cause", ""));
}

/* Load lists of equal length, one for each member of a point. */
static int load_curve(struct curve *c, const cJSON *o)
{
    const cJSON *list[CURVE_N + 2];
    const cJSON *at = list[0] = cJSON_GetObjectItemCaseSensitive(o, "t");
    const int n = cJSON_GetArraySize(at);
    list[1] = cJSON_GetObjectItemCaseSensitive(o, "at_step");
    for (int i = 0; i < CURVE_N; i++)
        list[i + 2] = cJSON_GetObjectItemCaseSensitive(o, curve_names[i]);
    for (int i = 0; i < CURVE_N + 2; i++) {
        if (!cJSON_IsArray(list[i]) || cJSON_GetArraySize(list[i]) != n || n > CURVE_MAX)
            return ERR_CORRUPT;
        list[i] = list[i]->child;
    }
    if (n > 0 && !(c->v = calloc((size_t)n, sizeof *c->v)))
        return -ENOMEM;
    c->n = c->cap = (uint32_t)n;
    for (int k = 0; k < n; k++) {
        c->v[k].t_s = (float)list[0]->valuedouble;
        c->v[k].step = (uint32_t)list[1]->valuedouble;
        for (int i = 0; i < CURVE_N + 2; i++) {
            if (i >= 2)
                c->v[k].v[i - 2] = cJSON_IsNumber(list[i]) ? (float)list[i]->valuedouble : NAN;
            list[i] = list[i]->next;
        }
    }
    return 0;
}

static int load_marks(struct record *r, const cJSON *list)
{
    const cJSON *o;
    if (cJSON_GetArraySize(list) == 0)
        return 0;
    if (!(r->marks = calloc(HISTORY_MARKS, sizeof *r->marks)))
        return -ENOMEM;
    cJSON_ArrayForEach(o, list)
    {
        struct mark *m = &r->marks[r->mark_count++ % HISTORY_MARKS];
        *m = (struct mark){.t_s = (float)json_f64_or(o, "t", 0),
                           .step = (uint32_t)json_f64_or(o, "step", 0),
                           .round = (uint64_t)json_f64_or(o, "round", 0),
                           .rank = json_int_or(o, "rank", 0),
                           .exit_code = json_int_or(o, "exit_code", 0)};
        snprintf(m->why, sizeof m->why, "%s", json_str_or(o, "why", ""));
    }
    return 0;
}

static int load_private(struct record *r, const cJSON *o)
{
    const cJSON *failure = cJSON_GetObjectItemCaseSensitive(o, "failure");
    const char *logs = json_str_or(o, "logs", "");
    if (cJSON_IsObject(failure) && !(r->failure = cJSON_PrintUnformatted(failure)))
        return -ENOMEM;
    return !logs[0] || (r->logs = strdup(logs)) ? 0 : -ENOMEM;
}

static bool is_known(const struct history *h, const char *instance)
{
    const struct record *r;
    HASH_FIND_STR(h->all, instance, r);
    return r != NULL;
}

static int load_record(struct history *h, const cJSON *o, struct record **ret)
{
    const char *instance = json_str_or(o, "instance", "");
    if (strlen(instance) != LEADER_INSTANCE_LEN || is_known(h, instance))
        return ERR_CORRUPT;
    struct record *r = *ret = record_new_(h, instance, json_str_or(o, "run", ""), json_str_or(o, "principal", ""));
    if (!r)
        return -ENOMEM;
    load_figures(r, o);
    const int rc = load_curve(&r->curve, cJSON_GetObjectItemCaseSensitive(o, "curve"));
    r->curve.stride = (uint32_t)json_f64_or(o, "stride", 1);
    r->curve.in_last = (uint32_t)json_f64_or(o, "in_last", 1);
    if (rc < 0 || load_marks(r, cJSON_GetObjectItemCaseSensitive(o, "marks")) < 0)
        return rc < 0 ? rc : -ENOMEM;
    return load_private(r, o);
}

/* Finished ones keep their order. */
static void load_finished(struct record *r, uint64_t number)
{
    struct history *h = r->history;
    struct record *before = h->finished ? h->finished->prev : NULL; /* the last */
    while (before && before->number > number)
        before = before == h->finished ? NULL : before->prev;
    DL_DELETE(h->live, r);
    r->over = true;
    r->number = number;
    if (before)
        DL_APPEND_ELEM(h->finished, before, r);
    else
        DL_PREPEND(h->finished, r);
    h->n_finished++;
    h->last_number = number > h->last_number ? number : h->last_number;
}

static int load_text(struct history *h, const struct buf *text, struct record **ret, struct err *e)
{
    cJSON *o = cJSON_ParseWithLength(text->len ? text->data : "", text->len);
    const int rc = load_record(h, o, ret);
    if (rc == 0 && json_f64_or(o, "number", 0) >= 1)
        load_finished(*ret, (uint64_t)json_f64_or(o, "number", 0));
    cJSON_Delete(o);
    return rc < 0 ? err_set(e, rc, "it holds no record of a job") : 0;
}

/* Load a file. If it is cut off within its only record, remove it. */
static int load(void *arg, struct rdzv_home *home, struct err *e)
{
    struct buf text = {.max = STATE_RECORD_MAX};
    struct record *r = NULL;
    int rc = home->ops->load(home, &text, e);
    if (rc == 0 && text.len > 0)
        rc = load_text(arg, &text, &r, e);
    buf_free(&text);
    if (rc < 0) {
        if (r)
            record_free_(r);
        return rc; /* the home does not belong to us then */
    }
    if (!r)
        home->ops->forget(home);
    if (!r || r->over) {
        home->ops->close(home);
    } else { /* until jobs_load() speaks of it: history_settle() */
        take_home(r, home);
        r->state[0] = 0;
    }
    return 0;
}

/* --- life */

int store_open_(struct history *h, struct err *e)
{
    if (!(h->timer = calloc(1, sizeof *h->timer)))
        return err_set(e, -ENOMEM, "no memory for the history of jobs");
    uv_timer_init(h->o.loop, h->timer);
    h->timer->data = h;
    TRY(state_dir_open_within(&h->dir, h->o.dir, "history", e));
    TRY(state_dir_each(h->dir, load, h, e));
    while (h->n_finished > h->o.max_jobs) {
        store_remove_(h->finished);
        record_free_(h->finished);
    }
    return 0;
}

static void on_timer_closed(uv_handle_t *t)
{
    free(t);
}

void store_close_(struct history *h)
{
    if (h->dir) {
        write_dirty(h, INT32_MAX);
        for (struct record *r = h->all; r; r = r->hh.next) {
            if (r->home && r->home->unlogged) /* there may be room now */
                store_write_(r);
            store_close_home_(r);
        }
    }
    if (h->timer)
        uv_close((uv_handle_t *)h->timer, on_timer_closed);
    state_dir_close(h->dir);
    h->dir = NULL;
}
