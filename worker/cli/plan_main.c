/* trainer plan: the options of a run, and what it would come to on every rank. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "worker/cli/cli.h"
#include "worker/cli/plan_ranks.h"
#include "worker/config/exit_code.h"
#include "worker/manifest/run_model.h"
#include "worker/personality/personality.h"
#include "worker/planner/here.h"
#include "worker/session/forecast.h"

struct plan_config {
    struct train_config train;
    int64_t world, local_world, nodes;
    int hardware; /* 0: none; else an enum hardware_id, plus one */
    bool json, step_time;
};

#define OWN(field) offsetof(struct plan_config, field)

static const char machines[] = "none"
#define X(id, name, ...) "|" name
#include "worker/planner/hardware.def"
#undef X
    ;

static const struct arg_spec own[] = {
    ARG_GROUP("Plan"),
    {.name = "world-size",
     .type = ARG_INT,
     .at = OWN(world),
     .def = "1",
     .min = 1,
     .max = 65536,
     .aliases = "ranks",
     .help = "ranks of the run"},
    {.name = "local-world-size",
     .type = ARG_INT,
     .at = OWN(local_world),
     .def = "0",
     .min = 0,
     .max = 65536,
     .help = "ranks of each host, which share its cores; 0: all of them, or with --hardware its GPUs of a node"},
    {.name = "hardware",
     .type = ARG_CHOICE,
     .at = OWN(hardware),
     .choices = machines,
     .def = "none",
     .help = "predict the time of a step on nodes of these GPUs, a rank each, from published figures of such GPUs and "
             "networks, and from what was published of one of them alone. Memory is counted as on the cpu device"},
    {.name = "nodes",
     .type = ARG_INT,
     .at = OWN(nodes),
     .def = "0",
     .min = 0,
     .max = 65536,
     .help = "hardware: so many nodes; 0: as --world-size says"},
    {.name = "step-time",
     .type = ARG_FLAG,
     .at = OWN(step_time),
     .help = "predict the time of a step: operations and transfers are measured here for some seconds, by processes of "
             "their own; --network says what links between nodes are (cpu, ref)"},
    {.name = "json", .type = ARG_FLAG, .at = OWN(json), .help = "print one JSON object, a rank each"},
    ARG_END,
};

static const struct personality_default defaults[] = {{NULL, NULL, 0, NULL}};

/* --auto-parallel predicts all plans. */
static bool wants_time(const struct plan_config *c)
{
    return c->step_time || c->hardware || c->train.auto_parallel;
}

/* Ranks of machines that are not here. */
static int apply_hardware(struct plan_config *c, struct err *e)
{
    if (c->nodes && !c->hardware)
        return err_set(e, ERR_USAGE, "--nodes %d: of which machines? --hardware names them; ranks are --world-size",
                       (int)c->nodes);
    if (!c->hardware)
        return 0;
    c->train.device = "cpu";
    const int64_t gpus = hardware_gpus((enum hardware_id)(c->hardware - 1));
    if (c->local_world == 0)
        c->local_world = c->nodes == 0 && c->world < gpus ? c->world : gpus;
    if (c->nodes && c->world != 1 && c->world != c->nodes * c->local_world)
        return err_set(e, ERR_USAGE, "--nodes %d of %d ranks are not --world-size %d", (int)c->nodes,
                       (int)c->local_world, (int)c->world);
    c->world = c->nodes ? c->nodes * c->local_world : c->world;
    return 0;
}

static int apply(void *config, const struct personality_args *a, struct err *e)
{
    struct plan_config *c = config;
    (void)a;
    TRY(apply_hardware(c, e));
    if (c->local_world > c->world)
        return err_set(e, ERR_USAGE, "--local-world-size %d: the run has %d ranks in all (--world-size)",
                       (int)c->local_world, (int)c->world);
    if (c->local_world == 0)
        c->local_world = c->world;
    TRY(train_config_check(&c->train, e));
    return here_check(&c->train, wants_time(c), e);
}

