/* Which of cuDNN's engines computes a graph, which of cuBLASLt's algorithms a product, on this card: candidates are
 * tried (trial.h) on the plan's own buffers, once a shape, and the fastest that is proven is chosen. The cache on disk,
 * a checkpoint and rank 0's list keep what was chosen and what was barred, so that the next run, a resumed one and the
 * other ranks need not ask again; they prove it once more.
 *
 * A fused graph none of whose engines is left is left out of the ladder (cudnn_bar()). Timing ends with its budget, or
 * when the process is to stop: the graphs that are left take the first engine that is proven.
 *
 * A product none of whose algorithms is left, or that cannot be tried, takes what cuBLASLt names first; so does each,
 * unproven, where nothing is tuned and no bits must repeat. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/device/cuda/engines/trial.h"
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

enum { CANDIDATES = 8, TELL_EVERY_MS = 5000 };

struct tuner {
    struct cuda_plan *pl;
    struct trial trial;
    int64_t told_ns;
    int graphs, done, untimed;
    bool told; /* of its progress, and so of its end */
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
    return tune_may_time(t->pl->cuda, t->trial.began_ns);
}

/* What takes longer than a moment is told to whoever waits; the rest is for the log. */
static void tell(struct tuner *t, bool end)
{
    const int64_t now = clock_ns(), every_ms = t->pl->cuda->tell_ms ? t->pl->cuda->tell_ms : TELL_EVERY_MS;
    const bool due = now - t->told_ns >= every_ms * 1000000;
    if (t->trial.engines == 0 || (!end && !due))
        return;
    t->told_ns = now;
    t->told = t->told || !end;
    log_line(t->told ? LOG_WARN : LOG_INFO, "cudnn",
             "%s %d of %d graphs in %.1f s: %d engines proven, %d barred in these trials, %d graphs not timed",
             end ? "tuned" : "tuning", t->done, t->graphs, (double)(now - t->trial.began_ns) / 1e9,
             t->trial.engines - t->trial.barred, t->trial.barred, t->untimed);
}

/* --- all of a graph's */

/* Candidates that do not fit into what memory is left are passed over, largest workspace first. */
static int fit_workspace(struct tuner *t, struct cudnn_plan **all, int *n, struct err *e)
{
    int rc;
    while ((rc = trial_workspace(&t->trial, all, *n, e)) == -ENOMEM && *n > 1) {
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
    log_line(t->trial.restless ? LOG_INFO : LOG_WARN, "cudnn",
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
        const int rc = trial_engine(&t->trial, d, &us, &lost, &why);
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
        fits = prove_begin(&t->trial.prover, &d, &why);
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
    int rc = trial_workspace(&t->trial, &d.plan, 1, e);
    if (rc == 0)
        rc = prove_begin(&t->trial.prover, &d, e);
    if (rc == -ENOMEM)
        return 0; /* the plan's own workspace will not fit either, and says more */
    TRY(rc);
    rc = trial_engine(&t->trial, &d, NULL, &lost, &why);
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
    struct tuner t = {.pl = pl, .told_ns = clock_ns()};
    if (!pl->cuda->dnn)
        return 0;
    int rc = trial_open(&t.trial, pl, e);
    if (rc == 0)
        rc = tune_all(&t, e);
    tell(&t, true);
    trial_close(&t.trial);
    pl->cuda->tuned_ns += clock_ns() - t.trial.began_ns;
    return rc;
}
