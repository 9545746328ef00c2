#include "worker/pipeline/pipeline.h"

#include <assert.h>

#include "common/base/err.h"

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

static int at_most(int n, int most)
{
    return n < most ? n : most;
}

/* Forward passes of a stage before its first pair of a forward and a backward pass. */
static int warm_up(const struct pipeline *p, int stage)
{
    const int all = p->micro_batches * p->chunks, behind = p->stages - stage - 1;
    switch (p->kind) {
    case PIPELINE_GPIPE:
        return all;
    case PIPELINE_1F1B:
        return at_most(behind, all);
    case PIPELINE_INTERLEAVED:
        break;
    }
    return at_most(2 * behind + (p->chunks - 1) * p->stages, all);
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
