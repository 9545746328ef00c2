/* Which of cuDNN's engines computes a graph, which of cuBLASLt's algorithms a product, on this card: candidates are
 * proven (prove.h), then timed, on the plan's own buffers, once a shape. The cache on disk, a checkpoint and rank 0's
 * list keep what was chosen and what was barred, so that the next run, a resumed one and the other ranks need not ask
 * again; they prove it once more.
 *
 *   graph -> inputs of chance, what they ought to give
 *   engine -> noted as tried -> runs once -> compared -> timed -> the fastest is chosen
 *                                (--deterministic: runs again, to the same bits)
 *
 * An engine that fails or computes something else is barred; a fused graph none of whose engines is left is left out of
 * the ladder (cudnn_bar()); one that takes the process with it is barred by the next (cudnn_trial_begin()). Timing ends
 * with its budget, or when the process is to stop: the graphs that are left take the first engine that is proven.
 *
 * A product none of whose algorithms is left, or that cannot be tried, takes what cuBLASLt names first; so does each,
 * unproven, where nothing is tuned and no bits must repeat. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/device/cuda/engines/prove.h"
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

enum { CANDIDATES = 8, REPEATS = 5, MORE_RUNS = 4 /* that must give the same bits */, TELL_EVERY_MS = 5000 };

struct tuner {
    struct cuda_plan *pl;
    struct gpu_event *from, *to;
    void *workspace;
    size_t workspace_bytes;
    struct prover prover;
    int64_t began_ns, told_ns;
    int graphs, done, untimed, engines, barred;
    bool told;     /* of its progress, and so of its end */
    bool restless; /* the engine tried last gave other bits when it ran again */
};

/* --- time */

bool tune_may_time(const struct cuda *c, int64_t began_ns)
{
    const int64_t spent = c->tuned_ns + (began_ns ? clock_ns() - began_ns : 0);
    return c->options.tune && !(c->options.stopping && c->options.stopping()) &&
           (c->options.tune_seconds <= 0 || (double)spent < c->options.tune_seconds * 1e9);
}

static bool may_time(const struct tuner *t)
{
    return tune_may_time(t->pl->cuda, t->began_ns);
}

/* What takes longer than a moment is told to whoever waits; the rest is for the log. */
static void tell(struct tuner *t, bool end)
{
    const int64_t now = clock_ns(), every_ms = t->pl->cuda->tell_ms ? t->pl->cuda->tell_ms : TELL_EVERY_MS;
    const bool due = now - t->told_ns >= every_ms * 1000000;
    if (t->engines == 0 || (!end && !due))
        return;
    t->told_ns = now;
    t->told = t->told || !end;
    log_line(t->told ? LOG_WARN : LOG_INFO, "cudnn",
             "%s %d of %d graphs in %.1f s: %d engines proven, %d barred in these trials, %d graphs not timed",
             end ? "tuned" : "tuning", t->done, t->graphs, (double)(now - t->began_ns) / 1e9, t->engines - t->barred,
             t->barred, t->untimed);
}

static int enqueue(struct tuner *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    if (!cudnn_pattern_product(d->pattern))
        return g->ops->dnn(g, t->pl->cuda->compute, d, t->workspace, e);
    const struct gpu_gemm m = graph_gemm(d);
    return g->ops->gemm(g, t->pl->cuda->compute, &m, t->workspace, t->workspace_bytes, e);
}

static int run_once(struct tuner *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    TRY(enqueue(t, d, e));
    return g->ops->stream_sync(g, t->pl->cuda->compute, e);
}

/* Its kernels are loaded by now, and what it reads is no longer 0, on which kernels run faster. */
static int time_engine(struct tuner *t, const struct gpu_dnn *d, double *ret_us, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    struct gpu_stream *s = t->pl->cuda->compute;
    float ms;
    TRY(g->ops->event_record(g, t->from, s, e));
    for (int i = 0; i < REPEATS; i++)
        TRY(enqueue(t, d, e));
    TRY(g->ops->event_record(g, t->to, s, e));
    TRY(g->ops->event_sync(g, t->to, e));
    TRY(g->ops->event_ms(g, t->from, t->to, &ms, e));
    *ret_us = 1000.0 * (double)ms / REPEATS;
    return 0;
}

