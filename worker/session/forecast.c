/* Builds the session of a run over address space, to count what it would take. */
#include "worker/session/forecast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/data/sets/dataset.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/session/memory_slot.h"
#include "worker/session/outlive.h"
#include "worker/session/session_build.h"
#include "worker/session/session_layout.h"

struct forecast_base {
    int world, local_world;
    struct session first; /* has data sets and device for all */
};

/* One of its forecasts. */
struct opened {
    const struct train_config *cfg;
    struct forecast_base *base;
    const struct forecast_visit *visit;
};

/* Nothing is called over it. */
static void stand_in_for_group(struct session *s)
{
    const struct layout_ranks g = layout_group(&s->layout, LAYOUT_TENSOR, s->rank);
    s->group = (struct plan_group){.on_host = true, .ranks = g.count, .index = g.index};
}

static void begin(struct session *s, const struct opened *o, int rank)
{
    struct forecast_base *b = o->base;
    session_begin(s, o->cfg, rank, b->local_world, (b->world + b->local_world - 1) / b->local_world);
    s->train_set = b->first.train_set;
    s->test_set = b->first.test_set;
    s->device = b->first.device;
}

static void end(struct session *s)
{
    session_close_plan(s, true);
    session_close_plan(s, false);
    s->train_set = s->test_set = NULL; /* the first one's */
    s->device = NULL;
    session_close(s);
}

static int count_copies(struct session *s, struct err *e)
{
    bool keeps;
    TRY(outlive_keeps(s, s->rank % s->local_world, &keeps, e));
    return keeps ? memory_slot_need(&s->state, &s->kept, e) : 0;
}

/* like: a rank with the same program and the same share of a batch, whose plans are known; NULL: none is. */
static int look_at(struct session *s, const struct opened *o, const struct forecast_rank *like,
                   struct forecast_rank *ret, struct err *e)
{
    const struct state_options state = session_state(s);
    TRY(session_build_ownership(s, e));
    TRY(state_forecast(&s->state, s->device, s->program, &s->own, &state, e));
    TRY(count_copies(s, e));
    stand_in_for_group(s);
    if (!like && !s->cfg->evaluate)
        TRY(session_open_plan(s, true, true, e));
    if (!like && s->test_set)
        TRY(session_open_plan(s, false, true, e));
    ret->place = layout_place(&s->layout, s->rank);
    memory_report(s, &ret->memory);
    ret->memory.resident_peak = ret->memory.device_peak = 0;
    traffic_of_step(s, &ret->traffic);
    if (like) {
        ret->memory.gathered = like->memory.gathered;
        ret->traffic.parameters = like->traffic.parameters;
        ret->traffic.stages = like->traffic.stages;
        ret->memory.activations = like->memory.activations;
        ret->memory.weights = like->memory.weights;
        ret->memory.workspace = like->memory.workspace;
    }
    return !like && o->visit ? o->visit->rank(o->visit->ctx, s, e) : 0;
}

/* Ranks of one stage and one place in the tensor group have the same program; shares of a batch are equal but for the
 * sampler that gives each host records of its own. */
static const struct forecast_rank *find_like(const struct forecast *f, int rank, const size_t *parts)
{
    const struct layout_place at = layout_place(&f->layout, rank);
    for (int r = 0; r < rank; r++)
        if (f->ranks[r].place.tensor == at.tensor && f->ranks[r].place.stage == at.stage && parts[r] == parts[rank])
            return &f->ranks[r];
    return NULL;
}

static int one_rank(struct forecast *f, const struct opened *o, int rank, size_t *parts, struct err *e)
{
    struct session s;
    begin(&s, o, rank);
    s.layout = f->layout;
    s.batch = layout_group(&s.layout, LAYOUT_BATCH, rank);
    s.pipeline = train_config_pipeline(o->cfg);
    int rc = session_build_model(&s, e);
    if (rc == 0)
        rc = session_resolve_precision(&s, e);
    if (rc == 0) {
        parts[rank] = session_part(&s, true);
        rc = look_at(&s, o, find_like(f, rank, parts), &f->ranks[rank], e);
    }
    end(&s);
    return rc;
}

static int all_ranks(struct forecast *f, const struct opened *o, struct err *e)
{
    const int n = layout_members(&f->layout);
    size_t *parts = calloc((size_t)n, sizeof *parts);
    int rc = 0;
    f->ranks = calloc((size_t)n, sizeof *f->ranks);
    if (!f->ranks || !parts)
        rc = err_errno(e, ENOMEM, "a forecast of %d ranks", n);
    for (int rank = 0; rank < n && rc == 0; rank++)
        rc = one_rank(f, o, rank, parts, e);
    free(parts);
    return rc;
}

