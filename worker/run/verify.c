/* Compares replicas, rolls back, and names by a replay who was wrong. */
#include "worker/run/verify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/state/replicas.h"
#include "worker/state/state.h"

#define TRIES 3 /* of a replay; each may be hit again */

struct hashes { /* of the weights, one for each step since what was kept */
    uint32_t *v;
    size_t n, cap;
};

struct verify {
    struct state *state;
    char *copy[STATE_ARENAS]; /* host memory */
    struct settled at;        /* of the copy */
    struct hashes first, again;
    int64_t until; /* of a replay, -1: this is none */
    int tries;
    bool with_sums;              /* sums of gradients are compared: those of the last step are there */
    struct replicas_hashes then; /* at `until`, the first time: this rank's */
    struct replicas_hashes *all; /* (world) everybody's */
};

struct check {                         /* one of them */
    struct replicas_hashes mine, *all; /* all: (world) */
    int differ;                        /* ERR_MISMATCH: replicas do */
    struct err text;
};

int verify_open(struct verify **ret, struct state *s, struct err *e)
{
    struct state_arena arenas[STATE_ARENAS];
    struct verify *v = calloc(1, sizeof *v);
    if (!v)
        return err_errno(e, ENOMEM, "compare replicas");
    v->state = s;
    v->until = -1;
    state_arenas(s, arenas);
    for (int i = 0; i < STATE_ARENAS; i++) {
        const size_t bytes = arenas[i].at ? state_bytes(s, arenas[i].n) : 0;
        if (bytes > 0 && !(v->copy[i] = malloc(bytes))) {
            verify_close(v);
            return err_errno(e, ENOMEM, "a copy of the state (--check-replicas)");
        }
    }
    *ret = v;
    return 0;
}

void verify_close(struct verify *v)
{
    if (!v)
        return;
    for (int i = 0; i < STATE_ARENAS; i++)
        free(v->copy[i]);
    free(v->first.v);
    free(v->again.v);
    free(v->all);
    free(v);
}

/* --- what is kept */

static int copy_state(struct verify *v, bool back, struct err *e)
{
    struct state *s = v->state;
    struct state_arena arenas[STATE_ARENAS];
    state_arenas(s, arenas);
    for (int i = 0; i < STATE_ARENAS; i++) {
        const size_t bytes = v->copy[i] ? state_bytes(s, arenas[i].n) : 0;
        if (bytes > 0 && back)
            TRY(s->device->ops->upload(s->device, arenas[i].at, v->copy[i], bytes, e));
        else if (bytes > 0)
            TRY(s->device->ops->download(s->device, v->copy[i], arenas[i].at, bytes, e));
    }
    return 0;
}

int verify_keep(struct verify *v, const struct settled *at, struct err *e)
{
    v->at = *at;
    v->until = -1;
    v->tries = 0;
    v->first.n = v->again.n = 0;
    return copy_state(v, false, e);
}

void verify_moved(struct verify *v, const struct position *at)
{
    if (v->until < 0 && v->at.at.updates == at->updates)
        v->at.at = *at;
}

static int go_back(struct verify *v, struct settled *at, struct err *e)
{
    *at = v->at;
    v->state->loss_scale = at->scale;
    v->state->version++;
    v->again.n = 0;
    return copy_state(v, true, e);
}

/* --- hashes of steps */

int verify_step(struct verify *v, struct err *e)
{
    struct hashes *h = v->until < 0 ? &v->first : &v->again;
    if (ARRAY_RESERVE(h->v, h->cap, h->n + 1) < 0)
        return err_errno(e, ENOMEM, "compare replicas");
    h->v[h->n++] = replicas_hash_params(v->state);
    return 0;
}

int64_t verify_until(const struct verify *v)
{
    return v->until;
}

/* --- who it was */

struct departure { /* from the replay */
    int64_t step;  /* of those since what was kept: before whose update; INT64_MAX: none */
    int64_t arena; /* at the end of the first run; REPLICAS_N: none */
};

/* A loss that is no number has ended the first run in the middle of a step, of which there is no hash: what there is
 * of both is compared. */
static struct departure departure(const struct verify *v, const struct replicas_hashes *now)
{
    const size_t n = v->first.n < v->again.n ? v->first.n : v->again.n;
    struct departure d = {.step = INT64_MAX, .arena = REPLICAS_N};
    for (int a = REPLICAS_PAST - 1; a >= 0; a--)
        if (memcmp(v->then.of[a], now->of[a], sizeof now->of[a]) != 0)
            d.arena = a;
    if (d.arena < REPLICAS_N)
        d.step = v->until + 1;
    for (size_t i = 0; i < n; i++)
        if (v->first.v[i] != v->again.v[i]) {
            d.step = v->at.at.updates + 1 + (int64_t)i;
            break;
        }
    return d;
}

