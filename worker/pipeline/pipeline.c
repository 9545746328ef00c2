/* Computes the order in which a stage runs forward and backward parts. */
#include "worker/pipeline/pipeline.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/numbers.h"

int pipeline_check(const struct pipeline *p, struct err *e)
{
    if (p->stages < 1 || p->micro_batches < 1 || p->chunks < 1)
        return err_set(e, ERR_USAGE, "a pipeline of %d stages of %d chunks, %d micro-batches: expected at least 1",
                       p->stages, p->chunks, p->micro_batches);
    if (p->kind != PIPELINE_INTERLEAVED && p->chunks > 1)
        return err_set(e, ERR_USAGE, "%d chunks a stage: only --schedule interleaved takes more than 1", p->chunks);
    if (p->kind == PIPELINE_INTERLEAVED && p->stages < 2)
        return err_set(e, ERR_USAGE, "--schedule interleaved with 1 stage: expected at least 2");
    if (p->kind == PIPELINE_INTERLEAVED && p->micro_batches % p->stages)
        return err_set(e, ERR_USAGE,
                       "--schedule interleaved with %d micro-batches: expected a multiple of the %d stages "
                       "(--microbatches)",
                       p->micro_batches, p->stages);
    return 0;
}

int pipeline_actions(const struct pipeline *p)
{
    return 2 * p->micro_batches * p->chunks;
}

int pipeline_part(const struct pipeline *p, int stage, int chunk)
{
    return chunk * p->stages + stage;
}

/* Forward passes of a stage before its first pair of a forward and a backward pass. */
static int warm_up(const struct pipeline *p, int stage)
{
    const int all = p->micro_batches * p->chunks, behind = p->stages - stage - 1;
    switch (p->kind) {
    case PIPELINE_GPIPE:
        return all;
    case PIPELINE_1F1B:
        return min_int(behind, all);
    case PIPELINE_INTERLEAVED:
        break;
    }
    return min_int(2 * behind + (p->chunks - 1) * p->stages, all);
}

/* The k-th forward, or backward, pass of every stage: groups of `stages` micro-batches go through one chunk after the
 * other. With one chunk that is the k-th micro-batch. */
static struct pipeline_action pass(const struct pipeline *p, bool backward, int k)
{
    const int round = p->stages * p->chunks, chunk = k % round / p->stages;
    if (p->chunks == 1)
        return (struct pipeline_action){.backward = backward, .micro_batch = k};
    return (struct pipeline_action){.backward = backward,
                                    .chunk = backward ? p->chunks - 1 - chunk : chunk,
                                    .micro_batch = k / round * p->stages + k % p->stages};
}

/* The stage of a part; -1: there is no such part. */
static int stage_of(const struct pipeline *p, int part)
{
    return part < 0 || part >= p->stages * p->chunks ? -1 : part % p->stages;
}

struct pipeline_action pipeline_action(const struct pipeline *p, int stage, int i)
{
    const int warm = warm_up(p, stage), pairs = p->micro_batches * p->chunks - warm, k = i - warm;
    struct pipeline_action a;
    assert(i >= 0 && i < pipeline_actions(p));
    if (k < 0)
        a = pass(p, false, i);
    else if (k < 2 * pairs)
        a = pass(p, k % 2, k % 2 ? k / 2 : warm + k / 2);
    else
        a = pass(p, true, k - pairs);
    const int part = pipeline_part(p, stage, a.chunk), ahead = a.backward ? -1 : 1;
    a.from = stage_of(p, part - ahead);
    a.to = stage_of(p, part + ahead);
    if (a.backward && part <= p->trains_from)
        a.to = -1;
    if (a.backward && part < p->trains_from)
        a.from = -1;
    return a;
}

int pipeline_live(const struct pipeline *p, int stage, int chunk)
{
    int live = 0, most = 0;
    for (int i = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, stage, i);
        if (a.chunk != chunk)
            continue;
        live += a.backward ? -1 : 1;
        most = live > most ? live : most;
    }
    return most;
}

/* --- when to begin to receive */

enum { FORWARD_TIME = 1, BACKWARD_TIME = 2 };