/* --- one engine */

/* Sums whose order is left to chance mostly differ by the second run, in graphs of few blocks perhaps later. Nothing of
 * a run before is left where it writes. */
static int run_again(struct tuner *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    const size_t bytes = cudnn_plan_workspace(d->plan);
    TRY(prove_remember(&t->prover, d, e));
    for (int i = 0; i < MORE_RUNS; i++) {
        TRY(prove_poison(&t->prover, d, e));
        if (bytes > 0)
            TRY(g->ops->fill(g, t->pl->cuda->compute, t->workspace, 0xff, bytes, e));
        TRY(run_once(t, d, e));
        const int rc = prove_same(&t->prover, d, e);
        t->restless = rc == ERR_MISMATCH;
        TRY(rc);
    }
    return 0;
}

/* ret_us: NULL, or its time; 0 where there is none left for that. */
static int prove_and_time(struct tuner *t, const struct gpu_dnn *d, double *ret_us, struct err *e)
{
    const char *engine = cudnn_plan_name(d->plan);
    char graph[128];
    double ratio = 0, us = 0;
    cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
    log_debug("cudnn", "try %s %s ws=%zu", graph, engine, cudnn_plan_workspace(d->plan));
    TRY(prove_poison(&t->prover, d, e));
    TRY(run_once(t, d, e));
    TRY(prove_result(&t->prover, d, &ratio, e));
    if (cudnn_deterministic(t->pl->cuda->dnn))
        TRY(run_again(t, d, e));
    if (ret_us && may_time(t))
        TRY(time_engine(t, d, &us, e));
    if (ret_us)
        *ret_us = us;
    log_debug("cudnn", "ran %s %s %.1f us, off by %.2f of what is allowed", graph, engine, us, ratio);
    return 0;
}

/* Finalised, but it does not do on this card: another one may. Not so where the card itself is lost, which then fails
 * in everything. */
static bool card_still_works(const struct tuner *t, int rc)
{
    struct gpu *g = t->pl->cuda->gpu;
    return rc == -ENOTSUP || rc == -ENOMEM || rc == ERR_MISMATCH ||
           (rc == -EIO && g->ops->stream_sync(g, t->pl->cuda->compute, NULL) == 0);
}

/* 0; or why it does not do: barred then, but for want of memory, which may be there the next time. */
static int try_engine(struct tuner *t, const struct gpu_dnn *d, double *ret_us, bool *ret_lost, struct err *why)
{
    struct cudnn *dnn = t->pl->cuda->dnn;
    if (!(t->pl->cuda->options.stopping && t->pl->cuda->options.stopping()))
        cudnn_trial_begin(dnn, d->plan); /* who stops may be killed: that is no fault of the engine */
    t->restless = false;
    const int rc = prove_and_time(t, d, ret_us, why);
    t->engines++;
    *ret_lost = rc < 0 && !card_still_works(t, rc);
    if (rc < 0 && rc != -ENOMEM) {
        t->barred++;
        if (t->restless) /* right, and no matter elsewhere */
            log_info("cudnn", "%s is barred for --deterministic: %s", cudnn_plan_name(d->plan), why->text);
        else if (rc == ERR_MISMATCH)
            log_warn("cudnn", "%s is wrong and never taken again: %s", cudnn_plan_name(d->plan), why->text);
        cudnn_bar_engine(dnn, d->plan, why->text, true);
    }
    cudnn_trial_end(dnn);
    return rc;
}

/* --- all of a graph's */