static int describe_stages(struct forecast *f, const struct session *s, struct err *e)
{
    char text[STAGE_TEXT_MAX];
    struct buf all = {0};
    int rc = buf_addstr(&all, "");
    for (int i = 0; i < s->layout.stages && s->layout.stages > 1 && rc == 0; i++)
        rc = buf_printf(&all, "stage %d: %s\n", i, session_stage_text(s, i, text, sizeof text));
    f->stages = all.data;
    return rc < 0 ? err_errno(e, ENOMEM, "names of stages") : 0;
}

static void describe(struct forecast *f, struct session *s)
{
    const struct sampler order = session_order(s, true);
    f->layout = s->layout;
    f->classes = session_labels(s);
    f->part = (int)session_part(s, true);
    f->parts = sampler_parts(&order);
    f->steps = sampler_steps(&order);
    f->images = s->train_set->n;
    s->device->ops->describe(s->device, f->device, sizeof f->device);
    session_describe_precision(s);
    snprintf(f->precision, sizeof f->precision, "%s", s->precision_text);
}

/* A rank's part of a split parameter counts as the whole. */
static size_t count_parameters(const struct program *p)
{
    size_t n = 0;
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        size_t count = 1;
        for (int d = 0; d < q->ndim; d++)
            count *= (size_t)param_whole_size(q, d);
        n += q->role == PARAM_TRAIN ? count : 0;
    }
    return n;
}

static int open_first(struct forecast_base *b, const struct train_config *cfg, struct err *e)
{
    struct session *s = &b->first;
    struct gpu_choice choice = {.list = cfg->gpus};
    session_begin(s, cfg, 0, b->local_world, (b->world + b->local_world - 1) / b->local_world);
    s->leads = true; /* it says what is odd about the data */
    s->looks_only = true;
    TRY(session_open_data(s, e));
    s->leads = false;
    TRY(session_open_device(s, &choice, e));
    return session_resolve_precision(s, e);
}

int forecast_open(struct forecast_base **ret, const struct train_config *cfg, int world, int local_world, struct err *e)
{
    struct forecast_base *b = calloc(1, sizeof *b);
    if (!b)
        return err_errno(e, ENOMEM, "a forecast");
    b->world = world;
    b->local_world = local_world;
    int rc = open_first(b, cfg, e);
    if (rc < 0)
        forecast_close(b);
    else
        *ret = b;
    return rc;
}

void forecast_close(struct forecast_base *b)
{
    if (!b)
        return;
    session_close(&b->first);
    free(b);
}

const struct session *forecast_session(const struct forecast_base *b)
{
    return &b->first;
}

/* What is so for all ranks. */
static int overview(struct forecast *f, const struct opened *o, struct err *e)
{
    struct session s;
    begin(&s, o, 0);
    int rc = session_open_layout(&s, o->base->world, e);
    s.leads &= !o->visit; /* who looks at many says it himself */
    rc = rc == 0 ? session_build_model(&s, e) : rc;
    rc = rc == 0 ? session_resolve_precision(&s, e) : rc;
    if (rc == 0) {
        struct sampler order = session_order(&s, true);
        rc = sampler_check(&order, e);
    }
    if (rc == 0) {
        describe(f, &s);
        f->parameters = count_parameters(s.whole);
        rc = describe_stages(f, &s, e);
    }
    end(&s);
    return rc;
}

int forecast_on(struct forecast *ret, struct forecast_base *b, const struct train_config *cfg,
                const struct forecast_visit *visit, struct err *e)
{
    const struct opened o = {cfg, b, visit};
    *ret = (struct forecast){0};
    int rc = overview(ret, &o, e);
    rc = rc == 0 ? all_ranks(ret, &o, e) : rc;
    if (rc < 0)
        forecast_free(ret);
    return rc;
}

int forecast_make(struct forecast *ret, const struct train_config *cfg, int world, int local_world, struct err *e)
{
    struct forecast_base *b;
    TRY(forecast_open(&b, cfg, world, local_world, e));
    int rc = forecast_on(ret, b, cfg, NULL, e);
    forecast_close(b);
    return rc;
}

void forecast_free(struct forecast *f)
{
    free(f->ranks);
    free(f->stages);
    *f = (struct forecast){0};
}