static const struct personality plan_options = {
    .name = "plan",
    .usage = "--train-data DIR [--world-size N] [options of trainer]",
    .summary =
        "Print what a run with these options would come to, without running it: who is in which group, the bytes that "
        "each rank holds, and the bytes that it sends in a step. --train-data null --num-labels N stands for a data "
        "set that is not here.",
    .epilog =
        "With --auto-parallel: which way to spread the run is the fastest that fits, and why; what follows is of "
        "that one. Memory is counted from the plans that the run would make: on cpu and ref without taking it, on a GPU "
        "with it. docs/guide/parallelism.md explains the schemes, docs/guide/planning.md this command.",
    .own = own,
    .defaults = defaults,
    .config_size = sizeof(struct plan_config),
    .recipes = true,
    .operands = ARG_NO_OPERANDS,
    .apply = apply,
};

/* --- as text */

#define MIB (1024.0 * 1024)

static bool alike(const struct forecast_rank *a, const struct forecast_rank *b)
{
    return memcmp(&a->memory, &b->memory, sizeof a->memory) == 0 &&
           memcmp(&a->traffic, &b->traffic, sizeof a->traffic) == 0;
}

/* Is rank r the first of those like it? */
static bool is_first(const struct forecast *f, int r)
{
    for (int i = 0; i < r; i++)
        if (alike(&f->ranks[i], &f->ranks[r]))
            return false;
    return true;
}

/* "0-3,6" of the ranks like r. */
static void print_ranks(const struct forecast *f, int r)
{
    const int n = layout_members(&f->layout);
    const char *between = "";
    for (int i = r, last; i < n; i = last + 1) {
        last = i;
        if (!alike(&f->ranks[i], &f->ranks[r]))
            continue;
        while (last + 1 < n && alike(&f->ranks[last + 1], &f->ranks[r]))
            last++;
        printf(last > i ? "%s%d-%d" : "%s%d", between, i, last);
        between = ",";
    }
}

static void print_row(const char *what, int64_t bytes, int64_t calls)
{
    if (bytes == 0)
        return;
    printf("    %-20s %12.2f MiB", what, (double)bytes / MIB);
    if (calls)
        printf("  in %lld call%s", (long long)calls, calls == 1 ? "" : "s");
    putchar('\n');
}

static void print_rank(const struct forecast *f, int r)
{
    const struct forecast_rank *k = &f->ranks[r];
    printf("rank ");
    print_ranks(f, r);
    printf("\n  holds\n");
#define X(field, text) print_row(text, k->memory.field, 0);
    MEMORY_PARTS(X)
#undef X
    print_row("in sum", memory_planned(&k->memory), 0);
    if (traffic_bytes(&k->traffic) == 0)
        return;
    printf("  sends in a step\n");
#define X(kind, text) print_row(text, k->traffic.kind.bytes, k->traffic.kind.calls);
    TRAFFIC_KINDS(X)
#undef X
    print_row("in sum", traffic_bytes(&k->traffic), 0);
}

static const char *const group_names[] = {
    [LAYOUT_BATCH] = "batch", [LAYOUT_DATA] = "data", [LAYOUT_TENSOR] = "tensor", [LAYOUT_STAGES] = "stage"};

/* The groups of one kind, those of one rank left out. */
static void print_groups(const struct layout *l, enum layout_group g)
{
    bool any = false;
    for (int r = 0; r < layout_members(l); r++) {
        const struct layout_ranks k = layout_group(l, g, r);
        if (k.count < 2 || k.first != r)
            continue;
        printf(any ? "; " : "%s groups: ", group_names[g]);
        for (int i = 0; i < k.count; i++)
            printf("%s%d", i ? " " : "", layout_group_rank(&k, i));
        any = true;
    }
    if (any)
        putchar('\n');
}