static int need_workspace(struct tuner *t, struct cudnn_plan *const *all, int n, struct err *e)
{
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = cudnn_plan_workspace(all[i]) > most ? cudnn_plan_workspace(all[i]) : most;
    if (most <= t->workspace_bytes)
        return 0;
    cuda_give(t->pl->cuda, t->workspace, t->workspace_bytes);
    t->workspace_bytes = 0;
    t->workspace = NULL;
    TRY(cuda_take(t->pl->cuda, most, &t->workspace, e));
    t->workspace_bytes = most;
    return 0;
}

/* Candidates that do not fit into what memory is left are passed over, largest workspace first. */
static int fit_workspace(struct tuner *t, struct cudnn_plan **all, int *n, struct err *e)
{
    int rc;
    while ((rc = need_workspace(t, all, *n, e)) == -ENOMEM && *n > 1) {
        int largest = 0;
        for (int i = 1; i < *n; i++)
            largest = cudnn_plan_workspace(all[i]) > cudnn_plan_workspace(all[largest]) ? i : largest;
        all[largest] = all[--*n];
    }
    return rc;
}

/* None of n engines does: one rung down from a fused graph, and no further from a plain one. Memory may suffice the
 * next time. */
static int go_one_rung_down(struct tuner *t, const struct gpu_dnn *d, int n, int rc, const char *why, struct err *e)
{
    char graph[128];
    cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
    err_set(e, rc, "none of %d engines for %s runs on this GPU: %s", n, graph, why);
    const bool product = cudnn_pattern_product(d->pattern);
    if (!cudnn_pattern_fused(d->pattern) && !product)
        return rc;
    log_line(t->restless ? LOG_INFO : LOG_WARN, "cudnn",
             "none of %d engines for %s runs on this GPU (%s); these layers %s", n, graph, why,
             product ? "take what cuBLASLt names first" : "go one rung down, with less fused");
    TRY(cudnn_bar(t->pl->cuda->dnn, d->pattern, &d->shape, false, why, rc != -ENOMEM, e));
    t->pl->fell = t->pl->fell || !product;
    return rc;
}

static int candidates(struct tuner *t, const struct gpu_dnn *d, struct cudnn_plan **ret, int cap, int *ret_n,
                      struct err *e)
{
    struct cuda *c = t->pl->cuda;
    return cudnn_pattern_product(d->pattern) ? product_candidates(c, d, ret, cap, ret_n, e)
                                             : cudnn_candidates(c->dnn, d->pattern, &d->shape, ret, cap, ret_n, e);
}

static void tell_product(const struct gpu_dnn *d, const struct cudnn_plan *best, double us, double first_us)
{
    char graph[128], first[32] = "is barred";
    cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
    if (first_us > 0)
        snprintf(first, sizeof first, "takes %.1f us", first_us);
    log_info("cublaslt", "%s: %.1f us by %s; what the heuristics name first %s", graph, us, cudnn_plan_name(best),
             first);
}

/* The fastest that does, or the first where nothing is to be timed. d's inputs are there. */
static int choose_engine(struct tuner *t, struct gpu_dnn *d, struct cudnn_plan **all, int n, struct cudnn_plan **ret,
                         struct err *e)
{
    struct err why = {0};
    double best_us = 0, us = 0, first_us = 0;
    int failed = 0;
    bool lost;
    *ret = NULL;
    for (int i = 0; i < n && (!*ret || may_time(t)); i++) {
        d->plan = all[i];
        const int rc = try_engine(t, d, &us, &lost, &why);
        if (rc < 0 && lost)
            return err_set(e, rc, "%s", why.text);
        if (rc < 0) {
            failed = rc;
        } else if (!*ret || (us > 0 && us < best_us)) { /* 0: there was no time left to time it */
            *ret = all[i];
            best_us = us;
        }
        first_us = rc == 0 && i == 0 ? us : first_us;
    }
    if (!*ret)
        return go_one_rung_down(t, d, n, failed, why.text, e);
    t->untimed += best_us <= 0;
    if (cudnn_pattern_product(d->pattern) && best_us > 0)
        tell_product(d, *ret, best_us, first_us);
    cudnn_choose(t->pl->cuda->dnn, *ret, best_us);
    cudnn_plan_set_ran(*ret);
    return 0;
}

