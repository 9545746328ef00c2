/* Watches for stragglers: reads pages in time, sends and collects steps (straggler_watch.h). */
#include "launcher/straggler/straggler_watch.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "launcher/straggler/straggler_steps.h"

#define LEAST_MS 100 /* between two looks */
#define LONGEST_MS 5000
#define LEAST_WINDOW_NS INT64_C(100000000)

struct straggler_watch {
    struct straggler_watch_options o;
    uv_timer_t timer;
    int base, world;
    bool leads;
    /* steps of the window that ends with `last`: on group rank 0 (world), elsewhere (workers) */
    struct straggler_rank *v;
    uint64_t last;                 /* 0: none yet */
    struct straggler_tries *tries; /* (world) on group rank 0 */
    uint64_t reported;             /* newest window of this node */
    struct straggler_memory memory;
};

/* --- the steps of this node */

struct pace {
    uint64_t step;   /* that all workers have done */
    int64_t step_ns; /* what one takes; 0: not known */
    bool has_parts;  /* a worker reports the parts of its steps */
};

static void look_at_pace(struct straggler_watch *w, struct pace *ret)
{
    *ret = (struct pace){.step = UINT64_MAX};
    for (int i = 0; i < w->o.workers; i++) {
        struct crun_page *p = w->o.page(w->o.arg, i);
        const uint64_t step = p ? atomic_load_explicit(&p->step, memory_order_relaxed) : 0;
        uint32_t us[CRUN_PAGE_PARTS];
        int64_t took = 0;
        ret->step = step < ret->step ? step : ret->step;
        ret->has_parts = ret->has_parts || (p && atomic_load_explicit(&p->parts, memory_order_relaxed) != 0);
        if (!p || !crun_page_read_row(p, step, us))
            continue;
        for (int k = 0; k < CRUN_PAGE_PARTS; k++)
            took += (int64_t)us[k] * 1000;
        ret->step_ns = took > ret->step_ns ? took : ret->step_ns;
    }
}

/* Steps from one window to the next. */
static uint64_t stride(const struct pace *p)
{
    uint64_t n = STRAGGLER_STEPS;
    while (n < 1000 && (int64_t)n * p->step_ns < LEAST_WINDOW_NS)
        n *= 10;
    return n;
}

static void plan(struct straggler_watch *w, const struct pace *p);

/* --- judging */

static void judge(struct straggler_watch *w)
{
    struct straggler_verdict v;
    const uint64_t step = w->last;
    for (int r = 0; r < w->world; r++)
        if (!w->v[r].known)
            return;
    straggler_steady_links(w->tries, w->v, w->world);
    const bool found = straggler_judge(w->v, w->world, &v);
    for (int r = 0; r < w->world; r++)
        w->v[r].known = false;
    if (straggler_is_news(&w->memory, found ? &v : NULL, step))
        w->o.found(w->o.arg, &v, step);
}

/* Begin another window: forget steps of the one before. */
static void enter_window(struct straggler_watch *w, uint64_t last)
{
    for (int r = 0; r < w->world && w->last != last; r++)
        w->v[r].known = false;
    w->last = last;
}

static void tell(struct straggler_watch *w, uint64_t last)
{
    struct buf text = {0};
    if (straggler_steps_write(&text, last, w->base, w->v, w->o.workers) == 0)
        w->o.tell(w->o.arg, text.data, text.len);
    buf_free(&text);
}

static void read_window(struct straggler_watch *w, uint64_t last)
{
    bool all = true;
    if (w->leads)
        enter_window(w, last);
    for (int i = 0; i < w->o.workers; i++) {
        struct crun_page *p = w->o.page(w->o.arg, i);
        struct straggler_rank *v = &w->v[w->leads ? w->base + i : i];
        all = p && straggler_steps_read(p, last, v) && all;
        v->node = w->base;
    }
    if (w->leads)
        judge(w);
    else if (all)
        tell(w, last);
}

static void on_look(uv_timer_t *t)
{
    struct straggler_watch *w = container_of(t, struct straggler_watch, timer);
    struct pace p;
    if (!w->o.is_running(w->o.arg) || !w->v)
        return;
    look_at_pace(w, &p);
    const uint64_t n = stride(&p), last = p.step / n * n;
    if (last > w->reported) {
        w->reported = last;
        read_window(w, last);
    }
    plan(w, &p);
}

/* Set the timer for the end of the next ten steps. */
static void plan(struct straggler_watch *w, const struct pace *p)
{
    const uint64_t n = stride(p), left = n - p->step % n;
    int64_t ms = (int64_t)left * p->step_ns / 1000000;
    ms = ms < LEAST_MS ? LEAST_MS : ms;
    ms = ms > LONGEST_MS || !p->has_parts ? LONGEST_MS : ms;
    uv_update_time(w->o.loop);
    uv_timer_start(&w->timer, on_look, (uint64_t)ms, 0);
}

/* --- what others report */

bool straggler_watch_hear(struct straggler_watch *w, const char *text, size_t n)
{
    struct straggler_rank *v = w && w->leads && w->v ? calloc((size_t)w->world, sizeof *v) : NULL;
    uint64_t last = 0;
    const bool good = v && straggler_steps_parse(text, n, v, w->world, &last);
    if (good && last >= w->last) {
        enter_window(w, last);
        for (int r = 0; r < w->world; r++)
            if (v[r].known)
                w->v[r] = v[r];
        judge(w);
    }
    free(v);
    return good;
}

/* --- life */

int straggler_watch_open(struct straggler_watch **ret, const struct straggler_watch_options *o, struct err *e)
{
    struct straggler_watch *w = calloc(1, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "looking for stragglers");
    w->o = *o;
    uv_timer_init(o->loop, &w->timer);
    *ret = w;
    return 0;
}

int straggler_watch_begin_round(struct straggler_watch *w, int base, int world, bool leads, struct err *e)
{
    if (!w)
        return 0;
    straggler_watch_end_round(w);
    w->base = base;
    w->world = world;
    w->leads = leads;
    w->last = w->reported = 0;
    w->memory = (struct straggler_memory){0};
    w->v = calloc((size_t)(leads ? world : w->o.workers), sizeof *w->v);
    w->tries = calloc((size_t)(leads ? world : 1), sizeof *w->tries);
    return w->v && w->tries ? 0 : err_errno(e, ENOMEM, "looking for stragglers");
}

void straggler_watch_progressed(struct straggler_watch *w)
{
    if (w && w->world > 1 && w->v)
        uv_timer_start(&w->timer, on_look, LEAST_MS, 0);
}

void straggler_watch_end_round(struct straggler_watch *w)
{
    if (!w)
        return;
    uv_timer_stop(&w->timer);
    free(w->v);
    free(w->tries);
    w->v = NULL;
    w->tries = NULL;
}

static void on_closed(uv_handle_t *h)
{
    struct straggler_watch *w = container_of(h, struct straggler_watch, timer);
    free(w->v);
    free(w->tries);
    free(w);
}

void straggler_watch_close(struct straggler_watch *w)
{
    if (w)
        uv_close((uv_handle_t *)&w->timer, on_closed);
}