static void print_step(const struct plan_ranks *r)
{
    const struct prediction *s = &r->step;
    const struct hardware *h = &r->machine;
    if (r->hardware >= 0)
        printf("hardware: %s; %d node%s of %d; efficiency %.3f, by %g images/s of ResNet-50 on one %s, %d at a time\n",
               h->text, (r->world + r->local_world - 1) / r->local_world, r->world > r->local_world ? "s" : "",
               r->local_world, h->efficiency, h->rate, h->fitted, h->batch);
    printf("step: %.1f ms predicted, %.1f images a second; the busiest rank computes for %.1f ms, and reduces for "
           "%.1f ms beside that\n",
           1e3 * s->seconds, (double)r->cfg->batch_size / s->seconds, 1e3 * s->computes, 1e3 * s->reduces);
}

static int print_choice(const struct plan_ranks *r, struct err *e)
{
    char *table, options[200];
    if (!r->cfg->auto_parallel)
        return 0;
    TRY(planner_table(&r->choice, r->cfg->memory_limit, &table, e));
    const char *text = plans_options(&r->choice.rows[r->choice.chosen].plan, r->cfg, options, sizeof options);
    printf("%s  as options: %s\n", table, *text ? text : "none");
    free(table);
    return 0;
}

static void print_text(const struct forecast *f, const struct plan_config *c, const struct plan_ranks *measured)
{
    const struct layout *l = &f->layout;
    const int members = layout_members(l);
    char samples[64];
    printable_line(stdout, "%s: %zu parameters, %d %s, %s", c->train.arch, f->parameters, f->classes,
                   c->train.length ? "numbers of tokens" : "classes", train_config_samples(&c->train, samples));
    printf("device: %s; %s\n", f->device, f->precision);
    printf("layout: %d rank%s = %d data x %d tensor x %d stages; ZeRO %d%s", members, members == 1 ? "" : "s", l->data,
           l->tensor, l->stages, l->zero, l->seconds ? ", each part on two ranks" : "");
    printf(l->world > members ? "; %d spare\n" : "\n", l->world - members);
    for (int g = LAYOUT_BATCH; g <= LAYOUT_STAGES; g++)
        if (g != LAYOUT_DATA || l->tensor > 1) /* else it is the batch group */
            print_groups(l, (enum layout_group)g);
    printf("batch: %lld global; up to %d samples a rank at once, in %d part%s; %lld steps an epoch\n",
           (long long)c->train.batch_size, f->part, f->parts, f->parts == 1 ? "" : "s", (long long)f->steps);
    fputs(f->stages, stdout);
    if (measured)
        print_step(measured);
    for (int r = 0; r < members; r++)
        if (is_first(f, r))
            print_rank(f, r);
}

/* --- as JSON */

static void add_groups(cJSON *groups, const struct layout *l, enum layout_group g)
{
    cJSON *all = cJSON_AddArrayToObject(groups, group_names[g]);
    for (int r = 0; r < layout_members(l); r++) {
        const struct layout_ranks k = layout_group(l, g, r);
        cJSON *one = k.first == r ? cJSON_CreateArray() : NULL;
        for (int i = 0; one && i < k.count; i++)
            cJSON_AddItemToArray(one, cJSON_CreateNumber(layout_group_rank(&k, i)));
        if (one)
            cJSON_AddItemToArray(all, one);
    }
}

static cJSON *rank_json(const struct forecast *f, int r)
{
    const struct forecast_rank *k = &f->ranks[r];
    cJSON *o = cJSON_CreateObject(), *memory, *sends;
    cJSON_AddNumberToObject(o, "rank", r);
    cJSON_AddNumberToObject(o, "data", k->place.data);
    cJSON_AddNumberToObject(o, "tensor", k->place.tensor);
    cJSON_AddNumberToObject(o, "stage", k->place.stage);
    memory = cJSON_AddObjectToObject(o, "memory");
#define X(field, text) cJSON_AddNumberToObject(memory, #field, (double)k->memory.field);
    MEMORY_PARTS(X)
#undef X
    cJSON_AddNumberToObject(memory, "sum", (double)memory_planned(&k->memory));
    sends = cJSON_AddObjectToObject(o, "sends");
#define X(kind, text) cJSON_AddNumberToObject(sends, #kind, (double)k->traffic.kind.bytes);
    TRAFFIC_KINDS(X)
#undef X
    cJSON_AddNumberToObject(sends, "sum", (double)traffic_bytes(&k->traffic));
    return o;
}