/* step: whose plan is wanted. */
static int tune_candidates(struct tuner *t, struct gpu_dnn *step, struct err *e)
{
    struct cudnn_plan *all[CANDIDATES];
    struct gpu_dnn d = *step;
    struct err why = {0};
    int n;
    TRY(candidates(t, &d, all, CANDIDATES, &n, e));
    int fits = fit_workspace(t, all, &n, &why);
    if (fits == 0)
        fits = prove_begin(&t->prover, &d, &why);
    if (fits == -ENOMEM && (cudnn_pattern_fused(d.pattern) || cudnn_pattern_product(d.pattern)))
        return go_one_rung_down(t, &d, n, fits, why.text, e);
    if (fits == -ENOMEM) {
        step->plan = all[0]; /* the least of them: take_workspace() says what the whole plan needs */
        return 0;
    }
    if (fits < 0)
        return err_set(e, fits, "%s", why.text);
    return choose_engine(t, &d, all, n, &step->plan, e);
}

/* Below a plain convolution there is no rung: where all candidates err there may be more of them. */
static int tune_graph(struct tuner *t, struct gpu_dnn *step, struct err *e)
{
    struct err more;
    int rc = tune_candidates(t, step, e);
    while (rc == ERR_MISMATCH && !cudnn_pattern_fused(step->pattern)) {
        const int next = tune_candidates(t, step, &more);
        if (next == -ENOTSUP) /* all are barred */
            return rc;
        rc = next < 0 ? err_set(e, next, "%s", more.text) : 0;
    }
    return rc;
}

/* What a cache, a checkpoint or rank 0 chose, or what is not to be timed, must be proven nevertheless. */
static int try_graph(struct tuner *t, struct gpu_dnn *step, struct err *e)
{
    struct gpu_dnn d = *step;
    struct err why = {0};
    const bool kept = cudnn_plan_kept(d.plan);
    bool lost;
    int rc = need_workspace(t, &d.plan, 1, e);
    if (rc == 0)
        rc = prove_begin(&t->prover, &d, e);
    if (rc == -ENOMEM)
        return 0; /* the plan's own workspace will not fit either, and says more */
    TRY(rc);
    rc = try_engine(t, &d, NULL, &lost, &why);
    if (rc == 0) {
        t->untimed += !cudnn_plan_measured(d.plan);
        cudnn_plan_set_ran(d.plan);
        return 0;
    }
    if (lost)
        return err_set(e, rc, "%s", why.text);
    if (kept)
        log_warn(
            "cudnn",
            "%s does not run on this GPU any more (%s); another plan is chosen, results may differ in the last bits",
            cudnn_plan_name(d.plan), why.text);
    rc = tune_graph(t, step, e);
    if (rc == -ENOTSUP && !t->pl->fell) /* there was no other engine */
        return go_one_rung_down(t, &d, 1, rc, why.text, e);
    return rc;
}

/* --- all of a plan's */

void tune_tell(const struct cuda_plan *pl)
{
    uint64_t all = 0xcbf29ce484222325; /* FNV-1a */
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++) {
        struct gpu_dnn product;
        const struct step *s = pl->steps[i];
        const struct gpu_dnn *d = s->kind == STEP_GEMM ? &product : &s->dnn;
        char text[320];
        if (!cuda_step_plan(s) || (s->kind == STEP_GEMM && !graph_of_gemm(&s->gemm, &product)))
            continue;
        const int used = snprintf(text, 160, "op %d: ", pl->steps[i]->op);
        cudnn_describe(d->pattern, &d->shape, text + used, 160);
        const size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, " by %s", cudnn_plan_name(d->plan));
        log_debug("cudnn", "%s", text);
        for (const char *c = text; *c; c++)
            all = (all ^ (uint8_t)*c) * 0x100000001b3;
        n++;
    }
    if (n > 0)
        log_info("cudnn", "the plan runs %d graphs, by engines %016" PRIx64, n, all);
}

