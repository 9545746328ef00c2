/* Compares the rungs of ladder.h by the times of their steps, and tells how far a plan may climb. */
#include "worker/device/cuda/ladder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/device/cuda/plan.h"

enum { REPEATS = 5 };

/* Of an op: the convolution whose rung its steps belong to, and, of that convolution, what they take in each plan. */
struct seam_time {
    int prologue, stats; /* -1: to none */
    double us[SEAMS_LEVELS][2];
};
enum { OF_PROLOGUE, OF_STATS };

static struct cudnn_plan *known(const struct cuda_plan *pl, int conv, enum cudnn_pattern pattern)
{
    struct cudnn_plan *p = NULL;
    const struct cudnn_shape s = cuda_plan_shape(pl, conv);
    return cudnn_find(pl->cuda->dnn, pattern, &s, &p, NULL) == 0 ? p : NULL;
}

/* A rung whose engine was timed, and which has not been compared yet. */
static bool open_question(const struct cuda_plan *pl, int conv, enum cudnn_pattern pattern)
{
    const struct cudnn_plan *p = known(pl, conv, pattern);
    return p && cudnn_plan_measured(p) && !cudnn_plan_settled(p);
}

/* Which ops' steps make up a rung: all that would be other steps below it. Of the plan with all rungs. */
static int find_members(struct seams *s, const struct cuda_plan *pl, struct err *e)
{
    s->nops = pl->p->nops;
    s->all = calloc((size_t)s->nops + 1, sizeof *s->all);
    if (!s->all)
        return err_set(e, -ENOMEM, "no memory for the times of %d operations", s->nops);
    for (int i = 0; i < s->nops; i++)
        s->all[i].prologue = s->all[i].stats = -1;
    for (int i = pl->first_op; i < pl->end_op; i++) {
        const struct rung *r = &pl->rungs[i];
        const int fwd = pl->p->ops[i].fwd;
        if (pl->p->ops[i].kind == OP_CONV && r->stats >= 0)
            s->all[i].stats = s->all[r->stats].stats = i;
        if (pl->p->ops[i].kind == OP_CONV && r->prologue >= 0)
            s->all[i].prologue = s->all[r->prologue].prologue = i;
        else if (r->prologue >= 0)
            s->all[i].prologue = fwd;
        if (pl->p->ops[i].kind == OP_CONV_BWD_DATA && r->drelu >= 0)
            s->all[i].prologue = fwd;
        if (pl->p->ops[i].kind == OP_BN_BWD && r->drelu >= 0)
            s->all[i].prologue = pl->p->ops[r->drelu].fwd;
    }
    return 0;
}

static bool any_question(const struct cuda_plan *pl)
{
    if (!pl->cuda->dnn || !tune_may_time(pl->cuda, 0))
        return false;
    for (int i = pl->first_op; i < pl->end_op; i++) {
        const struct rung *r = &pl->rungs[i];
        if (pl->p->ops[i].kind == OP_CONV &&
            ((r->prologue >= 0 && open_question(pl, i, DNN_SBR_CONV_STATS)) ||
             (r->prologue < 0 && r->stats >= 0 && open_question(pl, i, DNN_CONV_STATS))))
            return true;
    }
    return false;
}

/* --- times */

static int time_step(struct cuda_plan *pl, struct step *s, struct gpu_event *const at[2], double *ret_us, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    const struct variant_key v = {0};
    float ms;
    TRY(cuda_plan_run_step(pl, s, &v, NULL, e)); /* loads its kernels */
    TRY(g->ops->event_record(g, at[0], pl->cuda->compute, e));
    for (int i = 0; i < REPEATS; i++)
        TRY(cuda_plan_run_step(pl, s, &v, NULL, e));
    TRY(g->ops->event_record(g, at[1], pl->cuda->compute, e));
    TRY(g->ops->event_sync(g, at[1], e));
    TRY(g->ops->event_ms(g, at[0], at[1], &ms, e));
    *ret_us = 1000.0 * (double)ms / REPEATS;
    return 0;
}

/* Gradients are unpacked together, whoever made them; sums are gathered only where ranks or weights ask for it. */
static bool counts(const struct step *s)
{
    return s->op >= 0 && !s->gathers && (s->kind == STEP_DNN || (s->kind == STEP_KERNEL && s->kernel != KERNEL_UNPACK));
}

static int time_steps(struct seams *s, struct cuda_plan *pl, struct gpu_event *const at[2], struct err *e)
{
    for (int i = 0; i < pl->nsteps; i++) {
        double us;
        if (!counts(pl->steps[i]))
            continue;
        const struct seam_time *of = &s->all[pl->steps[i]->op];
        if (of->prologue < 0 && of->stats < 0)
            continue;
        TRY(time_step(pl, pl->steps[i], at, &us, e));
        if (of->prologue >= 0)
            s->all[of->prologue].us[s->next][OF_PROLOGUE] += us;
        if (of->stats >= 0)
            s->all[of->stats].us[s->next][OF_STATS] += us;
    }
    return 0;
}

