/* Holds the state in the layout of the round before, until the new one has it. */
#include "worker/session/former.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/session/outlive.h"
#include "worker/session/session_build.h"
#include "worker/state/holdings.h"

/* Are parameters padded for so many ranks? Then the program is of the layout, too. */
static bool is_padded(const struct session *s)
{
    return ownership_is_cut(&s->own, OWNERSHIP_PARAMS);
}

static void close_plans(struct session *s)
{
    session_close_plan(s, true);
    session_close_plan(s, false);
}

static void destroy_programs(struct program *of_stage, struct program *whole)
{
    if (of_stage != whole)
        program_destroy(of_stage);
    program_destroy(whole);
}

const struct ownership *former_held(const struct session *s)
{
    return s->nformers > 0 && !s->filled ? &s->formers[s->nformers - 1].own : &s->own;
}

bool former_can_move(const struct session *s)
{
    const struct layout *was = &former_held(s)->layout;
    bool by_rows = false; /* parts of a layer's rows: a message a row */
    for (int i = 0; i < s->program->nparams; i++)
        by_rows |= s->program->params[i].sharded && s->program->params[i].shard_dim > 0;
    return was->zero > 0 && !by_rows && (!s->device->ops->async || outlive_waits(s));
}

/* --- aside and back */

int former_put_aside(struct session *s, struct err *e)
{
    const bool padded = is_padded(s);
    assert(s->nformers < FORMERS_MOST); /* a third one would be older than what all ranks are known to have had */
    struct former *f = &s->formers[s->nformers++];
    *f = (struct former){.program = padded ? s->program : NULL,
                         .whole = padded ? s->whole : NULL,
                         .own = s->own,
                         .state = s->state,
                         .optimizer = s->optimizer,
                         .age = s->age};
    f->state.own = &f->own;
    s->own = (struct ownership){0};
    s->state = (struct state){0};
    s->optimizer.slices = NULL;
    s->optimizer.whole = NULL;
    s->optimizer.rates = NULL;
    s->filled = false;
    if (padded) {
        close_plans(s);
        s->program = s->whole = NULL;
        free(s->cuts);
        s->cuts = NULL;
        TRY(session_build_model(s, e));
    }
    TRY(session_build_ownership(s, e));
    TRY(state_divide(&s->state, &f->state, s->program, &s->own, e));
    s->state.whole = s->whole;
    return 0;
}

void former_take_back(struct session *s)
{
    struct former *f = s->nformers > 0 ? &s->formers[s->nformers - 1] : NULL;
    if (!f || s->filled)
        return;
    const uint64_t version = s->state.version;
    if (f->program)
        close_plans(s);
    state_finish_but(&s->state, &f->state);
    ownership_finish(&s->own);
    optimizer_finish(&s->optimizer);
    if (f->program) {
        destroy_programs(s->program, s->whole);
        s->program = f->program;
        s->whole = f->whole;
    }
    s->own = f->own;
    s->state = f->state;
    s->state.own = &s->own;
    s->state.version = (version > s->state.version ? version : s->state.version) + 1;
    s->optimizer = f->optimizer;
    s->age = f->age;
    s->filled = true;
    *f = (struct former){0};
    s->nformers--;
}

/* All that share memory share the same. */
static void drop(struct session *s, int i)
{
    struct former *f = &s->formers[i];
    state_finish_but(&f->state, i + 1 < s->nformers ? &s->formers[i + 1].state : &s->state);
    ownership_finish(&f->own);
    optimizer_finish(&f->optimizer);
    destroy_programs(f->program, f->whole);
    s->nformers--;
    for (int k = i; k < s->nformers; k++) {
        s->formers[k] = s->formers[k + 1];
        s->formers[k].state.own = &s->formers[k].own;
    }
}

void former_drop_all(struct session *s)
{
    while (s->nformers > 0)
        drop(s, 0);
}

/* --- settling */

static void offer(struct holdings *h, const struct former_age *age, struct state *s, const struct optimizer *o)
{
    assert(h->n < HOLDINGS_MOST);
    h->of[h->n++] = (struct holding){.made = age->made, .sure = age->sure, .state = s, .optimizer = o};
    if (age->again && h->n < HOLDINGS_MOST)
        h->of[h->n++] = (struct holding){.made = age->again, .state = s, .optimizer = o};
}

void former_list(struct session *s, bool has, struct holdings *ret)
{
    *ret = (struct holdings){.made = -1, .from = -1};
    for (int i = 0; has && i < s->nformers; i++)
        offer(ret, &s->formers[i].age, &s->formers[i].state, &s->formers[i].optimizer);
    if (has && s->filled)
        offer(ret, &s->age, &s->state, &s->optimizer);
}

/* Is it the state of that round, which somebody is sure of? Then it is nothing else any more. */
static bool keep(struct former_age *age, int64_t made)
{
    if (age->made != made && (!age->again || age->again != made))
        return false;
    *age = (struct former_age){.made = made, .sure = true};
    return true;
}

static void drop_others(struct session *s, int64_t made)
{
    for (int i = s->nformers - 1; i >= 0; i--)
        if (!keep(&s->formers[i].age, made))
            drop(s, i);
    s->filled = s->filled && keep(&s->age, made);
}

/* All ranks have it as they are to have it; who of them knows? */
static void become(struct session *s, int64_t made, bool sure)
{
    if (!sure && s->filled && s->nformers == 0)
        s->age.again = made; /* it has stayed where it was */
    else
        s->age = (struct former_age){.made = made, .sure = sure};
    s->filled = true;
}

int former_settle(struct session *s, const struct holdings *h, int64_t round, int rc, struct err *e)
{
    if (h->made >= 0)
        drop_others(s, h->made);
    if (rc != 1)
        return rc;
    if (h->moved) {
        become(s, round, false);
        TRY(s->comm->ops->barrier(s->comm, COMM_CONTROL, e));
    }
    become(s, h->moved ? round : h->made, true);
    former_drop_all(s);
    return 1;
}

void former_begin(struct session *s, int64_t round)
{
    former_drop_all(s);
    become(s, round, true);
}
