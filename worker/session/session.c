/* Opens all that a rank of a run holds, and closes it in reverse. */
#include "worker/session/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/base/utf8.h"
#include "common/job/env_contract.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/data/loader/loader.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/dataset.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/groups.h"
#include "worker/program/program.h"
#include "worker/session/hold.h"
#include "worker/session/memory.h"
#include "worker/session/memory_room.h"
#include "worker/session/pictures.h"
#include "worker/session/session_build.h"
#include "worker/session/session_layout.h"
#include "worker/snapshot/output_folder.h"
#include "worker/state/choices.h"

enum { DRAWN_AT_ONCE = 1 << 26 }; /* initial values: more take seconds */
#define LEAVE_MS 10000            /* rank 0 may wait so long for others that are about to end */

static int at_least_one(int64_t n)
{
    return n < 1 ? 1 : (int)n;
}

/* Before a run begins: whoever writes can write where it will have to, and overwrites nobody. */
static int check_output(struct session *s, const struct env_contract *env, struct err *e)
{
    s->writes = s->cfg->checkpoint_dir && !s->cfg->evaluate &&
                (s->rank == layout_writer(&s->layout) || (s->cfg->checkpoint_per_node && env_contract_place(env) == 0));
    if (s->writes && s->lock_fd < 0)
        TRY(output_folder_take(s->cfg, s->resume, env->run_id, &s->lock_fd, &s->aside, e));
    return s->leads && s->cfg->log_dir && !s->cfg->evaluate ? path_make_writable(s->cfg->log_dir, e) : 0;
}

/* Of initial values. */
static int take_precision(struct session *s, struct err *e)
{
    s->state.loss_scale = s->precision.scale;
    return optimizer_round(&s->state, &s->precision, e);
}

/* Before any of it is taken: the kernel kills without a word. */
static int check_room(struct session *s, const struct state_options *o, struct err *e)
{
    if (s->device->ops->memory) /* its own */
        return 0;
    state_measure(&s->state, s->device, s->program, &s->own, o);
    const int64_t bytes = memory_of_state(s);
    s->state = (struct state){0};
    return memory_room_of_state(s, bytes, e);
}

static int open_device(struct session *s, const struct env_contract *env, struct err *e)
{
    const struct state_options state = session_state(s);
    s->gpu = (struct gpu_choice){.local_rank = (int)env->local_rank, .list = s->cfg->gpus};
    TRY(session_open_device(s, &s->gpu, e));
    TRY(session_resolve_precision(s, e));
    s->device->ops->describe(s->device, s->device_text, sizeof s->device_text);
    TRY(session_build_ownership(s, e));
    TRY(check_room(s, &state, e));
    if (s->leads && program_params(s->program) > DRAWN_AT_ONCE)
        fprintf(stderr, "initial values: %zu parameters are drawn\n", program_params(s->program));
    const int rc = state_init(&s->state, s->device, s->program, &s->own, &state, e);
    if (rc < 0)
        return rc == -ENOMEM ? err_wrap(e, "parameters, gradients and moments") : rc;
    return take_precision(s, e);
}

int session_reset_state(struct session *s, struct err *e)
{
    TRY(state_reset(&s->state, (uint64_t)s->cfg->seed, e));
    return take_precision(s, e);
}

static bool has_plan(const struct session *s, bool training)
{
    const bool is_open = training ? s->train_plan || s->train_stage : s->test_plan || s->test_stage;
    return is_open && s->plan_batch[training] == session_plan(s, training).batch;
}

/* The one there is goes on where it is of the same size. */
static int open_plan(struct session *s, bool training, struct err *e)
{
    if (has_plan(s, training))
        return 0;
    session_close_plan(s, training);
    s->plan_batch[training] = session_plan(s, training).batch;
    return session_open_plan(s, training, false, e);
}

static int open_plans(struct session *s, struct err *e)
{
    if (!s->cfg->evaluate)
        TRY(open_plan(s, true, e));
    return s->test_set ? open_plan(s, false, e) : 0;
}

