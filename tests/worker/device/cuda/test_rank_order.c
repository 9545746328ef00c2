/* No options make ranks that train together wait for each other in a circle: the engine's own steps over a GPU that is
 * not there are recorded for each rank and played against each other (rank_order.h), for all options that change what
 * is enqueued. What happens between steps is written out below as worker/train/ does it; as it once did, the
 * circle that this led to is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/rank_order.h"
#include "tests/worker/run/exact_net.h"
#include "tests/worker/run/step_rig.h"
#include "worker/device/cuda/cuda.h"
#include "worker/parallel/layout.h"
#include "worker/pipeline/stage_impl.h"
#include "worker/state/replicas.h"

enum { STEPS = 6, BATCH = 8 };

static const struct optimizer optimizers[] = {{.rule = UPDATE_SGD, .momentum = 0.9},
                                              {.rule = UPDATE_NESTEROV, .momentum = 0.9, .clip_norm = 0.3, .ema = 0.8},
                                              {.rule = UPDATE_LARS, .momentum = 0.9, .trust = 0.02, .clip_norm = 0.5}};

enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* Pipelines: none, then all there are. */
static const struct order_line {
    struct pipeline order;
    bool recompute;
} lines[] = {{{0}, false},
             {{PIPELINE_GPIPE, 2, 3, 1}, false},
             {{PIPELINE_GPIPE, 3, 4, 1}, true},
             {{PIPELINE_1F1B, 2, 4, 1}, false},
             {{PIPELINE_1F1B, 2, 2, 1}, true},
             {{PIPELINE_1F1B, 4, 4, 1}, false},
             {{PIPELINE_INTERLEAVED, 2, 4, 2}, false},
             {{PIPELINE_INTERLEAVED, 2, 2, 2}, true}};

/* What changes the order of work; which value of each. ZERO from ZERO_SECONDS on: levels 1 to 3 with second owners, for
 * which ranks confirm their sums. */
enum axis { WORLD, TENSOR, SPLIT, ZERO, PARTS, SYNC, HALF, RULE, GRAPHS, REPLICAS, SAVES, LINE, NET, AXES };

/* Faults that are sown, of the last rank. */
enum mutant {
    RIGHT,
    OLD,          /* of all ranks: replicas are compared when a step's result is taken, and only savers take it early */
    ASKS_EARLY,   /* of all ranks: messages are asked for as soon as there is memory for them */
    ONE_PLACE,    /* likewise, and those of all stages go over one communicator */
    ON_COMPUTE,   /* likewise, and receives are enqueued where passes are computed */
    ASKS_IN_TURN, /* of all ranks: a message is asked for when it is needed */
    OTHER_READS,  /* parameters are gathered in another order */
    GATHERED_TWICE, /* a piece is gathered once more */
};

enum { ZERO_SECONDS = 4, ZERO_VALUES = ZERO_SECONDS + 3 };

struct point {
    int at[AXES];
    bool short_step; /* the last step lacks an image; convolutions take sums for batch norms along */
    enum mutant mutant;
};

static int world_of(const struct point *p)
{
    return p->at[WORLD] + 1;
}

static int tensor_of(const struct point *p)
{
    return p->at[TENSOR] + 1;
}

static bool has_seconds(const struct point *p)
{
    return p->at[ZERO] >= ZERO_SECONDS;
}

static int zero_of(const struct point *p)
{
    return has_seconds(p) ? p->at[ZERO] - ZERO_SECONDS + 1 : p->at[ZERO];
}

static const struct order_line *line_of(const struct point *p)
{
    return &lines[p->at[LINE]];
}

static int stages_of(const struct point *p)
{
    return line_of(p)->order.stages > 1 ? line_of(p)->order.stages : 1;
}

/* --- a rank */

struct rank {
    const struct point *p;
    const struct step_rig *rig;
    struct comm *all;
    int64_t updates;
};

static bool due(int every, int64_t updates)
{
    return every && updates % every == 0;
}

static bool replicas_due(const struct rank *r, int64_t updates)
{
    return due(r->p->at[REPLICAS] ? 2 : 0, updates);
}

/* Rank 0 writes; where ranks have parts, all of them do. */
static bool saves(const struct rank *r, int64_t updates)
{
    static const int every[] = {0, 2, 3};
    return due(every[r->p->at[SAVES]], updates) && (r->all->rank == 0 || ownership_is_spread(&r->rig->own));
}

