/* When a worker counts as hung, judged by the workers' pages (hang.h). */
#include "launcher/hang/hang.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "common/include/crun.h"
#include "launcher/hang/quiet.h"
#include "launcher/witness/witness.h"

static inline bool hang_progressed(const struct hang_worker *w)
{
    return atomic_load(&w->page->first_step_ns) != 0;
}

static inline int64_t hang_later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t hang_sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#define TAIL_STEPS 5000 /* per worker: so many determine p99.9 */

struct lesson {
    uint64_t steps[CRUN_PAGE_BUCKETS], n;
    int64_t longest[CRUN_PAGE_PHASES];
    int workers;    /* workers that made steps in this round */
    uint64_t fresh; /* how many of n are of this round */
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

/* The quantile of step times for this share: the beginning of its bucket. */
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

/* Extrapolates the tail of the distribution: the factor from p90 to p99 (or p99 to p99.9), applied HANG_TAIL times. */
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

#define SECOND_NS INT64_C(1000000000)
#define LOOK_NS SECOND_NS        /* between two looks while a decision is pending */
#define IDLE_NS (60 * SECOND_NS) /* while nobody reports anything */

int hang_parse(const char *text, void *field, struct err *e)
{
    struct hang_options *o = field;
    double seconds = 0;
    struct err why;
    *o = (struct hang_options){.off = strcmp(text, "off") == 0};
    if (o->off || strcmp(text, "auto") == 0)
        return 0;
    if (parse_seconds(text, "", &seconds, &why) < 0 || seconds < 0.1 || seconds > 7 * 86400)
        return err_set(e, ERR_USAGE, "expected auto, off or a time from 100ms to 7d");
    o->fixed_ns = (int64_t)(seconds * 1e9);
    return 0;
}

int hang_parse_witness(const char *text, void *field, struct err *e)
{
    double seconds = (double)WITNESS_QUIET_NS / 1e9;
    struct err why;
    const bool off = strcmp(text, "off") == 0, timed = strncmp(text, "ras:", 4) == 0;
    if (!off && !timed && strcmp(text, "ras") != 0)
        return err_set(e, ERR_USAGE, "expected ras, ras:SECONDS or off");
    if (timed && (parse_seconds(text + 4, "", &seconds, &why) < 0 || seconds < 1 || seconds > 86400))
        return err_set(e, ERR_USAGE, "expected ras: and a time from 1 to 86400 seconds");
    *(int64_t *)field = off ? 0 : (int64_t)(seconds * 1e9);
    return 0;
}

void hang_init(struct hang *h, const struct hang_options *o)
{
    memset(h, 0, sizeof *h);
    h->o = *o;
}

void hang_begin_round(struct hang *h, int64_t now)
{
    h->round_ns = h->excused_ns = now;
}

void hang_excuse(struct hang *h, int64_t now)
{
    h->excused_ns = now;
}

static uint32_t phase_of(const struct hang_worker *w)
{
    const uint32_t phase = atomic_load(&w->page->phase);
    return phase < CRUN_PAGE_PHASES ? phase : CRUN_PHASE_PAUSED; /* a phase of a later library is not judged */
}

static bool tells(const struct hang_worker *w)
{
    if (w->gone || !w->page || !atomic_load(&w->page->attached))
        return false;
    return hang_progressed(w) || phase_of(w) != CRUN_PHASE_STEP;
}

bool hang_tells(const struct hang_worker *w, int n)
{
    for (int i = 0; i < n; i++)
        if (tells(&w[i]))
            return true;
    return false;
}

/* --- who waits since when */

/* The state of all workers together. */
struct scene {
    bool frozen;         /* somebody is paused or debugged */
    bool any_progress;   /* somebody has made a step */
    bool held;           /* a worker is in a phase that others wait for */
    int64_t released_ns; /* the last such phase ended */
    int telling;
    uint64_t keeps;                          /* the newest state that a worker keeps, + 1; 0: none does */
    struct hang_budget of[CRUN_PAGE_PHASES]; /* computed for phases that somebody is in */
};

/* The phase to judge a worker by. Before its first step it is starting, whatever it reports. */
static uint32_t judged_phase(const struct hang_worker *w)
{
    const uint32_t phase = phase_of(w);
    return phase == CRUN_PHASE_STEP && !hang_progressed(w) ? CRUN_PHASE_STARTING : phase;
}

static struct scene survey(const struct hang *h, const struct hang_worker *w, int n)
{
    struct scene s = {.telling = 0};
    for (int i = 0; i < n; i++) {
        s.frozen = s.frozen || (!w[i].gone && w[i].traced);
        if (!tells(&w[i]))
            continue;
        const uint32_t phase = judged_phase(&w[i]);
        const uint64_t keeps = atomic_load(&w[i].page->keeps);
        s.keeps = keeps > s.keeps ? keeps : s.keeps;
        s.telling++;
        s.any_progress = s.any_progress || hang_progressed(&w[i]);
        s.frozen = s.frozen || phase == CRUN_PHASE_PAUSED;
        if (phase == CRUN_PHASE_STEP)
            s.released_ns = hang_later(s.released_ns, atomic_load(&w[i].page->phase_ns));
        else if (phase != CRUN_PHASE_STARTING)
            s.held = true;
        if (s.of[phase].eager_ns == 0)
            s.of[phase] = hang_budget(h, w, n, phase);
    }
    return s;
}

/* Since when a worker has been in its present step or phase. Negative: it is not judged now. */
static int64_t since(const struct hang *h, const struct scene *s, const struct hang_worker *w)
{
    if (s->frozen || !tells(w))
        return -1;
    const int64_t entered = hang_later(h->excused_ns, atomic_load(&w->page->phase_ns));
    switch (judged_phase(w)) {
    case CRUN_PHASE_STARTING: /* -1 (not judged) if it reports no steps although others do: it is at work, too */
        return s->any_progress && phase_of(w) == CRUN_PHASE_STEP ? -1 : hang_later(entered, h->round_ns);
    case CRUN_PHASE_STEP:
        if (s->held && !w->stopped)
            return -1;
        return hang_later(hang_later(entered, s->released_ns), atomic_load(&w->page->last_step_ns));
    default:
        return hang_later(entered, atomic_load(&w->page->last_step_ns));
    }
}

/* Must the worker be spared, because it has a state of the job in memory? */
static bool is_to_live(const struct hang *h, const struct hang_worker *w)
{
    return !h->spared && w->page && atomic_load(&w->page->keeps) != 0;
}

/* The time allowed to a worker that is judged. A node with only new workers should end the round before a node whose
 * workers have state. */
static struct hang_budget budget_of(const struct hang *h, const struct scene *s, const struct hang_worker *w)
{
    struct hang_budget b = s->of[judged_phase(w)];
    if (h->o.several_nodes && judged_phase(w) == CRUN_PHASE_STARTING && is_to_live(h, w))
        b.patient_ns *= 2;
    return b;
}

static bool over(const struct hang *h, const struct scene *s, const struct hang_worker *w, int64_t now, bool eager)
{
    const int64_t from = since(h, s, w);
    if (from < 0)
        return false;
    const struct hang_budget b = budget_of(h, s, w);
    const int64_t may = eager ? b.eager_ns : b.patient_ns;
    return may != INT64_MAX && now - from >= may;
}

bool hang_due(const struct hang *h, int64_t now, const struct hang_worker *w, int n)
{
    const struct scene s = survey(h, w, n);
    for (int i = 0; i < n; i++)
        if (over(h, &s, &w[i], now, true))
            return true;
    return false;
}

int64_t hang_next(const struct hang *h, int64_t now, const struct hang_worker *w, int n)
{
    const struct scene s = survey(h, w, n);
    int64_t next = now + IDLE_NS;
    if (s.telling == 0 && h->o.fixed_ns)
        next = hang_sooner(next, now + quiet_look_ns(h->o.fixed_ns));
    for (int i = 0; i < n; i++) {
        const int64_t from = since(h, &s, &w[i]);
        if (!tells(&w[i]))
            continue;
        const struct hang_budget b = budget_of(h, &s, &w[i]);
        if (from < 0 ||
            (hang_progressed(&w[i]) && b.eager_ns == HANG_UNKNOWN_NS && !h->o.fixed_ns)) /* may change soon */
            next = hang_sooner(next, now + LOOK_NS);
        else if (now - from < b.eager_ns)
            next = hang_sooner(next, from + b.eager_ns);
        else
            next = hang_sooner(next, hang_sooner(now + LOOK_NS, hang_later(from + b.patient_ns, now)));
    }
    return next;
}

/* --- the verdict */

struct place {
    uint32_t phase;
    uint64_t step;
};

static struct place place_of(const struct hang_worker *w)
{
    return (struct place){judged_phase(w), hang_progressed(w) ? atomic_load(&w->page->step) : 0};
}

static bool same_place(const struct hang_worker *w, const struct place *p)
{
    const struct place at = place_of(w);
    return at.phase == p->phase && at.step == p->step;
}

static void place_text(const struct place *p, char *out, size_t cap)
{
    switch (p->phase) {
    case CRUN_PHASE_STARTING:
        snprintf(out, cap, "before its first step");
        break;
    case CRUN_PHASE_STEP:
        snprintf(out, cap, "at step %" PRIu64, p->step);
        break;
    default:
        snprintf(out, cap, "in %s after step %" PRIu64, crun_phase_name((enum crun_phase)p->phase), p->step);
    }
}

/* Is a more to blame than b? Stopped workers come first, then those without state, then those over their time; among
 * these the one that is furthest behind. */
static bool blame_before(const struct hang *h, const struct hang_worker *a, bool a_over, const struct hang_worker *b,
                         bool b_over)
{
    if (a->stopped != b->stopped)
        return a->stopped;
    if (is_to_live(h, a) != is_to_live(h, b))
        return is_to_live(h, b);
    if (a_over != b_over)
        return a_over;
    return place_of(a).step < place_of(b).step;
}

struct rest {
    const struct hang_worker *blamed;
    const struct place *where; /* NULL: anywhere */
};

static bool in_rest(const struct hang_worker *w, const struct rest *r)
{
    return w != r->blamed && tells(w) && (!r->where || same_place(w, r->where));
}

static bool all_in_one_place(const struct rest *r, const struct hang_worker *w, int n, struct place *ret)
{
    bool first = true;
    for (int i = 0; i < n; i++) {
        if (!in_rest(&w[i], r))
            continue;
        if (first)
            *ret = place_of(&w[i]);
        else if (!same_place(&w[i], ret))
            return false;
        first = false;
    }
    return !first;
}

static size_t describe_others(const struct rest *r, const struct hang_worker *w, int n, char *out, size_t cap)
{
    char ranks[160], where[64];
    struct place p;
    if (all_in_one_place(r, w, n, &p)) {
        place_text(&p, where, sizeof where);
        return (size_t)snprintf(out, cap, "; all others wait %s", where);
    }
    size_t len = 0;
    for (int i = 0; i < n && len < cap; i++) { /* each place once, by its first rank */
        const struct place here = w[i].page ? place_of(&w[i]) : (struct place){0};
        struct rest at = {r->blamed, &here};
        bool listed = !in_rest(&w[i], &at);
        for (int k = 0; k < i && !listed; k++)
            listed = in_rest(&w[k], &at);
        if (listed)
            continue;
        place_text(&here, where, sizeof where);
        struct ranges in = {.out = ranks, .cap = sizeof ranks};
        for (int k = i; k < n; k++)
            if (in_rest(&w[k], &at))
                ranges_add(&in, w[k].rank);
        const bool many = strpbrk(ranks, ",-");
        len += (size_t)snprintf(out + len, cap - len, "; rank%s %s wait%s %s", many ? "s" : "", ranks, many ? "" : "s",
                                where);
    }
    return len;
}

static void explain(const struct hang *h, const struct scene *s, int64_t now, const struct hang_worker *w, int n,
                    const struct hang_worker *blamed, struct hang_verdict *ret)
{
    const struct place p = place_of(blamed);
    const struct rest rest = {blamed, NULL};
    struct place others;
    const int64_t from = since(h, s, blamed);
    const double seconds = (double)(now - (from < 0 ? h->excused_ns : from)) / 1e9;
    place_text(&p, ret->where, sizeof ret->where);
    ret->rank = blamed->rank;
    ret->all =
        !blamed->stopped && s->telling > 1 && all_in_one_place(&rest, w, n, &others) && same_place(blamed, &others);
    ret->spares = !h->spared && s->keeps && !is_to_live(h, blamed);
    if (ret->all) {
        const uint64_t step = s->keeps - 1;
        snprintf(ret->cause, sizeof ret->cause, "all ranks %s hung %s", ret->spares ? "without state" : "of a node",
                 ret->where);
        const int len = snprintf(ret->text, sizeof ret->text, "no rank has progressed for %.1f s: all %d stand %s",
                                 seconds, s->telling + !tells(blamed), ret->where);
        if (ret->spares)
            snprintf(ret->text + len, sizeof ret->text - (size_t)len,
                     "; those that have the state of step %" PRIu64 " are kept", step);
        return;
    }
    snprintf(ret->cause, sizeof ret->cause, "rank %d hung %s", blamed->rank, ret->where);
    size_t len = (size_t)snprintf(ret->text, sizeof ret->text, "rank %d has stood %s for %.1f s%s", blamed->rank,
                                  ret->where, seconds, blamed->stopped ? ", stopped by a signal" : "");
    if (s->telling > 1)
        describe_others(&rest, w, n, ret->text + len, sizeof ret->text - len);
}

bool hang_judge(struct hang *h, int64_t now, const struct hang_worker *w, int n, struct hang_verdict *ret)
{
    const struct scene s = survey(h, w, n);
    const struct hang_worker *blamed = NULL;
    bool any = false, blamed_over = false;
    for (int i = 0; i < n; i++) {
        const bool is_over = over(h, &s, &w[i], now, w[i].stopped);
        any = any || is_over;
        /* a worker whose page reports nothing, but for which workers that keep a state may wait */
        const bool awaited = !h->spared && s.keeps && !w[i].gone && w[i].page;
        if (!tells(&w[i]) && !awaited)
            continue;
        if (!blamed || blame_before(h, &w[i], is_over, blamed, blamed_over)) {
            blamed = &w[i];
            blamed_over = is_over;
        }
    }
    if (!any)
        return false;
    explain(h, &s, now, w, n, blamed, ret);
    h->spared = ret->spares;
    return true;
}