/* Plans of an earlier round, which are of use in this one. */
static bool keeps_plans(const struct session *s)
{
    return s->plans_agreed && (s->cfg->evaluate || has_plan(s, true)) && (!s->test_set || has_plan(s, false));
}

/* The first rank that keeps its plans: all that do have the same; rank 0 where none does. */
static int find_planner(const struct session *s, int *ret, struct err *e)
{
    const int world = s->comm->world;
    int64_t first = keeps_plans(s) ? s->comm->rank : world;
    TRY(s->comm->ops->all_reduce(s->comm, COMM_CONTROL, &first, 1, DT_I64, COMM_MIN, NULL, e));
    *ret = first < world ? (int)first : 0;
    return 0;
}

/* One rank first where planning takes measurements: the others take up what it found, and plan with it; also what they
 * planned before there was anybody to listen to. */
static int plan_in_turn(struct session *s, struct err *e)
{
    int planner;
    if (s->comm->world == 1 || !s->device->ops->choices)
        return open_plans(s, e);
    TRY(find_planner(s, &planner, e));
    const int rc = s->comm->rank == planner ? open_plans(s, e) : 0;
    TRY(choices_share(s->device, s->comm, planner, rc, e));
    if (s->comm->rank != planner && !keeps_plans(s)) {
        session_close_plan(s, true);
        session_close_plan(s, false);
        TRY(open_plans(s, e));
    }
    s->plans_agreed = true;
    return 0;
}

static int open_loader(struct session *s, bool training, struct loader **loader, struct err *e)
{
    const struct loader_options o = session_loader(s, training);
    if (!session_loads(s))
        return 0;
    if (*loader && s->loader_batch.index == s->batch.index && s->loader_batch.count == s->batch.count)
        return 0;
    loader_destroy(*loader);
    *loader = NULL;
    return loader_create(loader, training ? s->train_set : s->test_set, &o, e);
}

static int open_pipeline(struct session *s, struct err *e)
{
    struct sampler order = session_order(s, true);
    TRY(sampler_check(&order, e));
    s->part = (int)session_part(s, true);
    s->parts = sampler_parts(&order);
    free(s->weights);
    s->weights = NULL;
    s->stride = s->part + (int)sampler_part_others(&order);
    if (s->cfg->ignore_index >= 0 && !(s->weights = calloc((size_t)s->parts * (size_t)s->stride, sizeof *s->weights)))
        return err_errno(e, ENOMEM, "weights of %d samples", s->parts * s->stride);
    TRY(plan_in_turn(s, e));
    if (!s->cfg->evaluate)
        TRY(open_loader(s, true, &s->train_loader, e));
    s->steps_per_epoch = sampler_steps(&order);
    if (s->test_set) {
        TRY(open_loader(s, false, &s->test_loader, e));
        order = session_order(s, false);
        s->test_steps = sampler_steps(&order);
        if (s->cfg->eval_steps && s->cfg->eval_steps < s->test_steps)
            s->test_steps = s->cfg->eval_steps;
    }
    s->loader_batch = s->batch;
    return 0;
}

static void identify(struct session *s)
{
    session_describe_precision(s);
    s->identity = (struct snapshot_identity){.cfg = s->cfg,
                                             .arch = s->cfg->arch,
                                             .model = s->cfg->model,
                                             .classes = s->train_set->class_names,
                                             .nclasses = s->train_set->class_names ? s->train_set->classes : 0,
                                             .num_labels = session_labels(s),
                                             .image_size = s->cfg->length ? 0 : s->cfg->image_size,
                                             .channels = s->cfg->length ? 0 : s->cfg->num_channels,
                                             .sequence_length = s->cfg->length,
                                             .seed = s->cfg->seed,
                                             .batch = s->cfg->batch_size,
                                             .world = s->layout.world,
                                             .threads = s->threads,
                                             .device = s->device_text,
                                             .amp = s->precision_text,
                                             .optimizer = update_rule_name(s->optimizer.rule),
                                             .train_images = (int64_t)s->train_set->n,
                                             .test_images = s->test_set ? (int64_t)s->test_set->n : 0,
                                             .order = session_order(s, true),
                                             .evaluate = s->cfg->evaluate,
                                             .program = s->whole};
}