static int account(struct rank *r, const struct step_result *res, struct err *e)
{
    if (!res->done)
        return 0;
    r->updates++;
    return r->p->mutant == OLD && replicas_due(r, r->updates) ? replicas_check(r->rig->step.state, r->all, true, e) : 0;
}

static bool place_ahead(const struct rank *r)
{
    const int64_t next = r->updates + 1;
    return next == STEPS || saves(r, next) || (r->p->mutant != OLD && replicas_due(r, next));
}

/* What is saved is copied from the device; ranks that have parts send them. */
static int save(struct rank *r, struct err *e)
{
    struct state *s = r->rig->step.state;
    double m[METRIC_N];
    TRY(state_get_metrics(s, m, e));
    return ownership_is_spread(&r->rig->own) ? r->all->ops->barrier(r->all, COMM_CONTROL, e) : 0;
}

static int train(struct rank *r, struct step *t, struct err *e)
{
    struct step_result res;
    while (r->updates < STEPS) {
        do {
            TRY(train_step(t, 0.01, (struct step_wishes){0}, &res, e));
            TRY(account(r, &res, e));
        } while (t->ahead.outstanding && !place_ahead(r));
        TRY(train_catch_up(t, &res, e));
        TRY(account(r, &res, e));
        if (r->p->mutant != OLD && replicas_due(r, r->updates))
            TRY(replicas_check(t->state, r->all, true, e));
        if (saves(r, r->updates))
            TRY(save(r, e));
    }
    return 0;
}

static unsigned members_of(const struct layout *l, enum layout_group g, int rank)
{
    const struct layout_ranks r = layout_group(l, g, rank);
    unsigned members = 0;
    for (int i = 0; i < r.count; i++)
        members |= 1u << layout_group_rank(&r, i);
    return members;
}

/* Stages of a pipeline and the next one, as groups_open_edges() has them. */
static void open_edges(struct order_comm edges[2], struct comm *ret[2], const struct order_comm *stages, bool ring)
{
    const int n = stages->base.world, me = stages->base.rank;
    ret[0] = ret[1] = NULL;
    for (int k = 0; k < n - !ring; k++) {
        const int next = (k + 1) % n, side = me == k;
        unsigned members = 0;
        for (int i = 0, at = 0; i < ORDER_RANKS_MAX; i++)
            if (stages->members & 1u << i) {
                members |= at == k || at == next ? 1u << i : 0;
                at++;
            }
        if (me != k && me != next)
            continue;
        order_comm_init(&edges[side], stages->record, stages->device, members, order_comm_rank(stages), 1 + k);
        ret[side] = &edges[side].base;
    }
}

/* --- what is sown */

static const struct device_async *real_async;
static struct device_async wrong_async;
static struct device_ops wrong_ops;

static int no_stream(struct device *d, void **ret_stream, struct err *e)
{
    *ret_stream = real_async->compute(d);
    return 0;
}

static void no_close(struct device *d, void *stream)
{
}

/* From here on streams that are opened are the computing one. */
static void receive_on_compute(struct device *d)
{
    wrong_ops = *d->ops;
    real_async = d->ops->async;
    wrong_async = *real_async;
    wrong_async.open = no_stream;
    wrong_async.close = no_close;
    wrong_ops.async = &wrong_async;
    d->ops = &wrong_ops;
}

/* The action behind which the memory of a chunk's micro-batch is free again. */
static int freed_by(const struct stage *g, const struct pipeline_action *used)
{
    int i = 0;
    for (;; i++) {
        const struct pipeline_action a = pipeline_action(&g->o.order, g->o.index, i);
        if (a.chunk == used->chunk && a.micro_batch == used->micro_batch &&
            a.backward == (used->backward || g->o.recompute))
            return i;
    }
}

static int by_time(const void *a, const void *b)
{
    const struct pipeline_ask *x = a, *y = b;
    return x->before != y->before ? x->before - y->before : x->action - y->action;
}

