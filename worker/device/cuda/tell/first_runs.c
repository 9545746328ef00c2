/* Logs in detail how long the first runs of a plan take. */
#include "worker/device/cuda/tell/first_runs.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/device/cuda/gpu/gpu.h"
#include "worker/device/cuda/tell/watch.h"

enum { LOGGED_RUNS = 5 };

static int tell(struct first_runs *f, const struct watched *c, struct err *e)
{
    const struct gpu_ops *g = c->gpu->ops;
    float copy, compute;
    f->pending = false;
    TRY(g->event_sync(c->gpu, f->at[FIRST_END], e));
    TRY(g->event_ms(c->gpu, f->at[FIRST_COPY], f->at[FIRST_COPIED], &copy, e));
    TRY(g->event_ms(c->gpu, f->at[FIRST_BEGIN], f->at[FIRST_END], &compute, e));
    log_info("cuda", "run %d: enqueued in %.2f ms, batch copied in %.2f ms, computed in %.2f ms", f->runs,
             (double)(f->enqueued_ns - f->began_ns) / 1e6, (double)copy, (double)compute);
    return 0;
}

int first_runs_begin(struct first_runs *f, const struct watched *c, bool wanted, struct err *e)
{
    if (f->pending)
        TRY(tell(f, c, e));
    f->on = wanted && f->runs < LOGGED_RUNS && log_level() >= LOG_INFO;
    f->runs += f->on;
    f->began_ns = clock_ns();
    for (int i = 0; i < FIRST_MARKS && f->on; i++)
        if (!f->at[i])
            TRY(c->gpu->ops->event_open(c->gpu, true, &f->at[i], e));
    return 0;
}

int first_runs_mark(struct first_runs *f, const struct watched *c, enum first_mark m, struct err *e)
{
    if (!f->on)
        return 0;
    return c->gpu->ops->event_record(c->gpu, f->at[m], m == FIRST_COPY || m == FIRST_COPIED ? c->copy : c->compute, e);
}

void first_runs_end(struct first_runs *f)
{
    f->enqueued_ns = clock_ns();
    f->pending = f->on;
}

void first_runs_close(struct first_runs *f, const struct watched *c)
{
    for (int i = 0; i < FIRST_MARKS; i++)
        if (f->at[i])
            c->gpu->ops->event_close(c->gpu, f->at[i]);
}