static void add_row(cJSON *to, const struct plan_ranks *r, int i)
{
    const struct planner_row *row = &r->choice.rows[i];
    char options[200];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "options", plans_options(&row->plan, r->cfg, options, sizeof options));
    cJSON_AddNumberToObject(o, "need", (double)row->as.need);
    cJSON_AddBoolToObject(o, "fits", row->fits);
    if (row->timed)
        cJSON_AddNumberToObject(o, "seconds", row->as.seconds);
    cJSON_AddBoolToObject(o, "chosen", i == r->choice.chosen);
    cJSON_AddItemToArray(to, o);
}

static void add_links(cJSON *to, const char *name, const struct network_link links[NETWORK_CALLS])
{
    static const char *const calls[] = {NETWORK_EACH_CALL(CHOICE_NAME)};
    cJSON *all = cJSON_AddObjectToObject(to, name);
    for (int i = 0; i < NETWORK_CALLS; i++) {
        cJSON *o = cJSON_AddObjectToObject(all, calls[i]);
        cJSON_AddNumberToObject(o, "alpha", links[i].alpha);
        cJSON_AddNumberToObject(o, "beta", links[i].beta);
        cJSON_AddNumberToObject(o, "cores", links[i].cores);
    }
}

static void add_measured(cJSON *to, const struct plan_ranks *r)
{
    cJSON *step = cJSON_AddObjectToObject(to, "step"), *rows;
    char why[120];
    cJSON_AddNumberToObject(step, "seconds", r->step.seconds);
    cJSON_AddNumberToObject(step, "computes", r->step.computes);
    cJSON_AddNumberToObject(step, "reduces", r->step.reduces);
    if (r->hardware >= 0) {
        cJSON *hardware = cJSON_AddObjectToObject(to, "hardware");
        cJSON_AddStringToObject(hardware, "name", r->machine.name);
        cJSON_AddNumberToObject(hardware, "efficiency", r->machine.efficiency);
        cJSON_AddNumberToObject(hardware, "rate", r->machine.rate);
        cJSON_AddNumberToObject(hardware, "batch", r->machine.batch);
    }
    if (r->network.known[0])
        add_links(to, "inside", r->network.inside);
    if (r->network.known[1])
        add_links(to, "between", r->network.between);
    if (!r->cfg->auto_parallel)
        return;
    cJSON_AddStringToObject(to, "why", planner_why(&r->choice, why, sizeof why));
    rows = cJSON_AddArrayToObject(to, "plans");
    for (int i = 0; i < r->choice.n; i++)
        add_row(rows, r, i);
}

