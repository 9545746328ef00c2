/* A batch on its way to the card: host -> (page-locked stage ->) stage on the card, on the copy stream; then, in the
 * compute order, to where the steps read it. */
#include <string.h>

#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/tell/watch.h"

size_t stage_rows_bytes(const struct cuda_plan *pl)
{
    const struct program *p = pl->p;
    bool input = !pl->o.chunk;
    for (int i = pl->ops.first; i < pl->ops.end; i++)
        input = input || op_is(p->ops[i].kind, OP_READS_INPUT);
    return !input ? 0 : (size_t)(pl->o.batch + pl->o.others) * input_row_bytes(&p->input);
}

/* A backward pass reads what its forward pass has made of the rows. */
static const void *rows_of(const struct cuda_plan *pl, const struct batch *b, enum run_pass pass)
{
    return pass != RUN_BACKWARD && stage_rows_bytes(pl) ? b->rows : NULL;
}

static size_t mix_bytes(const struct cuda_plan *pl)
{
    return (size_t)(pl->o.batch + pl->o.others) * sizeof(struct batch_mix);
}

/* What follows the rows in a stage: labels, weights, numbers of samples, what is mixed, and what is drawn from. */
static void copy_batch(const struct cuda_plan *pl, const struct run_args *a, char *to)
{
    const struct batch *b = &a->batch;
    const struct k_draw draw = {.seed = a->seed, .step = a->step};
    const size_t n = (size_t)pl->o.batch, per = input_row_labels(&pl->p->input);
    memcpy(to + pl->draw_at, &draw, sizeof draw);
    if (b->mix)
        memcpy(to + pl->mix_at, b->mix, mix_bytes(pl));
    else if (pl->o.mixes)
        memset(to + pl->mix_at, 0, mix_bytes(pl)); /* nothing is */
    if (b->samples)
        memcpy(to + pl->numbers_at, b->samples, n * sizeof *b->samples);
    if (b->labels)
        memcpy(to + pl->labels_at, b->labels, n * per * sizeof *b->labels);
    memcpy(to + pl->weights_at, b->weights, n * sizeof *b->weights);
    int32_t *labels = (int32_t *)(void *)(to + pl->labels_at);
    const float *weights = (const float *)(const void *)(to + pl->weights_at);
    for (size_t i = 0; i < n * per && b->labels; i++) /* anything may stand where the weight is 0 */
        labels[i] = weights[i / per] > 0 ? labels[i] : -1;
}

/* Rows that lie in page-locked memory go from where they are. */
static int send_batch(struct cuda_plan *pl, const struct stage *s, const void *rows, bool locked, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    const size_t at = locked || !rows ? pl->labels_at : 0;
    TRY(g->ops->copy_in(g, pl->cuda->copy, (char *)s->device + at, s->host + at, pl->stage_bytes - at, e));
    return at && rows ? g->ops->copy_in(g, pl->cuda->copy, s->device, rows, stage_rows_bytes(pl), e) : 0;
}

int stage_send(struct cuda_plan *pl, const struct run_args *a, struct err *e)
{
    const struct batch *b = &a->batch;
    struct cuda *c = pl->cuda;
    const struct gpu_ops *gpu = c->gpu->ops;
    struct stage *s = &pl->stage[pl->next_stage];
    const struct watched watched = cuda_watched(c);
    const void *rows = rows_of(pl, b, a->pass);
    const size_t at = rows ? 0 : pl->labels_at;
    pl->next_stage = (pl->next_stage + 1) % STAGES;
    watch_wait(c->watch, "the batch before the last");
    const int rc = s->used ? gpu->event_sync(c->gpu, s->emptied, e) : 0; /* seldom waits */
    watch_done(c->watch);
    TRY(rc);
    if (rows && !b->locked)
        memcpy(s->host, rows, stage_rows_bytes(pl));
    copy_batch(pl, a, s->host);
    TRY(first_runs_mark(&pl->first, &watched, FIRST_COPY, e));
    TRY(send_batch(pl, s, rows, b->locked, e));
    TRY(first_runs_mark(&pl->first, &watched, FIRST_COPIED, e));
    TRY(gpu->event_record(c->gpu, s->filled, c->copy, e));
    TRY(gpu->event_wait(c->gpu, s->filled, c->compute, e));
    TRY(gpu->copy(c->gpu, c->compute, pl->fixed + at, (char *)s->device + at, pl->stage_bytes - at, e));
    s->used = true;
    return gpu->event_record(c->gpu, s->emptied, c->compute, e);
}

int stage_let_go(struct cuda_plan *pl, const struct batch *b, enum run_pass pass, struct err *e)
{
    struct cuda *c = pl->cuda;
    const struct stage *s = &pl->stage[(pl->next_stage + STAGES - 1) % STAGES];
    if (!b->locked || !rows_of(pl, b, pass))
        return 0;
    watch_wait(c->watch, "the copy of a batch");
    const int rc = c->gpu->ops->event_sync(c->gpu, s->filled, e);
    watch_done(c->watch);
    return rc;
}

bool stage_whole(const struct cuda_plan *pl, const struct batch *b)
{
    for (int i = 0; i < pl->o.batch; i++)
        if (!(b->weights[i] > 0))
            return false;
    return true;
}
