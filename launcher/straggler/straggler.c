/* Finds the rank that the others wait for, from the parts of ten steps (straggler.h). */
#include "launcher/straggler/straggler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define RATIO 1.4       /* of medians */
#define APART 1.2       /* factor between one rank's lower quartile and the others' upper quartile */
#define LEAST_SHARE 0.1 /* least difference, as a share of the step */
#define Z_SCORE 3.5
#define Z_OF_MAD 0.6745
#define Z_RANKS 4        /* fewer ranks have no useful MAD */
#define LEAST_MAD 0.01   /* of the median */
#define WAIT_SHARE 0.2   /* least wait of all ranks, as a share of the step */
#define LINK_RATIO 4     /* to the median of the fastest links */
#define LINK_SHARE 0.05  /* least excess, as a share of the step */
#define LINK_LEAST 1000  /* us, least excess */
#define CORES_LEAST 8000 /* us, least excess within one node */

enum { LOWER = STRAGGLER_STEPS / 4, UPPER = STRAGGLER_STEPS - 1 - STRAGGLER_STEPS / 4 };

static const char *const class_names[] = {STRAGGLER_CLASSES(CHOICE_NAME)};

const char *straggler_class_name(enum straggler_class c)
{
    return class_names[c];
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
}

static double middle(const double *sorted, int n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static double median(double *v, int n)
{
    sort(v, n);
    return middle(v, n);
}

/* The median of n sorted values, leaving out one that equals x. */
static double median_without(const double *sorted, int n, double x)
{
    int at = 0;
    while (at < n - 1 && sorted[at] < x)
        at++;
    const int m = n - 1, upper = m / 2, lower = m % 2 ? upper : upper - 1;
    return (sorted[lower + (lower >= at)] + sorted[upper + (upper >= at)]) / 2;
}

/* --- ranks that do more than others */

enum what { OWN, DATA, COMPUTE };

static double spent(const struct straggler_rank *r, int k, enum what w)
{
    return (w == COMPUTE ? 0 : (double)r->data_us[k]) + (w == DATA ? 0 : (double)r->compute_us[k]);
}

struct work { /* of ten steps, sorted */
    double mine[STRAGGLER_STEPS], others[STRAGGLER_STEPS];
};

/* of[n]: one kind of work, for every rank, and the median of the others. */
static void compare(const struct straggler_rank *v, int n, enum what w, double *scratch, struct work *of)
{
    for (int k = 0; k < STRAGGLER_STEPS; k++) {
        for (int r = 0; r < n; r++)
            scratch[r] = of[r].mine[k] = spent(&v[r], k, w);
        sort(scratch, n);
        for (int r = 0; r < n; r++)
            of[r].others[k] = median_without(scratch, n, of[r].mine[k]);
    }
    for (int r = 0; r < n; r++) {
        sort(of[r].mine, STRAGGLER_STEPS);
        sort(of[r].others, STRAGGLER_STEPS);
    }
}

static double mine(const struct work *w)
{
    return middle(w->mine, STRAGGLER_STEPS);
}

static double excess(const struct work *w)
{
    return mine(w) - middle(w->others, STRAGGLER_STEPS);
}

static bool stands_apart(const struct work *w, double step)
{
    return mine(w) >= RATIO * middle(w->others, STRAGGLER_STEPS) && w->mine[LOWER] >= APART * w->others[UPPER] &&
           excess(w) > 0 && excess(w) >= LEAST_SHARE * step;
}

static bool is_outlier(const struct work *of, int n, int r, double *scratch)
{
    if (n < Z_RANKS)
        return true;
    for (int i = 0; i < n; i++)
        scratch[i] = mine(&of[i]);
    const double all = median(scratch, n);
    for (int i = 0; i < n; i++)
        scratch[i] = fabs(mine(&of[i]) - all);
    const double mad = fmax(median(scratch, n), LEAST_MAD * all);
    return Z_OF_MAD * (mine(&of[r]) - all) > Z_SCORE * mad;
}

/* The duration of a step: the rank that works longest waits least. */
static double step_us(const struct straggler_rank *v, int n)
{
    double took[STRAGGLER_STEPS] = {0};
    for (int k = 0; k < STRAGGLER_STEPS; k++)
        for (int r = 0; r < n; r++)
            took[k] = fmax(took[k], spent(&v[r], k, OWN) + (double)v[r].wait_us[k]);
    return median(took, STRAGGLER_STEPS);
}

static enum straggler_class class_of(const struct straggler_rank *v, int n, int r, double *scratch, struct work *of)
{
    compare(v, n, DATA, scratch, of);
    const double data = excess(&of[r]);
    compare(v, n, COMPUTE, scratch, of);
    return data > excess(&of[r]) ? STRAGGLER_DATA : STRAGGLER_COMPUTE;
}

static bool judge_work(const struct straggler_rank *v, int n, double *scratch, struct work *of,
                       struct straggler_verdict *ret)
{
    const double step = step_us(v, n);
    int worst = -1;
    compare(v, n, OWN, scratch, of);
    for (int r = 0; r < n; r++)
        if (stands_apart(&of[r], step) && (worst < 0 || excess(&of[r]) > excess(&of[worst])) &&
            is_outlier(of, n, r, scratch))
            worst = r;
    if (worst < 0)
        return false;
    *ret = (struct straggler_verdict){.rank = worst,
                                      .peer = -1,
                                      .step_ms = step / 1000,
                                      .mine_ms = mine(&of[worst]) / 1000,
                                      .others_ms = middle(of[worst].others, STRAGGLER_STEPS) / 1000};
    ret->why = class_of(v, n, worst, scratch, of);
    return true;
}

/* --- links that are slower than others */

static uint32_t lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void straggler_steady_links(struct straggler_tries *t, struct straggler_rank *v, int n)
{
    bool is_new = false;
    for (int r = 0; r < n; r++)
        is_new = is_new || t[r].best_us[0] != v[r].best_us || t[r].worst_us[0] != v[r].worst_us;
    for (int r = 0; r < n; r++) {
        if (is_new)
            t[r] = (struct straggler_tries){{v[r].best_us, t[r].best_us[0]}, {v[r].worst_us, t[r].worst_us[0]}};
        v[r].best_us = lower(t[r].best_us[0], t[r].best_us[1]);
        v[r].worst_us = lower(t[r].worst_us[0], t[r].worst_us[1]);
    }
}

/* The time of a step that even the busiest rank waits. */
static double common_wait_us(const struct straggler_rank *v, int n)
{
    double least[STRAGGLER_STEPS];
    for (int k = 0; k < STRAGGLER_STEPS; k++) {
        least[k] = (double)v[0].wait_us[k];
        for (int r = 1; r < n; r++)
            least[k] = fmin(least[k], (double)v[r].wait_us[k]);
    }
    return median(least, STRAGGLER_STEPS);
}

static bool are_of_one_node(const struct straggler_rank *v, int n)
{
    for (int r = 1; r < n; r++)
        if (v[r].node != v[0].node)
            return false;
    return true;
}

static bool judge_links(const struct straggler_rank *v, int n, double *scratch, struct straggler_verdict *ret)
{
    const double step = step_us(v, n);
    int slow = 0, ends[2] = {-1, -1}, worst = -1;
    if (n < 3 || common_wait_us(v, n) < WAIT_SHARE * step)
        return false;
    for (int r = 0; r < n; r++) {
        if (v[r].best_us == 0)
            return false;
        scratch[r] = v[r].best_us;
    }
    const double usual = median(scratch, n);
    const double limit =
        fmax(LINK_RATIO * usual, usual + fmax(LINK_SHARE * step, are_of_one_node(v, n) ? CORES_LEAST : LINK_LEAST));
    for (int r = 0; r < n; r++) {
        if (v[r].best_us > limit && (worst < 0 || v[r].best_us > v[worst].best_us))
            worst = r;
        if (v[r].worst_us > limit && slow++ < 2)
            ends[slow - 1] = r;
    }
    if (worst < 0 && (slow != 2 || (v[ends[0]].node == v[ends[1]].node &&
                                    fmin(v[ends[0]].worst_us, v[ends[1]].worst_us) < usual + CORES_LEAST)))
        return false;
    *ret = (struct straggler_verdict){.rank = worst >= 0 ? worst : ends[0],
                                      .peer = worst >= 0 ? -1 : ends[1],
                                      .why = STRAGGLER_NETWORK,
                                      .step_ms = step / 1000,
                                      .mine_ms = (worst >= 0 ? v[worst].best_us : v[ends[0]].worst_us) / 1000.0,
                                      .others_ms = usual / 1000};
    return true;
}

bool straggler_judge(const struct straggler_rank *v, int n, struct straggler_verdict *ret)
{
    for (int r = 0; r < n; r++)
        if (!v[r].known)
            return false;
    if (n < 2)
        return false;
    struct work *of = calloc((size_t)n, sizeof *of);
    double *scratch = calloc((size_t)n, sizeof *scratch);
    const bool found = of && scratch && (judge_work(v, n, scratch, of, ret) || judge_links(v, n, scratch, ret));
    free(of);
    free(scratch);
    return found;
}

/* --- what is reported, and how often */

const char *straggler_text(const struct straggler_verdict *s, uint64_t step, const char *host, char *out, size_t cap)
{
    const char *at = host[0] ? " on " : "";
    const unsigned long long to = step, from = to - STRAGGLER_STEPS + 1;
    if (s->why != STRAGGLER_NETWORK)
        snprintf(out, cap,
                 "straggler: rank %d%s%s (%s): %.3g ms of its own in a step, the others %.3g ms; steps %llu to %llu",
                 s->rank, at, host, straggler_class_name(s->why), s->mine_ms, s->others_ms, from, to);
    else if (s->peer < 0)
        snprintf(
            out, cap,
            "straggler: rank %d%s%s (network): %.3g ms to another rank and back, the others %.3g ms; steps %llu to %llu",
            s->rank, at, host, s->mine_ms, s->others_ms, from, to);
    else
        snprintf(
            out, cap,
            "straggler: the link between rank %d%s%s and rank %d (network): %.3g ms there and back, other links %.3g ms; steps %llu to %llu",
            s->rank, at, host, s->peer, s->mine_ms, s->others_ms, from, to);
    return out;
}

/* Does the new verdict add nothing to the earlier one? (A slow link of a rank says nothing about its other links.) */
static bool is_same(const struct straggler_verdict *earlier, const struct straggler_verdict *new)
{
    return earlier->rank == new->rank && earlier->why == new->why && (earlier->peer < 0 || earlier->peer == new->peer);
}

/* Have consecutive windows shown it for long enough? */
static bool lasts(struct straggler_memory *m, const struct straggler_verdict *found, uint64_t step)
{
    if (found && !(m->suspects && is_same(&m->suspect, found)))
        m->since = step - STRAGGLER_STEPS;
    m->suspects = found;
    if (found)
        m->suspect = *found;
    return found && (double)(step - m->since) * found->step_ms >= STRAGGLER_LEAST_MS;
}

bool straggler_is_news(struct straggler_memory *m, const struct straggler_verdict *found, uint64_t step)
{
    const bool same = found && m->any && is_same(&m->named, found);
    const bool long_enough = lasts(m, found, step);
    if (m->any && !same && ++m->calm >= STRAGGLER_CALM)
        m->any = false;
    if (same)
        m->calm = 0;
    if (same || !long_enough)
        return false;
    m->named = *found;
    m->calm = 0;
    m->any = true;
    return true;
}