static void ask_otherwise(struct stage *g, bool in_turn)
{
    for (int k = 0; k < g->nasks; k++) {
        struct pipeline_action a = pipeline_action(&g->o.order, g->o.index, g->asks[k].action);
        g->asks[k].before = in_turn ? g->asks[k].action : 0;
        a.micro_batch -= g->chunks[a.chunk].in[way_of(&a)].n;
        if (!in_turn && a.micro_batch >= 0)
            g->asks[k].before = freed_by(g, &a) + 1;
    }
    qsort(g->asks, (size_t)g->nasks, sizeof *g->asks, by_time);
}

static const struct plan_needs *real_needs;
static struct plan_needs wrong_needs;

/* Every second read changes places with the one behind it. */
static int other_reads(void *ctx, const struct plan_range *reads, int n, struct err *e)
{
    struct plan_range *other = calloc((size_t)n + 1, sizeof *other);
    for (int i = 0; i < n; i++)
        other[i] = reads[(i ^ 1) < n ? i ^ 1 : i];
    const int rc = real_needs->order(ctx, other, n, e);
    free(other);
    return rc;
}

static int need_twice(void *ctx, int k, struct err *e)
{
    if (k == 1)
        TRY(real_needs->need(ctx, 0, e));
    return real_needs->need(ctx, k, e);
}

static const struct plan_needs *with_other_reads(const struct plan_needs *needs)
{
    real_needs = needs;
    wrong_needs = *needs;
    wrong_needs.order = other_reads;
    return &wrong_needs;
}

static const struct plan_needs *with_one_more(const struct plan_needs *needs)
{
    real_needs = needs;
    wrong_needs = *needs;
    wrong_needs.need = need_twice;
    return &wrong_needs;
}

static struct order_record *record(const struct point *p, int rank)
{
    struct order_record *r = order_record_create();
    const struct order_line *line = line_of(p);
    struct order_comm comms[LAYOUT_GROUPS], edge_comms[2], all;
    struct comm *groups[LAYOUT_GROUPS] = {0}, *edges[2] = {0};
    struct gpu *g;
    struct device *d;
    struct program *program;
    struct layout l;
    struct step_rig rig;
    const int tensor = tensor_of(p);
    const struct cuda_options with = {.graphs = p->at[GRAPHS], .fused_patterns = p->short_step};
    const enum split_kind kind = tensor == 1 ? SPLIT_NONE : p->at[SPLIT] ? SPLIT_FEATURES : SPLIT_CLASSES;
    static const enum exact_kind nets[] = {EXACT_RESIDUAL, EXACT_TIED};
    fake_gpu_open(&g, &(struct fake_options){.idle = true});
    order_watch_gpu(r, g);
    MUST(cuda_open_on(&d, g, NULL, &with, e));
    MUST(layout_plan(&l, world_of(p), tensor, stages_of(p), zero_of(p), e));
    l.seconds = has_seconds(p);
    MUST(exact_aligned(&program, nets[p->at[NET]], &(struct split){kind, tensor, rank % tensor},
                       zero_of(p) == 3 ? OWNERSHIP_ALIGN * (size_t)(world_of(p) / stages_of(p)) : 0, e));
    order_comm_init(&all, r, d, (1u << world_of(p)) - 1, rank, 0);
    for (int i = 0; i < LAYOUT_GROUPS; i++) {
        order_comm_init(&comms[i], r, d, members_of(&l, (enum layout_group)i, rank), rank, 0);
        groups[i] = comms[i].base.world > 1 ? &comms[i].base : NULL;
    }
    if (stages_of(p) > 1 && p->mutant != ONE_PLACE)
        open_edges(edge_comms, edges, &comms[LAYOUT_STAGES], line->order.chunks > 1);
    if (p->mutant == ON_COMPUTE)
        receive_on_compute(d);
    const struct step_rig_options o = {
        .optimizer = optimizers[p->at[RULE]],
        .precision = {.level = p->at[HALF] ? LEVEL_O2 : LEVEL_O0, .half = DT_F16, .scale = loss_scale_dynamic()},
        .batch = BATCH,
        .steps = p->short_step ? STEPS : STEPS + 2,
        .short_by = p->short_step,
        .parts = stages_of(p) > 1 ? line->order.micro_batches : p->at[PARTS] + 1,
        .pipeline = line->order,
        .recompute = line->recompute,
        .edges = edges,
        .wrap = rank < world_of(p) - 1        ? NULL
                : p->mutant == OTHER_READS    ? with_other_reads
                : p->mutant == GATHERED_TWICE ? with_one_more
                                              : NULL,
        .sync_bn = p->at[SYNC],
        .zero = zero_of(p),
        .seconds = has_seconds(p),
        .tensor = tensor,
        .bucket_bytes = 8000,
        .native = p->at[HALF],
        .groups = groups};
    MUST(step_rig_open(&rig, d, program, &all.base, &o, e));
    if (p->mutant >= ASKS_EARLY && p->mutant <= ASKS_IN_TURN)
        ask_otherwise(rig.stage, p->mutant == ASKS_IN_TURN);
    rig.step.confirms = has_seconds(p);
    struct rank it = {.p = p, .rig = &rig, .all = &all.base};
    MUST(train(&it, &rig.step, e));
    step_rig_close(&rig);
    d->ops->close(d);
    return r;
}