static int time_plan(struct seams *s, struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct gpu_event *at[2] = {0};
    int rc = g->ops->event_open(g, true, &at[0], e);
    if (rc == 0)
        rc = g->ops->event_open(g, true, &at[1], e);
    if (rc == 0)
        rc = time_steps(s, pl, at, e);
    for (int i = 0; i < 2; i++)
        if (at[i])
            g->ops->event_close(g, at[i]);
    return rc;
}

/* --- verdicts */

static bool same_shape(const struct cuda_plan *pl, int a, int b)
{
    const struct cudnn_shape x = cuda_plan_shape(pl, a), y = cuda_plan_shape(pl, b);
    return cudnn_same_shape(&x, &y);
}

/* All convolutions of this one's shape that have the rung, together. */
static double sum_of(const struct seams *s, const struct cuda_plan *pl, int conv, int which, enum seams_allowed level)
{
    double us = 0;
    for (int i = 0; i < s->nops; i++) {
        const int of = which == OF_PROLOGUE ? s->all[i].prologue : s->all[i].stats;
        if (of == i && same_shape(pl, i, conv))
            us += s->all[i].us[level][which];
    }
    return us;
}

static void settle(struct cuda_plan *pl, int conv, enum cudnn_pattern pattern)
{
    struct cudnn_plan *p = known(pl, conv, pattern);
    if (p && cudnn_plan_measured(p) && !cudnn_plan_settled(p))
        cudnn_settle(pl->cuda->dnn, p);
}

/* A rung of `pattern`, as timed in the plan with it and in the one without. */
static int judge(struct seams *s, struct cuda_plan *pl, int conv, int which, enum cudnn_pattern pattern, struct err *e)
{
    const enum seams_allowed with = which == OF_PROLOGUE ? SEAMS_ALL : SEAMS_NO_PROLOGUE, without = with + 1;
    const double fused = sum_of(s, pl, conv, which, with), plain = sum_of(s, pl, conv, which, without);
    const struct cudnn_shape shape = cuda_plan_shape(pl, conv);
    struct cudnn_plan *p = known(pl, conv, pattern);
    char graph[128], why[160];
    if (!p || cudnn_plan_settled(p) || !cudnn_plan_measured(p) || fused <= 0 || plain <= 0)
        return 0;
    cudnn_describe(pattern, &shape, graph, sizeof graph);
    snprintf(why, sizeof why, "%.0f us with what belongs to it, %.0f us by the rung below", fused, plain);
    log_info("cudnn", "%s: %s", graph, why);
    if (fused > plain)
        return cudnn_bar(pl->cuda->dnn, pattern, &shape, true, why, true, e);
    settle(pl, conv, pattern);
    return 0;
}

/* A prologue makes sums, too: where one of this shape has won, the rung below it stands by. */
static bool stands_by(const struct seams *s, const struct cuda_plan *pl, int conv)
{
    for (int i = 0; i < s->nops; i++)
        if (s->all[i].prologue == i && pl->p->ops[i].kind == OP_CONV && same_shape(pl, i, conv) &&
            known(pl, i, DNN_SBR_CONV_STATS))
            return true;
    return false;
}

static int judge_all(struct seams *s, struct cuda_plan *pl, int which, enum cudnn_pattern pattern, struct err *e)
{
    for (int i = 0; i < s->nops; i++) {
        const int of = which == OF_PROLOGUE ? s->all[i].prologue : s->all[i].stats;
        if (of != i)
            continue;
        if (which == OF_STATS && stands_by(s, pl, i))
            settle(pl, i, pattern);
        else
            TRY(judge(s, pl, i, which, pattern, e));
    }
    return 0;
}

/* --- the order of things */

int seams_look(struct seams *s, struct cuda_plan *pl, bool *ret_again, struct err *e)
{
    *ret_again = false;
    if (s->done || (s->next == SEAMS_ALL && !any_question(pl)))
        return 0;
    if (!s->all)
        TRY(find_members(s, pl, e));
    const int64_t began = clock_ns();
    const int rc = time_plan(s, pl, e);
    pl->cuda->tuned_ns += clock_ns() - began;
    TRY(rc);
    if (s->next == SEAMS_NO_PROLOGUE)
        TRY(judge_all(s, pl, OF_PROLOGUE, DNN_SBR_CONV_STATS, e));
    if (s->next == SEAMS_NONE)
        TRY(judge_all(s, pl, OF_STATS, DNN_CONV_STATS, e));
    s->next++;
    if (s->next == SEAMS_LEVELS || !tune_may_time(pl->cuda, 0))
        seams_give_up(s);
    *ret_again = true;
    return 0;
}

void seams_give_up(struct seams *s)
{
    s->next = SEAMS_ALL;
    s->done = true;
}

void seams_finish(struct seams *s)
{
    free(s->all);
}
