/* Makes a node's report for the rendezvous' status page (node_report.h). */
#include "launcher/observe/node_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/observe/gauges.h"

#define QUIET_MS 10000 /* ms for a node whose workers report nothing */

static int add_real(struct buf *out, const char *key, double v)
{
    char text[32];
    if (!isfinite(v)) /* a loss that has diverged is reported as not known */
        return 0;
    snprintf(text, sizeof text, "%.6g", v);
    return rdzv_field_text(out, key, text);
}

/* --- the job's figures, as reported by the first worker */

static const char *const figure_names[] = {
#define X(name, value, text) [value] = text,
    CRUN_FIGURES(X)
#undef X
};

static int add_job(struct crun_page *p, struct buf *out)
{
    const uint32_t set = atomic_load_explicit(&p->figures_set, memory_order_acquire);
    const bool pair = atomic_load_explicit(&p->has_metrics, memory_order_acquire); /* crun_metrics() */
    for (unsigned i = 0; i < sizeof figure_names / sizeof *figure_names; i++) {
        if (i == CRUN_FIGURE_WAIT_S)
            continue;
        if (set >> i & 1)
            TRY(add_real(out, figure_names[i], crun_page_real(&p->figure[i])));
        else if (pair && i == CRUN_FIGURE_LOSS)
            TRY(add_real(out, figure_names[i], crun_page_real(&p->loss)));
        else if (pair && i == CRUN_FIGURE_IMAGES_PER_S)
            TRY(add_real(out, figure_names[i], crun_page_real(&p->images_per_s)));
    }
    return 0;
}

/* What the program names by itself: "tokens:3.1e+05:tokens/s,lr:0.1:". A worker may write what it likes into its
 * page. */
static int add_metrics(struct crun_page *p, struct buf *out)
{
    const uint32_t n = atomic_load_explicit(&p->metrics, memory_order_acquire);
    char text[CRUN_PAGE_METRICS * (sizeof(struct crun_page_metric) + 32)] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < n && i < CRUN_PAGE_METRICS; i++) {
        struct crun_page_metric m;
        const double v = crun_page_real(&p->metric[i].value);
        memcpy(m.name, p->metric[i].name, sizeof m.name);
        memcpy(m.unit, p->metric[i].unit, sizeof m.unit);
        m.name[sizeof m.name - 1] = m.unit[sizeof m.unit - 1] = 0;
        if (isfinite(v) && crun_page_is_metric(m.name, m.unit))
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s:%.6g:%s", at ? "," : "", m.name, v, m.unit);
    }
    return at ? rdzv_field_text(out, "metrics", text) : 0;
}

/* --- lists with a place for each rank, empty if nothing is known */

struct lists {
    struct buf step, took, waited;
    bool any, any_took, any_waited;
    uint64_t latest;
};

/* When the worker reported its newest step; 0: it has reported none. */
static int64_t reported_at(struct crun_page *p)
{
    const int64_t last = atomic_load_explicit(&p->last_step_ns, memory_order_acquire);
    return last ? last : atomic_load_explicit(&p->first_step_ns, memory_order_relaxed);
}

static int add_rank(struct lists *l, struct node_report_seen *seen, struct crun_page *p, const char *comma)
{
    const int64_t at = p ? reported_at(p) : 0;
    const uint64_t step = p ? atomic_load_explicit(&p->step, memory_order_relaxed) : 0;
    TRY(buf_addstr(&l->step, comma));
    TRY(buf_addstr(&l->took, comma));
    TRY(buf_addstr(&l->waited, comma));
    if (at == 0)
        return 0;
    const int64_t waited = atomic_load_explicit(&p->wait_ns, memory_order_relaxed);
    const bool reports_waits = atomic_load_explicit(&p->figures_set, memory_order_relaxed) >> CRUN_FIGURE_WAIT_S & 1;
    l->latest = step > l->latest ? step : l->latest;
    l->any = true;
    TRY(buf_printf(&l->step, "%llu", (unsigned long long)step));
    if (seen->at_ns > 0 && step > seen->step && at > seen->at_ns) {
        const double steps = (double)(step - seen->step) * 1e6;
        l->any_took = true;
        TRY(buf_printf(&l->took, "%.5g", (double)(at - seen->at_ns) / steps));
        l->any_waited = l->any_waited || reports_waits;
        if (reports_waits)
            TRY(buf_printf(&l->waited, "%.5g", (double)(waited - seen->wait_ns) / steps));
    }
    *seen = (struct node_report_seen){step, at, waited};
    return 0;
}

static int add_lists(const struct lists *l, const struct node_report_view *v, struct buf *out)
{
    if (!l->any)
        return 0;
    TRY(rdzv_field_int(out, "step", (long long)l->latest));
    TRY(rdzv_field_int(out, "base", v->rank_base));
    TRY(rdzv_field_text(out, "steps", l->step.data));
    if (l->any_took)
        TRY(rdzv_field_text(out, "step_ms", l->took.data));
    if (l->any_waited)
        TRY(rdzv_field_text(out, "wait_ms", l->waited.data));
    return 0;
}

static int add_ranks(struct node_report *r, const struct node_report_view *v, struct buf *out)
{
    struct lists l = {0};
    int rc = 0;
    for (int i = 0; i < v->workers && i < NODE_REPORT_RANKS && rc == 0; i++)
        rc = add_rank(&l, &r->seen[i], v->page(v->arg, i), i ? "," : "");
    rc = rc ? rc : add_lists(&l, v, out);
    buf_free(&l.step);
    buf_free(&l.took);
    buf_free(&l.waited);
    return rc;
}

/* --- the host */

static int add_gpus(const struct gauges_gpus *g, struct buf *out)
{
    struct buf list = {0};
    int rc = 0;
    for (uint32_t i = 0; i < g->n && rc == 0; i++)
        rc = buf_printf(&list, "%s%u:%u:%u", i ? "," : "", g->v[i].percent, g->v[i].memory_used, g->v[i].memory_total);
    if (rc == 0 && g->n > 0)
        rc = rdzv_field_text(out, "gpus", list.data);
    buf_free(&list);
    return rc;
}

static int add_host(const struct node_report_view *v, struct buf *out)
{
    if (v->host) {
        TRY(add_real(out, "cpu", v->host->cpu));
        TRY(rdzv_field_int(out, "mem", (long long)(v->host->memory_used >> 20)));
        TRY(rdzv_field_int(out, "mem_total", (long long)(v->host->memory_total >> 20)));
    }
    return v->gpus ? add_gpus(v->gpus, out) : 0;
}

int node_report_write(struct node_report *r, const struct node_report_view *v, struct buf *out)
{
    struct crun_page *first = v->leads ? v->page(v->arg, 0) : NULL;
    if (r->round != v->round)
        *r = (struct node_report){.round = v->round};
    TRY(add_ranks(r, v, out));
    if (first)
        TRY(add_job(first, out));
    if (first)
        TRY(add_metrics(first, out));
    TRY(add_host(v, out));
    if (v->ras[0])
        TRY(rdzv_field_text(out, "ras", v->ras));
    return v->leads && v->logs[0] ? rdzv_field_text(out, "logs", v->logs) : 0;
}

int64_t node_report_pause_ms(int nodes, int64_t heartbeat_ms, bool steps)
{
    const int64_t least = steps ? 2 * heartbeat_ms : QUIET_MS, share = 10 * (int64_t)nodes;
    return least > share ? least : share;
}