/* How many ranks have what rank r has, of what all of them hold copies of. */
static int alike(const struct verify *v, int world, int r)
{
    int n = 0;
    for (int i = 0; i < world; i++)
        n += memcmp(&v->all[i], &v->all[r], sizeof v->all[r]) == 0;
    return n;
}

/* All ranks have left the replay at once: where most were alike, who was not? */
static bool is_odd(const struct verify *v, int world, int r)
{
    int most = 0;
    for (int i = 0; i < world; i++)
        most = alike(v, world, i) > most ? alike(v, world, i) : most;
    return 2 * most > world && alike(v, world, r) < most;
}

static void accuse(struct verify_finding *f, int r, int me, const struct departure *d)
{
    if (f->culprits++ == 0) {
        f->rank = r;
        f->step = d->step;
        f->arena = (enum replicas_arena)d->arena;
    }
    f->is_mine = f->is_mine || r == me;
}

static void find_culprits(const struct verify *v, const struct departure *all, int world, int me,
                          struct verify_finding *f)
{
    const bool by_majority = v->state->own->layout.zero == 0 && v->state->own->layout.tensor == 1;
    int64_t first = INT64_MAX;
    int n = 0;
    for (int r = 0; r < world; r++)
        first = all[r].step < first ? all[r].step : first;
    for (int r = 0; r < world && first < INT64_MAX; r++)
        n += all[r].step == first;
    for (int r = 0; r < world && n > 0; r++)
        if (n < world ? all[r].step == first : by_majority && is_odd(v, world, r))
            accuse(f, r, me, &all[r]);
    f->everyone = n == world && f->culprits == 0;
}

static int name(struct verify *v, struct comm *c, const struct replicas_hashes *now, struct verify_finding *f,
                struct err *e)
{
    const struct departure mine = departure(v, now);
    struct departure *all = calloc((size_t)c->world, sizeof *all);
    int rc = all ? c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e)
                 : err_errno(e, ENOMEM, "compare replicas");
    if (rc == 0)
        find_culprits(v, all, c->world, c->rank, f);
    free(all);
    return rc;
}

/* --- the check */

static void describe(const struct err *e, struct verify_finding *f)
{
    const char *text = strstr(e->text, "differ: ");
    snprintf(f->differs, sizeof f->differs, "%.*s", (int)sizeof f->differs - 1,
             text ? text + strlen("differ: ") : e->text);
}

/* *ret: ERR_MISMATCH, or 0. */
static int compare(struct verify *v, struct comm *c, struct check *k, struct err *e)
{
    const struct hashes *past = v->until < 0 ? &v->first : &v->again;
    TRY(replicas_hash(v->state, v->with_sums, &k->mine, e));
    k->mine.of[REPLICAS_PAST][0] = crc32c(0, past->v, past->n * sizeof *past->v);
    TRY(c->ops->all_gather(c, COMM_CONTROL, &k->mine, k->all, sizeof k->mine, NULL, e));
    k->differ = replicas_compare(&v->state->own->layout, k->all, &k->text);
    return 0;
}

/* The first run has come to its end, at *at. */
static void begin_replay(struct verify *v, const struct settled *at, struct check *k)
{
    v->until = at->at.updates;
    v->then = k->mine;
    free(v->all);
    v->all = k->all;
    k->all = NULL;
}

/* Of a replay that is as bad as what it was to mend. */
static int try_again(struct verify *v, const struct check *k, struct err *e)
{
    if (++v->tries < TRIES)
        return 0;
    return err_set(e, ERR_MISMATCH, "%s, at the end of %d replays as well: this is no bit that flips now and then",
                   k->text.text, TRIES);
}

static int judge(struct verify *v, struct comm *c, struct settled *at, enum verify_why why, struct check *k,
                 enum verify_outcome *ret, struct verify_finding *f, struct err *e)
{
    const bool replays = v->until >= 0;
    TRY(compare(v, c, k, e));
    describe(&k->text, f);
    if (k->differ < 0 || (why != VERIFY_DUE && !replays)) {
        *ret = VERIFY_BACK;
        TRY(replays ? try_again(v, k, e) : 0);
        if (!replays)
            begin_replay(v, at, k);
        return go_back(v, at, e);
    }
    *ret = replays ? VERIFY_MENDED : VERIFY_GOOD;
    TRY(replays ? name(v, c, &k->mine, f, e) : 0);
    return verify_keep(v, at, e);
}

int verify_check(struct verify *v, struct comm *c, struct settled *at, enum verify_why why, enum verify_outcome *ret,
                 struct verify_finding *f, struct err *e)
{
    struct check k = {.all = calloc((size_t)c->world, sizeof *k.all)};
    *f = (struct verify_finding){.rank = -1};
    if (!k.all)
        return err_errno(e, ENOMEM, "compare replicas");
    if (v->until < 0)
        v->with_sums = why != VERIFY_DIVERGED && at->at.updates > v->at.at.updates;
    const int rc = judge(v, c, at, why, &k, ret, f, e);
    free(k.all);
    return rc;
}
