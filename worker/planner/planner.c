/* Predicts the step of each way to spread a run, and ranks the ways. */
#include "worker/planner/planner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/config/cores.h"
#include "worker/data/sets/dataset.h"
#include "worker/planner/measure.h"
#include "worker/planner/planner_impl.h"
#include "worker/planner/rank_step.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"
#include "worker/session/forecast.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

/* --- a line on the terminal */

static void say(const struct planner *p, const char *what, int done, int of)
{
    if (p->o.tells && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s (%d of %d)", what, done, of);
    else if (p->o.tells && done == 0)
        fprintf(stderr, "%s\n", what);
}

static void say_over(const struct planner *p)
{
    if (p->o.tells && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* --- opening */

static int find_nodes(struct planner *p, struct err *e)
{
    struct comm *c = p->o.comm;
    const int mine = p->o.node;
    if (!c)
        return 0;
    p->nodes = calloc((size_t)c->world, sizeof *p->nodes);
    if (!p->nodes)
        return err_errno(e, ENOMEM, "the nodes of %d ranks", c->world);
    TRY(c->ops->all_gather(c, COMM_CONTROL, &mine, p->nodes, sizeof mine, NULL, e));
    p->measure.nodes = p->nodes;
    return 0;
}

/* What is known of the links' cores stays. */
static int given_links(struct planner *p, struct err *e)
{
    const struct train_config *cfg = p->o.cfg;
    struct network_link given[NETWORK_CALLS];
    if (!cfg->network)
        return 0;
    TRY(network_parse(cfg->network, given, e) < 0 ? err_wrap(e, "--network") : 0);
    for (int c = 0; c < NETWORK_CALLS; c++) {
        given[c].cores = p->network.between[c].cores;
        p->network.between[c] = given[c];
    }
    p->network.known[1] = true;
    return 0;
}

static int check_links(const struct planner *p, struct err *e)
{
    if (p->o.world > p->o.local_world && !p->network.known[1])
        return err_set(e, ERR_USAGE,
                       "links between nodes are not here to be measured: --network TIME,GIGABIT says what they are "
                       "(such as 50us,10)");
    if (p->o.local_world > 1 && !p->network.known[0])
        return err_set(e, ERR_USAGE, "ranks of one node are not here, so that their link cannot be measured");
    return 0;
}

int planner_measures(const struct train_config *cfg, int local_world)
{
    const int with_cores = cores_of_process() / threads_of_rank(cfg->threads, local_world), most = 2 * with_cores;
    return most < 1 ? 1 : most < local_world ? most : local_world;
}

static int open_here(struct planner *p, struct err *e)
{
    p->cores = cores_of_process();
    p->measure = (struct measure){.times = p->times,
                                  .base = p->base,
                                  .comm = p->o.comm,
                                  .computing = planner_measures(p->o.cfg, p->o.local_world),
                                  .place = p->o.place};
    TRY(find_nodes(p, e));
    TRY(given_links(p, e));
    say(p, "planning: measuring transfers and copies", 0, 1);
    TRY(measure_network(&p->measure, p->o.opened, &p->network, e));
    TRY(measure_numbers(&p->measure, e));
    TRY(measure_share(&p->measure, &p->network, e));
    say_over(p);
    return check_links(p, e);
}

/* A GPU stands for the threads of a rank. */
static int open_hardware(struct planner *p, struct err *e)
{
    const int threads = forecast_session(p->base)->threads;
    TRY(hardware_open(&p->hardware, (enum hardware_id)p->o.hardware, e));
    p->cores = (double)threads * p->o.local_world;
    hardware_network(&p->hardware, threads, &p->network);
    return given_links(p, e);
}

static int open_planner(struct planner *p, struct err *e)
{
    TRY(forecast_open(&p->base, p->o.cfg, p->o.world, p->o.local_world, e));
    if (forecast_session(p->base)->device->ops->async)
        return err_set(e, -ENOTSUP, "the time of a step is not predicted for the %s device: expected cpu or ref",
                       forecast_session(p->base)->device->ops->name);
    TRY(op_times_create(&p->times, e));
    p->network.local = p->o.local_world;
    p->network.hierarchical = p->o.cfg->by_node == REDUCE_HIERARCHICAL;
    return p->o.hardware >= 0 ? open_hardware(p, e) : open_here(p, e);
}

int planner_open(struct planner **ret, const struct planner_options *o, struct err *e)
{
    struct planner *p = calloc(1, sizeof *p);
    if (!p)
        return err_errno(e, ENOMEM, "a planner");
    p->o = *o;
    int rc = open_planner(p, e);
    if (rc < 0)
        planner_close(p);
    else
        *ret = p;
    return rc;
}

void planner_close(struct planner *p)
{
    if (!p)
        return;
    op_times_destroy(p->times);
    forecast_close(p->base);
    free(p->nodes);
    free(p);
}

const struct network *planner_network(const struct planner *p)
{
    return &p->network;
}

const struct hardware *planner_hardware(const struct planner *p)
{
    return p->o.hardware >= 0 ? &p->hardware : NULL;
}

/* --- one plan */

struct looking {
    struct planner *p;
    struct actor actors[SIMULATE_ACTORS_MAX];
    struct network network;
    int64_t limit; /* a rank above it is not measured; 0: none is */
    bool all;      /* every stage is there */
};

static int times_of_hardware(struct planner *p, const struct session *s, struct err *e)
{
    struct plan_options plan;
    const struct op_load load = rank_step_load(s, &plan);
    return hardware_times(&p->hardware, p->times, &load, e);
}

static int look(void *ctx, struct session *s, struct err *e)
{
    struct looking *l = ctx;
    struct memory_report memory;
    const struct layout_place at = layout_place(&s->layout, s->rank);
    if (at.data > 0 || at.tensor > 0)
        return 0;
    memory_report(s, &memory);
    if (l->limit && memory_planned(&memory) > l->limit) {
        l->all = false;
        return 0;
    }
    TRY(l->p->o.hardware >= 0 ? times_of_hardware(l->p, s, e) : measure_session(&l->p->measure, s, e));
    actor_finish(&l->actors[at.stage]);
    return rank_step(&l->actors[at.stage], s, l->p->times, &l->network, e);
}

static void add_up(const struct actor *a, struct prediction *ret)
{
    double computes = 0, reduces = 0;
    for (int i = 0; i < a->n; i++) {
        computes += a->actions[i].act == ACT_RUN ? a->actions[i].seconds : 0;
        reduces += a->actions[i].act == ACT_ASK ? a->actions[i].seconds : 0;
    }
    if (computes > ret->computes) {
        ret->computes = computes;
        ret->reduces = reduces;
    }
}

/* Nodes of actors, numbered from 0. */
static void number_nodes(struct actor *actors, int n)
{
    int number = -1, last = -1;
    for (int i = 0; i < n; i++) {
        number += actors[i].node != last;
        last = actors[i].node;
        actors[i].node = number;
    }
}

static int64_t most_held(const struct forecast *f)
{
    int64_t most = 0;
    for (int r = 0; r < layout_members(&f->layout); r++) {
        const int64_t n = memory_planned(&f->ranks[r].memory);
        most = n > most ? n : most;
    }
    return most;
}

static int predict(struct looking *l, const struct train_config *cfg, struct prediction *ret, struct err *e)
{
    const struct forecast_visit visit = {l, look};
    struct forecast f;
    int rc = forecast_on(&f, l->p->base, cfg, &visit, e), stages = 0;
    if (rc == 0) {
        stages = f.layout.stages;
        ret->need = most_held(&f);
        l->all &= !l->limit || ret->need <= l->limit;
        forecast_free(&f);
    }
    for (int i = 0; i < stages; i++)
        add_up(&l->actors[i], ret);
    number_nodes(l->actors, stages);
    if (rc == 0 && l->all)
        rc = simulate(l->actors, stages, l->p->cores, &ret->seconds, e);
    for (int i = 0; i < SIMULATE_ACTORS_MAX; i++)
        actor_finish(&l->actors[i]);
    return rc;
}

int planner_predict(struct planner *p, const struct train_config *cfg, struct prediction *ret, struct err *e)
{
    struct looking l = {.p = p, .network = p->network, .all = true};
    *ret = (struct prediction){0};
    l.network.hierarchical = cfg->by_node == REDUCE_HIERARCHICAL;
    say(p, "planning: measuring operations", 0, 1);
    int rc = predict(&l, cfg, ret, e);
    say_over(p);
    return rc;
}

/* --- all plans */

static int most_parts(const struct planner *p, int *ret, struct err *e)
{
    struct session s = *forecast_session(p->base); /* data and device are borrowed */
    int *places;
    s.layout = (struct layout){.world = 1, .data = 1, .tensor = 1, .stages = 1};
    s.program = s.whole = NULL;
    TRY(session_build_model(&s, e));
    places = calloc((size_t)s.whole->nfwd + 1, sizeof *places);
    *ret = places ? stages_places(s.whole, places) + 1 : 1;
    free(places);
    program_destroy(s.whole);
    return places ? 0 : err_errno(e, ENOMEM, "places to cut a model");
}

static int limits_of(const struct planner *p, struct plan_limits *ret, struct err *e)
{
    const struct session *s = forecast_session(p->base);
    const struct train_config *cfg = p->o.cfg;
    const struct sampler order = session_order(s, true);
    *ret = (struct plan_limits){.world = p->o.world,
                                .local_world = p->o.local_world,
                                .batch = (int)order.batch,
                                .classes = session_labels(s),
                                .parts = cfg->accumulate > 1 ? (int)cfg->accumulate : 0,
                                .zero3 = true,
                                .chunks = cfg->stage_chunks ? (int)cfg->stage_chunks : 2,
                                .nodes = p->o.world > p->o.local_world};
    return most_parts(p, &ret->cuts, e);
}

/* A plan that turns out to be impossible is none. */
static bool is_impossible(int rc)
{
    return rc == ERR_USAGE || rc == -EINVAL || rc == -ENOTSUP;
}

static int look_at(struct planner *p, int64_t limit, struct planner_row *row, bool *ret_possible, struct err *e)
{
    struct train_config cfg;
    struct looking l = {.p = p, .network = p->network, .limit = limit, .all = true};
    plans_apply(&row->plan, p->o.cfg, &cfg);
    l.network.hierarchical = row->plan.hierarchical;
    row->as = (struct prediction){0};
    const int rc = predict(&l, &cfg, &row->as, e);
    *ret_possible = rc == 0;
    row->fits = rc == 0 && (!limit || row->as.need <= limit);
    row->timed = rc == 0 && l.all;
    return rc < 0 && !is_impossible(rc) ? rc : 0;
}

static int look_at_all(struct planner *p, int64_t limit, struct planner_choice *c, const struct parallel_plan *plans,
                       int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct planner_row row = {.plan = plans[i]};
        bool possible;
        say(p, "planning: measuring operations, predicting", i, n);
        TRY(look_at(p, limit, &row, &possible, e));
        if (possible)
            c->rows[c->n++] = row;
    }
    say_over(p);
    return 0;
}

static int nothing_fits(const struct planner *p, const struct planner_choice *c, int64_t limit, struct err *e)
{
    const struct planner_row *least = &c->rows[0];
    char text[200];
    for (int i = 1; i < c->n; i++)
        least = c->rows[i].as.need < least->as.need ? &c->rows[i] : least;
    const char *options = plans_options(&least->plan, p->o.cfg, text, sizeof text);
    return err_set(e, ERR_USAGE, "--memory-limit: nothing fits %.6g MiB a rank; the smallest need is %.1f MiB (%s)",
                   (double)limit / MIB, (double)least->as.need / MIB, *options ? options : "no option");
}

/* Rank 0's, for all. */
static int agree(const struct planner *p, struct planner_choice *c, struct err *e)
{
    int picked[] = {c->chosen, c->next, c->alike};
    if (!p->o.comm)
        return 0;
    TRY(p->o.comm->ops->broadcast(p->o.comm, COMM_CONTROL, picked, sizeof picked, 0, NULL, e));
    c->chosen = picked[0];
    c->next = picked[1];
    c->alike = picked[2];
    return 0;
}

static int choose(struct planner *p, int64_t limit, struct planner_choice *c, struct err *e)
{
    struct plan_limits limits;
    struct parallel_plan *plans;
    int n;
    TRY(limits_of(p, &limits, e));
    TRY(plans_list(&plans, &n, &limits, e));
    c->rows = calloc((size_t)n + 1, sizeof *c->rows);
    int rc = c->rows ? look_at_all(p, limit, c, plans, n, e) : err_errno(e, ENOMEM, "%d plans", n);
    free(plans);
    TRY(rc);
    if (c->n == 0)
        return err_set(e, ERR_USAGE, "no plan for %d ranks is possible with a batch of %d", p->o.world, limits.batch);
    planner_pick(c);
    if (c->chosen < 0) /* memory is counted alike on all ranks */
        return nothing_fits(p, c, limit, e);
    return agree(p, c, e);
}

int planner_choose(struct planner *p, int64_t limit, struct planner_choice *ret, struct err *e)
{
    *ret = (struct planner_choice){.chosen = -1, .next = -1};
    int rc = choose(p, limit, ret, e);
    if (rc < 0)
        planner_choice_free(ret);
    return rc;
}

void planner_choice_free(struct planner_choice *c)
{
    free(c->rows);
    *c = (struct planner_choice){.chosen = -1, .next = -1};
}