/* The end of each pass times the stages, plus its stage; 0: not known yet. (2, parts, micro_batches) */
static int64_t *key_at(const struct pipeline *p, int64_t *keys, bool backward, int part, int micro_batch)
{
    const int parts = p->stages * p->chunks;
    return &keys[((size_t)backward * (size_t)parts + (size_t)part) * (size_t)p->micro_batches + (size_t)micro_batch];
}

static int64_t *key_of_result(const struct pipeline *p, int64_t *keys, int stage, const struct pipeline_action *a)
{
    return key_at(p, keys, a->backward, pipeline_part(p, stage, a->chunk), a->micro_batch);
}

/* That of what it receives; a->from >= 0. */
static int64_t key_of_input(const struct pipeline *p, int64_t *keys, int stage, const struct pipeline_action *a)
{
    return *key_at(p, keys, a->backward, pipeline_part(p, stage, a->chunk) + (a->backward ? 1 : -1), a->micro_batch);
}

/* All passes of a stage whose input is there. Is there any? */
static bool pass_on(const struct pipeline *p, int64_t *keys, int stage, int *next, int64_t *now)
{
    const int first = *next;
    for (; *next < pipeline_actions(p); ++*next) {
        const struct pipeline_action a = pipeline_action(p, stage, *next);
        const int64_t key = a.from >= 0 ? key_of_input(p, keys, stage, &a) : 1, there = key / p->stages;
        if (key == 0)
            break;
        *now = (a.from >= 0 && there > *now ? there : *now) + (a.backward ? BACKWARD_TIME : FORWARD_TIME);
        *key_of_result(p, keys, stage, &a) = *now * p->stages + stage;
    }
    return *next > first;
}

static int find_keys(const struct pipeline *p, int64_t **ret, struct err *e)
{
    const size_t n = 2 * (size_t)p->stages * (size_t)p->chunks * (size_t)p->micro_batches;
    int64_t *keys = calloc(n, sizeof *keys), *now = calloc((size_t)p->stages, sizeof *now);
    int *next = calloc((size_t)p->stages, sizeof *next);
    const bool ok = keys && now && next;
    for (bool moved = ok; moved;) {
        moved = false;
        for (int s = 0; s < p->stages; s++)
            moved |= pass_on(p, keys, s, &next[s], &now[s]);
    }
    free(now);
    free(next);
    if (!ok) {
        free(keys);
        return err_errno(e, ENOMEM, "messages of %d stages", p->stages);
    }
    *ret = keys;
    return 0;
}

/* Messages of higher keys are sent or needed by this action; 0: none is. */
static int64_t bound_of(const struct pipeline *p, int64_t *keys, int stage, int action)
{
    const struct pipeline_action a = pipeline_action(p, stage, action);
    const int64_t in = a.from >= 0 ? key_of_input(p, keys, stage, &a) : 0,
                  out = a.to >= 0 ? *key_of_result(p, keys, stage, &a) : 0;
    return in > out ? in : out;
}

int pipeline_asks(const struct pipeline *p, int stage, struct pipeline_ask *ret, struct err *e)
{
    int64_t *keys = NULL;
    int n = 0;
    TRY(find_keys(p, &keys, e));
    for (int i = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, stage, i);
        if (a.from < 0)
            continue;
        int at = n++; /* those of the other way may come before it */
        for (; at > 0; at--) {
            const struct pipeline_action b = pipeline_action(p, stage, ret[at - 1].action);
            if (key_of_input(p, keys, stage, &b) < key_of_input(p, keys, stage, &a))
                break;
            ret[at] = ret[at - 1];
        }
        ret[at].action = i;
    }
    for (int k = 0, i = 0; k < n; k++) {
        const struct pipeline_action a = pipeline_action(p, stage, ret[k].action);
        while (bound_of(p, keys, stage, i) < key_of_input(p, keys, stage, &a))
            i++;
        ret[k].before = i;
    }
    free(keys);
    return n;
}

int pipeline_asked(const struct pipeline *p, int stage, const struct pipeline_ask *asks, int n, int chunk,
                   bool backward, bool kept)
{
    int now = 0, most = 0;
    for (int i = 0, k = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, stage, i);
        for (; k < n && asks[k].before == i; k++) {
            const struct pipeline_action b = pipeline_action(p, stage, asks[k].action);
            now += b.chunk == chunk && b.backward == backward;
        }
        most = now > most ? now : most;
        now -= a.chunk == chunk && a.backward == (kept || backward);
    }
    return most;
}