static cJSON *to_json(const struct forecast *f, const struct plan_config *c, const struct plan_ranks *measured)
{
    const struct layout *l = &f->layout;
    cJSON *o = cJSON_CreateObject(), *layout, *groups, *ranks;
    cJSON_AddStringToObject(o, "arch", c->train.arch);
    cJSON_AddNumberToObject(o, "parameters", (double)f->parameters);
    cJSON_AddNumberToObject(o, "classes", f->classes);
    cJSON_AddStringToObject(o, "device", f->device);
    cJSON_AddStringToObject(o, "precision", f->precision);
    layout = cJSON_AddObjectToObject(o, "layout");
    cJSON_AddNumberToObject(layout, "world", l->world);
    cJSON_AddNumberToObject(layout, "data", l->data);
    cJSON_AddNumberToObject(layout, "tensor", l->tensor);
    cJSON_AddNumberToObject(layout, "stages", l->stages);
    cJSON_AddNumberToObject(layout, "zero", l->zero);
    cJSON_AddNumberToObject(layout, "owners", l->seconds ? 2 : 1);
    cJSON_AddNumberToObject(layout, "spares", l->world - layout_members(l));
    groups = cJSON_AddObjectToObject(o, "groups");
    for (int g = LAYOUT_BATCH; g <= LAYOUT_STAGES; g++)
        add_groups(groups, l, (enum layout_group)g);
    cJSON_AddNumberToObject(o, "batch", (double)c->train.batch_size);
    cJSON_AddNumberToObject(o, "part", f->part);
    cJSON_AddNumberToObject(o, "parts", f->parts);
    cJSON_AddNumberToObject(o, "steps_per_epoch", (double)f->steps);
    if (measured)
        add_measured(o, measured);
    ranks = cJSON_AddArrayToObject(o, "ranks");
    for (int r = 0; r < layout_members(l); r++)
        cJSON_AddItemToArray(ranks, rank_json(f, r));
    return o;
}

static int print_json(const struct forecast *f, const struct plan_config *c, const struct plan_ranks *measured,
                      struct err *e)
{
    cJSON *o = to_json(f, c, measured);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    if (!text)
        return err_errno(e, ENOMEM, "the plan as JSON");
    puts(text);
    free(text);
    return 0;
}

/* measured: NULL: nothing was. */
static int print_plan(const struct plan_config *c, const struct plan_ranks *measured, struct err *e)
{
    struct forecast f;
    TRY(forecast_make(&f, measured ? &measured->chosen : &c->train, (int)c->world, (int)c->local_world, e));
    int rc = c->json ? print_json(&f, c, measured, e) : measured ? print_choice(measured, e) : 0;
    if (rc == 0 && !c->json)
        print_text(&f, c, measured);
    forecast_free(&f);
    return rc;
}

static int fail(int rc, const struct err *e)
{
    fprintf(stderr, "trainer plan: %s\n", e->text);
    return exit_code_of(rc);
}

/* Faults that all ranks find are rank 0's to tell. */
static bool is_of_all(int rc)
{
    return rc == ERR_USAGE || rc == ERR_DATA || rc == -ENOTSUP || rc == -EINVAL || rc == -ENOENT;
}

/* The exit code. */
static int plan_measured(const struct plan_config *c)
{
    struct plan_ranks r = {
        .cfg = &c->train, .world = (int)c->world, .local_world = (int)c->local_world, .hardware = c->hardware - 1};
    struct err e;
    int code = EXIT_OK, rc = plan_ranks_start(&r, &code, &e);
    if (rc < 0 || r.rank < 0)
        return rc < 0 ? fail(rc, &e) : code;
    rc = plan_ranks_measure(&r, &e);
    if (rc == 0 && r.rank == 0)
        rc = print_plan(c, &r, &e);
    plan_ranks_finish(&r);
    return rc == 0 || (r.rank > 0 && is_of_all(rc)) ? EXIT_OK : fail(rc, &e);
}

int plan_main(int argc, char **argv)
{
    struct train_config *train;
    struct err e;
    log_init(LOG_WARN, "");
    int rc = personality_parse(&plan_options, argc, argv, "trainer " CRUN_VERSION, &train, &e), code;
    if (rc > 0)
        return EXIT_OK;
    if (rc < 0)
        return fail(rc, &e);
    const struct plan_config *c = (const struct plan_config *)train;
    struct run_model model;
    if ((rc = run_model_choose(&model, train, &e)) < 0)
        code = fail(rc, &e);
    else if (wants_time(c))
        code = plan_measured(c);
    else
        code = (rc = print_plan(c, NULL, &e)) == 0 ? EXIT_OK : fail(rc, &e);
    if (rc >= 0)
        run_model_free(&model);
    free(train);
    return code;
}
