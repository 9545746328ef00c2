#include "worker/session/former.h"

#include <stddef.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
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

const struct ownership *former_held(const struct session *s)
{
    return s->nformers > 0 && !s->filled ? &s->formers[s->nformers - 1].own : &s->own;
}

bool former_can_move(const struct session *s, const struct layout *now)
{
    const struct layout *was = &former_held(s)->layout;
    return was->zero > 0 && was->stages == 1 && was->tensor == 1 && now->stages == 1 && now->tensor == 1 &&
           !s->device->ops->async;
}

/* --- aside and back */

int former_put_aside(struct session *s, struct err *e)
{
    const bool padded = is_padded(s);
    struct former *f = &s->formers[s->nformers++];
    *f = (struct former){.program = padded ? s->program : NULL,
                         .own = s->own,
                         .state = s->state,
                         .optimizer = s->optimizer,
                         .made = s->made,
                         .sure = s->sure};
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
        program_destroy(s->program);
        s->program = s->whole = f->program;
    }
    s->own = f->own;
    s->state = f->state;
    s->state.own = &s->own;
    s->state.version = (version > s->state.version ? version : s->state.version) + 1;
    s->optimizer = f->optimizer;
    s->made = f->made;
    s->sure = f->sure;
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
    program_destroy(f->program);
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

void former_list(struct session *s, bool has, struct holdings *ret)
{
    *ret = (struct holdings){.made = -1, .from = -1};
    for (int i = 0; has && i < s->nformers; i++) {
        struct former *f = &s->formers[i];
        ret->of[ret->n++] =
            (struct holding){.made = f->made, .sure = f->sure, .state = &f->state, .optimizer = &f->optimizer};
    }
    if (has && s->filled)
        ret->of[ret->n++] =
            (struct holding){.made = s->made, .sure = s->sure, .state = &s->state, .optimizer = &s->optimizer};
}

static void drop_others(struct session *s, int64_t made)
{
    for (int i = s->nformers - 1; i >= 0; i--)
        if (s->formers[i].made != made)
            drop(s, i);
    s->filled = s->filled && s->made == made;
}

static void become(struct session *s, int64_t made, bool sure)
{
    s->filled = true;
    s->made = made;
    s->sure = sure;
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