static int play(const struct point *p, struct err *e)
{
    struct order_record *records[ORDER_RANKS_MAX] = {0};
    for (int i = 0; i < world_of(p); i++)
        records[i] = record(p, i);
    int rc = order_play(records, world_of(p), false, e);
    if (rc == 0 && (p->mutant == RIGHT || p->mutant == ASKS_IN_TURN))
        rc = order_play(records, world_of(p), true, e);
    for (int i = 0; i < world_of(p); i++)
        order_record_destroy(records[i]);
    return rc;
}

static bool goes_together(const struct point *p)
{
    const int members = world_of(p) / stages_of(p);
    return world_of(p) % stages_of(p) == 0 && members % tensor_of(p) == 0 && (tensor_of(p) > 1 || !p->at[SPLIT]) &&
           (members > 1 || !p->at[ZERO]) && (!has_seconds(p) || (tensor_of(p) == 1 && stages_of(p) == 1)) &&
           (stages_of(p) == 1 || !p->at[PARTS]);
}

static void describe(const struct point *p, char *out, size_t cap)
{
    static const char *const kinds[] = {PIPELINE_KINDS(CHOICE_NAME)};
    const struct pipeline *line = &line_of(p)->order;
    char pipeline[64] = "no stages";
    if (line->stages > 1)
        snprintf(pipeline, sizeof pipeline, "%d stages, %s%s", line->stages, kinds[line->kind],
                 line_of(p)->recompute ? ", recomputing" : "");
    snprintf(out, cap,
             "%d ranks, groups of %d over %s, %s, zero %d%s, %d parts, %s statistics, %s, rule %d, %s, replicas %s, %s",
             world_of(p), tensor_of(p),
             p->at[NET]     ? "vocabulary"
             : p->at[SPLIT] ? "features"
                            : "classes",
             pipeline, zero_of(p), has_seconds(p) ? " with second owners" : "", p->at[PARTS] + 1,
             p->at[SYNC] ? "common" : "own", p->at[HALF] ? "fp16" : "fp32", p->at[RULE],
             p->at[GRAPHS] ? "graphs" : "walks", p->at[REPLICAS] ? "compared" : "not compared",
             p->at[SAVES] ? "saved" : "not saved");
}

static bool next_point(struct point *p, const int *values)
{
    int axis = 0;
    while (axis < AXES && ++p->at[axis] == values[axis])
        p->at[axis++] = 0;
    return axis < AXES;
}

/* All that go together, from `p` on. */
static int play_all(struct point p, const int *values)
{
    int points = 0;
    do {
        struct err e;
        char text[256];
        if (!goes_together(&p))
            continue;
        points++;
        describe(&p, text, sizeof text);
        if (play(&p, &e) < 0)
            fail_msg("%s: %s", text, e.text);
    } while (next_point(&p, values));
    print_message("# %d combinations of options\n", points);
    return points;
}

static void no_options_make_ranks_wait_for_each_other(void **state)
{
    (void)state;
    static const int values[AXES] = {4, 2, 2, ZERO_VALUES, 2, 2, 2, OPTIMIZERS, 2, 2, 3, 1, 1};
    assert_true(play_all((struct point){0}, values) >= 500);
}

static void no_pipeline_makes_stages_wait_for_each_other(void **state)
{
    (void)state;
    static const int values[AXES] = {4, 2, 2, 4, 1, 2, 1, 2, 2, 2, 1, sizeof lines / sizeof *lines, 1};
    assert_true(play_all((struct point){.at = {[LINE] = 1}}, values) >= 500);
}

