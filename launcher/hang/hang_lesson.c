/* What the steps so far teach: how long the next one may take. */
#include "launcher/hang/hang_internal.h"

#include <math.h>
#include <string.h>

#include "common/include/crun.h"

#define TAIL_STEPS 5000 /* of each worker: so many determine p99.9 */

struct lesson {
    uint64_t steps[CRUN_PAGE_BUCKETS], n;
    int64_t longest[CRUN_PAGE_PHASES];
    int workers;    /* that have made steps in this round */
    uint64_t fresh; /* of n, in this round */
};

static void collect_lesson(const struct hang *h, const struct hang_worker *w, int n, struct lesson *l)
{
    memset(l, 0, sizeof *l);
    memcpy(l->longest, h->longest_ns, sizeof l->longest);
    for (int k = 0; k < n; k++) {
        if (!w[k].page || !hang_progressed(&w[k]))
            continue;
        l->workers++;
        for (int i = 0; i < CRUN_PAGE_BUCKETS; i++) {
            const uint32_t c = atomic_load_explicit(&w[k].page->steps[i], memory_order_relaxed);
            l->steps[i] += c;
            l->fresh += c;
        }
        for (int p = 0; p < CRUN_PAGE_PHASES; p++)
            l->longest[p] = hang_later(l->longest[p], atomic_load(&w[k].page->longest_ns[p]));
    }
    l->n = l->fresh;
    for (int i = 0; i < CRUN_PAGE_BUCKETS; i++) {
        l->steps[i] += h->steps[i];
        l->n += h->steps[i];
    }
}

void hang_end_round(struct hang *h, const struct hang_worker *w, int n)
{
    struct lesson l;
    collect_lesson(h, w, n, &l);
    memcpy(h->longest_ns, l.longest, sizeof l.longest);
    for (int i = 0; i < CRUN_PAGE_BUCKETS; i++)
        h->steps[i] = l.steps[i] < UINT32_MAX ? (uint32_t)l.steps[i] : UINT32_MAX;
    for (int k = 0; k < n; k++)
        if (w[k].page && hang_progressed(&w[k])) {
            h->spared = false;
            h->longest_start_ns = hang_later(h->longest_start_ns, atomic_load(&w[k].page->first_step_ns) - h->round_ns);
        }
}

/* The time that this share of steps does not take longer than: where its bucket begins. */
static int64_t quantile(const struct lesson *l, double share)
{
    uint64_t below = 0;
    const double want = share * (double)l->n;
    for (unsigned i = 0; i < CRUN_PAGE_BUCKETS; i++) {
        below += l->steps[i];
        if (below > 0 && (double)below >= want)
            return crun_page_bucket_begin(i);
    }
    return 0;
}

/* Where the tail leads: what the last factor of 10 in rarity cost, HANG_TAIL times. */
static int64_t tail(const struct lesson *l, int64_t p99)
{
    const bool many = l->n >= TAIL_STEPS * (uint64_t)l->workers;
    const double here = (double)p99, before = (double)quantile(l, many ? 0.99 : 0.9);
    const double ratio = (many ? (double)quantile(l, 0.999) : here) / (before > 1e5 ? before : 1e5);
    const double ns = here * pow(ratio > 1 ? ratio : 1, HANG_TAIL);
    return ns < (double)HANG_UNKNOWN_NS ? (int64_t)ns : HANG_UNKNOWN_NS;
}

static struct hang_budget step_budget(const struct hang *h, const struct lesson *l)
{
    const uint64_t workers = (uint64_t)(l->workers ? l->workers : 1);
    if (h->o.fixed_ns)
        return (struct hang_budget){h->o.fixed_ns, h->o.fixed_ns};
    if (l->n < HANG_STEPS_MIN * workers || l->fresh < HANG_WARMUP * workers)
        return (struct hang_budget){HANG_UNKNOWN_NS, HANG_UNKNOWN_NS};
    const int64_t p99 = quantile(l, 0.99), eager = HANG_FACTOR * p99 + HANG_FLOOR_NS;
    int64_t patient = hang_later(eager, 2 * l->longest[CRUN_PHASE_STEP] + HANG_FLOOR_NS);
    patient = hang_later(patient, tail(l, p99));
    if (h->o.several_nodes || l->n < TAIL_STEPS * workers)
        patient = hang_later(patient, HANG_PHASE_NS);
    return (struct hang_budget){eager, hang_later(eager, hang_sooner(patient, HANG_UNKNOWN_NS))};
}

static struct hang_budget phase_budget(const struct hang *h, int64_t longest)
{
    struct hang_budget b = {HANG_UNKNOWN_NS, HANG_UNKNOWN_NS};
    if (longest > 0) {
        b.eager_ns = HANG_FACTOR * longest + HANG_FLOOR_NS;
        b.patient_ns = hang_later(b.eager_ns, HANG_PHASE_NS);
    }
    return (struct hang_budget){hang_later(b.eager_ns, h->o.fixed_ns), hang_later(b.patient_ns, h->o.fixed_ns)};
}

struct hang_budget hang_budget(const struct hang *h, const struct hang_worker *w, int n, uint32_t phase)
{
    struct lesson l;
    collect_lesson(h, w, n, &l);
    switch (phase) {
    case CRUN_PHASE_STEP:
        return step_budget(h, &l);
    case CRUN_PHASE_PAUSED:
        return (struct hang_budget){INT64_MAX, INT64_MAX};
    case CRUN_PHASE_STARTING:
        return phase_budget(h, h->longest_start_ns);
    default:
        return phase_budget(h, l.longest[phase]);
    }
}
