/* Decides when to ask NCCL's RAS, and which ranks its answers name (witness.h). */
#include "launcher/witness/witness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

static void set_state(struct witness *w, enum witness_state s)
{
    static const char *const names[] = {WITNESS_STATES(CHOICE_NAME)};
    if (s != w->state)
        log_debug("witness", "%s -> %s", names[w->state], names[s]);
    w->state = s;
}

void witness_init(struct witness *w, int64_t quiet_ns)
{
    *w = (struct witness){.quiet_ns = quiet_ns};
}

int witness_begin_round(struct witness *w, int64_t now, int world)
{
    witness_end_round(w);
    *w =
        (struct witness){.quiet_ns = w->quiet_ns, .pause_ns = w->quiet_ns, .world = world, .due_ns = now + w->quiet_ns};
    w->verdict.late = calloc((size_t)world, sizeof *w->verdict.late);
    return w->verdict.late ? 0 : -ENOMEM;
}

void witness_end_round(struct witness *w)
{
    ras_answer_free(&w->first);
    free(w->verdict.late);
    w->verdict = (struct ras_verdict){0};
    w->world = 0;
    w->state = WITNESS_WATCHING;
}

bool witness_names(const struct witness *w, int rank)
{
    return w->state == WITNESS_NAMED && rank >= 0 && rank < w->world && w->verdict.late[rank];
}

static enum witness_act watch(struct witness *w, int64_t now, int64_t pause, enum witness_act act)
{
    w->pause_ns = pause;
    w->due_ns = now + pause;
    set_state(w, WITNESS_WATCHING);
    return act;
}

static enum witness_act ask(struct witness *w, int64_t now, enum witness_state s)
{
    w->asked_ns = now;
    set_state(w, s);
    return WITNESS_ASK;
}

/* The last sign of life of all ranks that are late. */
static int64_t last_sign(const struct witness *w, const int64_t *lived)
{
    int64_t last = 0;
    for (int r = 0; r < w->world; r++)
        if (w->verdict.late[r] && lived[r] > last)
            last = lived[r];
    return last;
}

enum witness_act witness_look(struct witness *w, int64_t now, int64_t active, const int64_t *lived)
{
    const bool quiet = now - active >= w->quiet_ns;
    switch (w->state) {
    case WITNESS_WATCHING:
        if (!quiet && w->pause_ns > w->quiet_ns)
            return watch(w, active, w->quiet_ns, WITNESS_NOTHING);
        return quiet && now >= w->due_ns ? ask(w, now, WITNESS_ASKED) : WITNESS_NOTHING;
    case WITNESS_BETWEEN:
        if (!quiet)
            return watch(w, active, w->quiet_ns, WITNESS_NOTHING);
        return now - w->asked_ns >= w->quiet_ns / WITNESS_AGAIN ? ask(w, now, WITNESS_ASKED_AGAIN) : WITNESS_NOTHING;
    case WITNESS_NAMED:
        return last_sign(w, lived) > w->named_ns ? watch(w, now, w->quiet_ns, WITNESS_FREE) : WITNESS_NOTHING;
    case WITNESS_ASKED:
    case WITNESS_ASKED_AGAIN:
    case WITNESS_MUTE:
        break;
    }
    return WITNESS_NOTHING;
}

static bool differs(enum ras_finding f)
{
    return f != RAS_KNOWS_NOTHING && f != RAS_ALIKE;
}

/* Must the late ranks be without signs of life? Not if types differ: then ranks wait however busy all of them are. */
static bool needs_silence(enum ras_finding f)
{
    return f != RAS_OTHER_CALLS;
}

static enum witness_act conclude(struct witness *w, int64_t now, bool still, const int64_t *lived)
{
    const enum ras_finding f = w->verdict.finding;
    if (w->state == WITNESS_ASKED && differs(f)) {
        set_state(w, WITNESS_BETWEEN);
        return WITNESS_NOTHING;
    }
    if (w->state == WITNESS_ASKED) {
        const int64_t longer = 2 * w->pause_ns, most = WITNESS_SELDOM * w->quiet_ns;
        return watch(w, now, !still ? w->quiet_ns : longer < most ? longer : most, WITNESS_NOTHING);
    }
    if (!still || !differs(f))
        return watch(w, now, w->quiet_ns, WITNESS_NOTHING);
    if (needs_silence(f) && now - last_sign(w, lived) < w->quiet_ns)
        return watch(w, now, w->quiet_ns, WITNESS_BUSY);
    w->named_ns = now;
    set_state(w, WITNESS_NAMED);
    return WITNESS_NAME;
}

enum witness_act witness_hear(struct witness *w, int64_t now, struct ras_answer *a, const int64_t *lived)
{
    if (w->state != WITNESS_ASKED && w->state != WITNESS_ASKED_AGAIN) {
        ras_answer_free(a);
        return WITNESS_NOTHING;
    }
    if (a->version < RAS_LEAST_VERSION) {
        ras_answer_free(a);
        witness_miss(w, now, true);
        return WITNESS_NOTHING;
    }
    const bool still = w->first.n_comms > 0 && ras_stands_still(&w->first, a);
    ras_answer_free(&w->first);
    w->first = *a;
    ras_judge(&w->first, w->world, &w->verdict);
    return conclude(w, now, still, lived);
}

void witness_miss(struct witness *w, int64_t now, bool too_old)
{
    watch(w, now, w->quiet_ns, WITNESS_NOTHING);
    if (too_old)
        set_state(w, WITNESS_MUTE);
}