bool session_goes_on(const struct env_contract *env)
{
    return env->restart_count > 0 || (env->restart_reason && strcmp(env->restart_reason, "start") != 0);
}

static void enter(struct session *s, const struct env_contract *env)
{
    s->rank = (int)env->rank;
    s->local_world = at_least_one(env->local_world_size);
    s->nodes = at_least_one(env->group_world_size);
    /* A job that crun restarts goes on from its own checkpoints, whether or not --resume auto asks for those of older
     * runs. */
    s->resume = s->cfg->checkpoint_dir && (train_config_resume(s->cfg) == RESUME_AUTO || session_goes_on(env));
    s->failed = false;
}

int session_open_host(struct session *s, const struct train_config *cfg, const struct env_contract *env, struct err *e)
{
    session_begin(s, cfg, (int)env->rank, at_least_one(env->local_world_size), at_least_one(env->group_world_size));
    int rc;
    memory_mark(s, MEM_BEGIN);
    TRY_GOTO(rc, session_open_layout(s, (int)env->world_size, e), fail);
    TRY_GOTO(rc, session_open_data(s, e), fail);
    TRY_GOTO(rc, session_open_classes(s, e), fail);
    TRY_GOTO(rc, session_build_model(s, e), fail);
    TRY_GOTO(rc, open_device(s, env, e), fail);
    memory_mark(s, MEM_MODEL);
    return 0;
fail:
    session_close(s);
    return rc;
}

int session_warm_up(struct session *s, struct err *e)
{
    const bool needs_rank = s->layout.stages > 1 || s->layout.tensor > 1 || ownership_gathers(&s->own);
    s->rounds++; /* what follows from a rank is made anew */
    return needs_rank ? 0 : open_plans(s, e);
}

/* Another world, or another rank in it: what follows from it, of the state that there is. */
static int change_world(struct session *s, const struct env_contract *env, bool has_state, struct err *e)
{
    former_take_back(s);
    TRY(session_open_layout(s, (int)env->world_size, e));
    if (layout_equal(&s->layout, &s->own.layout) && s->rank == s->own.rank)
        return 0; /* rates of a step that is not done yet stay */
    if (has_state && s->filled && former_can_move(s))
        return former_put_aside(s, e);
    ownership_finish(&s->own);
    return session_build_ownership(s, e);
}

int session_open_round(struct session *s, const struct env_contract *env, bool has_state, struct err *e)
{
    enter(s, env);
    if (s->rounds++ > 0)
        TRY(change_world(s, env, has_state, e));
    TRY(check_output(s, env, e));
    identify(s);
    s->identity.run_id = env->run_id ? env->run_id : "";
    TRY(session_open_comm(s, env, e));
    memory_mark(s, MEM_COMM);
    if (s->resume)
        TRY(choices_take_up(s->device, s->comm, s->aside ? "" : s->cfg->checkpoint_dir, e));
    TRY(pictures_open(s, env, e));
    TRY(open_pipeline(s, e));
    memory_mark(s, MEM_PLANS);
    return 0;
}

/* Plans that send and gather by themselves are the round's; so are graphs, in which its communicators are called. */
static void close_plans_of_round(struct session *s)
{
    for (int training = 0; training < 2; training++) {
        struct plan *plan = training ? s->train_plan : s->test_plan;
        if (s->train_stage || s->test_stage || s->train_needs || s->test_needs)
            session_close_plan(s, training);
        else if (plan && s->device->ops->async)
            s->device->ops->async->uncapture(plan);
    }
}