static int tune_step(struct tuner *t, struct gpu_dnn *d, struct err *e)
{
    TRY(cudnn_find(t->pl->cuda->dnn, d->pattern, &d->shape, &d->plan, e));
    if (!cudnn_plan_kept(d->plan) && !cudnn_plan_ran(d->plan) && may_time(t))
        TRY(tune_graph(t, d, e));
    else if (!cudnn_plan_ran(d->plan))
        TRY(try_graph(t, d, e));
    t->done++;
    tell(t, false);
    return 0;
}

/* What the heuristics name first, as a choice that is kept. */
static int guess_product(struct tuner *t, struct gpu_dnn *d, struct err *e)
{
    int n;
    TRY(candidates(t, d, &d->plan, 1, &n, e));
    cudnn_choose(t->pl->cuda->dnn, d->plan, 0);
    if (!t->pl->cuda->options.tune && !cudnn_deterministic(t->pl->cuda->dnn))
        cudnn_plan_set_ran(d->plan);
    return 0;
}

static int look_at_product(struct tuner *t, const struct step *s, struct gpu_dnn *d, struct err *e)
{
    struct cuda *c = t->pl->cuda;
    struct product_memory lent;
    const bool known = cudnn_find(c->dnn, d->pattern, &d->shape, &d->plan, NULL) == 0,
               anew = !(known && cudnn_plan_kept(d->plan)) && may_time(t);
    if (!known && !anew)
        TRY(guess_product(t, d, e));
    if (d->plan && cudnn_plan_ran(d->plan))
        return 0;
    if (product_lend(c, s, d, &lent, NULL) < 0)
        return d->plan ? 0 : guess_product(t, d, e);
    const int rc = anew ? tune_graph(t, d, e) : try_graph(t, d, e);
    product_give(c, &lent);
    return rc;
}

/* Fails only where the card does. */
static int tune_product(struct tuner *t, struct step *s, struct err *e)
{
    struct cuda *c = t->pl->cuda;
    struct gpu_dnn d;
    struct err why = {0};
    if (!graph_of_gemm(&s->gemm, &d))
        return 0;
    int rc = look_at_product(t, s, &d, &why);
    s->gemm.plan = rc == 0 ? d.plan : NULL;
    if (rc < 0 && c->gpu->ops->stream_sync(c->gpu, c->compute, e) == 0) {
        log_debug("cublaslt", "%s: what the heuristics name first is taken", why.text);
        rc = 0;
    }
    t->done++;
    tell(t, false);
    return rc;
}

static int tune_all(struct tuner *t, struct err *e)
{
    struct cuda_plan *pl = t->pl;
    for (int i = 0; i < pl->nsteps; i++)
        t->graphs += pl->steps[i]->kind == STEP_DNN || pl->steps[i]->kind == STEP_GEMM;
    for (int i = 0; i < pl->nsteps; i++)
        if (pl->steps[i]->kind == STEP_DNN)
            TRY(tune_step(t, &pl->steps[i]->dnn, e));
    for (int i = 0; i < pl->nsteps; i++) /* what convolutions want comes first, of time and of memory */
        if (pl->steps[i]->kind == STEP_GEMM)
            TRY(tune_product(t, pl->steps[i], e));
    return 0;
}

int tune_plan(struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct tuner t = {.pl = pl, .prover = {.pl = pl}, .began_ns = clock_ns()};
    if (!pl->cuda->dnn)
        return 0;
    t.told_ns = t.began_ns;
    int rc = g->ops->event_open(g, true, &t.from, e);
    if (rc == 0)
        rc = g->ops->event_open(g, true, &t.to, e);
    if (rc == 0)
        rc = tune_all(&t, e);
    tell(&t, true);
    if (t.from)
        g->ops->event_close(g, t.from);
    if (t.to)
        g->ops->event_close(g, t.to);
    prove_finish(&t.prover);
    cuda_give(pl->cuda, t.workspace, t.workspace_bytes);
    pl->cuda->tuned_ns += clock_ns() - t.began_ns;
    return rc;
}