/* Of tokens, with a tied vocabulary that the group shares: the head calls it among its products. */
static void no_shared_blocks_make_ranks_wait_for_each_other(void **state)
{
    (void)state;
    static const int values[AXES] = {4, 2, 1, 4, 2, 1, 2, 1, 2, 1, 1, 4, 2};
    assert_true(play_all((struct point){.at = {[TENSOR] = 1, [NET] = 1}}, values) >= 100);
}

/* A batch that is not whole comes when all graphs are made: sums that convolutions took along are gathered then. */
static void a_short_step_makes_no_ranks_wait_for_each_other(void **state)
{
    (void)state;
    static const int values[AXES] = {4, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1, sizeof lines / sizeof *lines, 1};
    assert_true(play_all((struct point){.short_step = true}, values) >= 50);
}

static const struct point recorded = {.at = {[WORLD] = 1, [GRAPHS] = 1, [REPLICAS] = 1, [SAVES] = 1}, .mutant = OLD};

/* Rank 0 takes a step's result to save, and compares replicas; the others wait for its next step. */
static void the_circle_that_was_there_is_found(void **state)
{
    (void)state;
    for (int graphs = 0; graphs < 2; graphs++)
        for (int world = 2; world <= ORDER_RANKS_MAX; world++) {
            struct point p = recorded;
            struct err e = {0};
            p.at[WORLD] = world - 1;
            p.at[GRAPHS] = graphs;
            assert_int_equal(play(&p, &e), -EDEADLK);
            print_message("# %s\n", e.text);
            assert_non_null(strstr(e.text, "rank 0 at "));
            assert_non_null(strstr(e.text, "all-gather"));
        }
}

static void it_takes_a_saver_that_the_others_are_not(void **state)
{
    (void)state;
    struct point p = recorded;
    struct err e;
    p.at[SAVES] = 0;
    assert_int_equal(play(&p, &e), 0);
    p = recorded;
    p.mutant = RIGHT;
    assert_int_equal(play(&p, &e), 0);
}

/* What is sown into a pipeline that interleaves, or into parameters that come and go, and where it must end. */
static void each_wrong_order_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct point p;
    } sown[] = {
        {"stages that ask ahead", {.at = {[WORLD] = 1, [LINE] = 3, [GRAPHS] = 1}, .mutant = ASKS_EARLY}},
        {"messages of all stages over one communicator",
         {.at = {[WORLD] = 1, [LINE] = 6, [GRAPHS] = 1}, .mutant = ONE_PLACE}},
        {"receives among the passes", {.at = {[WORLD] = 1, [LINE] = 3}, .mutant = ON_COMPUTE}},
        {"stages that ask in turn", {.at = {[WORLD] = 1, [LINE] = 3, [GRAPHS] = 1}, .mutant = ASKS_IN_TURN}},
        {"a rank that gathers in another order", {.at = {[WORLD] = 1, [ZERO] = 3}, .mutant = OTHER_READS}},
        {"a rank that gathers a piece twice",
         {.at = {[WORLD] = 1, [ZERO] = 3, [GRAPHS] = 1}, .mutant = GATHERED_TWICE}},
    };
    for (size_t i = 0; i < sizeof sown / sizeof *sown; i++) {
        struct point p = sown[i].p;
        struct err e = {0};
        const int rc = play(&p, &e);
        print_message("# %s: %s\n", sown[i].name, rc < 0 ? e.text : "unseen");
        assert_true(rc == -EDEADLK || rc == -EPROTO);
        p.mutant = RIGHT;
        assert_int_equal(play(&p, &e), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_circle_that_was_there_is_found),
        cmocka_unit_test(it_takes_a_saver_that_the_others_are_not),
        cmocka_unit_test(each_wrong_order_is_found),
        cmocka_unit_test(a_short_step_makes_no_ranks_wait_for_each_other),
        cmocka_unit_test(no_options_make_ranks_wait_for_each_other),
        cmocka_unit_test(no_pipeline_makes_stages_wait_for_each_other),
        cmocka_unit_test(no_shared_blocks_make_ranks_wait_for_each_other),
    };
    return cmocka_run_group_tests_name("order of ranks", tests, NULL, NULL);
}