void session_abort_round(struct session *s)
{
    if (s->comm)
        s->comm->ops->abort(s->comm);
}

void session_close_round(struct session *s)
{
    hold_watch(NULL, NULL);
    if (s->failed)
        session_abort_round(s);
    close_plans_of_round(s);
    ddp_destroy(s->ddp);
    groups_close_edges(s->edges);
    groups_close(s->groups, s->comm);
    if (s->comm)
        s->comm->ops->close(s->comm);
    s->ddp = NULL;
    s->comm = NULL;
    memset(s->groups, 0, sizeof s->groups);
    meet_close(&s->meet, s->failed ? 0 : LEAVE_MS);
}

void session_close(struct session *s)
{
    if (s->failed)
        session_abort_round(s); /* before a loader is waited for */
    loader_destroy(s->train_loader);
    loader_destroy(s->test_loader);
    pictures_close(s);
    session_close_plan(s, true);
    session_close_plan(s, false);
    session_close_round(s);
    former_drop_all(s);
    state_finish(&s->state);
    ownership_finish(&s->own);
    if (s->device)
        s->device->ops->close(s->device);
    if (s->program != s->whole)
        program_destroy(s->program);
    program_destroy(s->whole);
    free(s->cuts);
    dataset_close(s->test_set);
    dataset_close(s->train_set);
    optimizer_finish(&s->optimizer);
    free(s->weights);
    free(s->class_weights);
    free(s->by_class);
    free(s->class_ends);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    *s = (struct session){0};
}

static void tell_left_out(const char *option, const struct dataset *d)
{
    if (d && d->length && d->left_out)
        printable_line(stderr, "%s: %s", option, d->left_out);
}

/* Nothing tells whether numbers were given in that order. */
static void tell_by_number(const struct dataset *d)
{
    if (d && d->by_number)
        log_warn(
            "data",
            "--test-data is matched by number, as its classes have other names than training's, or none: 0 is taken "
            "for '%.60s', %d for '%.60s'; a classes.txt beside it that names its numbers in order makes it sure",
            d->class_names[0], d->classes - 1, d->class_names[d->classes - 1]);
}

void session_banner(const struct session *s)
{
    const struct train_config *cfg = s->cfg;
    int64_t batch = cfg->batch_size;
    const size_t trained = program_trainable(s->whole), frozen = program_frozen(s->whole);
    char some[64] = "", samples[64];
    if (frozen)
        snprintf(some, sizeof some, ", %zu of them trained", trained);
    printable_line(stderr, "%s: %zu parameters%s, %d %s, %s", cfg->arch, trained + frozen, some, session_labels(s),
                   cfg->length ? "numbers of tokens" : "classes", train_config_samples(cfg, samples));
    fprintf(stderr, "device: %s; %s; %d compute and %d loader threads a rank\n", s->device_text, s->precision_text,
            s->threads, s->loader_threads);
    fputs("data:", stderr);
    if (cfg->train_data)
        fprintf(stderr, " %zu training %s%s", s->train_set->n, cfg->length ? "sequences" : "images",
                s->test_set ? "," : "");
    if (s->test_set)
        fprintf(stderr, " %zu held out", s->test_set->n);
    fputc('\n', stderr);
    if (s->cfg->train_data)
        tell_left_out("--train-data", s->train_set);
    tell_left_out("--test-data", s->test_set);
    tell_by_number(s->test_set);
    fprintf(stderr, "batch: %lld global, %lld per node, up to %zu per rank (%d ranks, %d nodes); %lld steps an epoch\n",
            (long long)batch, (long long)((batch + s->nodes - 1) / s->nodes),
            sampler_share((size_t)batch, s->batch.count), s->batch.count, s->nodes, (long long)s->steps_per_epoch);
    session_layout_banner(s);
    struct memory_report memory;
    char text[512];
    memory_report(s, &memory);
    fprintf(stderr, "memory a rank: %s\n", memory_text(&memory, false, text, sizeof text));
}
