#include "worker/run/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/job/env_contract.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/config/cores.h"
#include "worker/data/loader/input.h"
#include "worker/data/loader/loader.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/dataset.h"
#include "worker/device/module/module.h"
#include "worker/model/model.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/groups.h"
#include "worker/program/program.h"
#include "worker/run/memory.h"
#include "worker/run/session_layout.h"
#include "worker/run/stop.h"
#include "worker/snapshot/output_folder.h"
#include "worker/state/choices.h"

#define LEAVE_MS 10000 /* rank 0 may wait so long for others that are about to end */

static int at_least_one(int64_t n)
{
    return n < 1 ? 1 : (int)n;
}

static struct input_options input_of(const struct session *s, bool training)
{
    const struct train_config *cfg = s->cfg;
    return (struct input_options){.kind = (enum input_kind)cfg->input,
                                  .size = (int)cfg->image_size,
                                  .channels = (int)cfg->num_channels,
                                  .scale = (int)cfg->scale,
                                  .training = training,
                                  .seed = (uint64_t)cfg->seed,
                                  .augment = {.scale_min = cfg->crop_scale.min,
                                              .scale_max = cfg->crop_scale.max,
                                              .ratio_min = 3.0 / 4,
                                              .ratio_max = 4.0 / 3,
                                              .flip = 0.5}};
}

static int check_input(const struct session *s, struct err *e)
{
    struct input_options training = input_of(s, true), testing = input_of(s, false);
    TRY(input_check(&training, e));
    return s->cfg->test_data ? input_check(&testing, e) : 0;
}

static int open_set(const struct session *s, struct dataset **ret, const char *option, const char *path,
                    const struct dataset_options *o, struct err *e)
{
    if (dataset_open(ret, path, o, e) < 0)
        return err_wrap(e, "%s", option);
    if (s->leads && (*ret)->left_out)
        log_warn("data", "%s %s: %s", option, path, (*ret)->left_out);
    return 0;
}

static int open_data(struct session *s, struct err *e)
{
    const struct train_config *cfg = s->cfg;
    TRY(check_input(s, e));
    struct dataset_options o = {
        .kind = (enum dataset_kind)cfg->data_format,
        .num_labels = (int)cfg->num_labels,
        .null_samples = (size_t)cfg->null_images,
        .null_size = (int)cfg->image_size,
    };
    TRY(open_set(s, &s->train_set, "--train-data", cfg->train_data, &o, e));
    if (cfg->num_labels && s->train_set->classes > cfg->num_labels)
        return err_set(e, ERR_DATA, "%s has %d classes, --num-labels allows %d", cfg->train_data, s->train_set->classes,
                       (int)cfg->num_labels);
    if (s->train_set->classes < 2 && cfg->num_labels < 2)
        return err_set(e, ERR_DATA,
                       "--train-data %s holds one class, a classifier needs at least 2; --num-labels may give more",
                       cfg->train_data);
    if (!cfg->test_data)
        return 0;
    o.testing = true;
    o.class_names = s->train_set->class_names;
    o.classes = s->train_set->classes;
    o.null_samples = 0;
    return open_set(s, &s->test_set, "--test-data", cfg->test_data, &o, e);
}

/* Before a run begins: whoever writes can write where it will have to, and overwrites nobody. */
static int check_output(struct session *s, const struct env_contract *env, struct err *e)
{
    s->writes = s->cfg->checkpoint_dir && !s->cfg->evaluate &&
                (s->rank == layout_writer(&s->layout) || (s->cfg->checkpoint_per_node && env->local_rank == 0));
    if (s->writes)
        TRY(output_folder_take(s->cfg, s->resume, env->run_id, &s->lock_fd, &s->aside, e));
    return s->leads && s->cfg->log_dir && !s->cfg->evaluate ? path_make_writable(s->cfg->log_dir, e) : 0;
}

static int labels(const struct session *s)
{
    return s->cfg->num_labels ? (int)s->cfg->num_labels : s->train_set->classes;
}

static void normalization(const struct train_config *cfg, float mean[4], float std[4])
{
    input_normalization((enum input_kind)cfg->input, (int)cfg->num_channels, mean, std);
    for (int i = 0; i < 4 && cfg->mean.n > 0; i++)
        mean[i] = (float)cfg->mean.v[i % cfg->mean.n];
    for (int i = 0; i < 4 && cfg->std.n > 0; i++)
        std[i] = (float)cfg->std.v[i % cfg->std.n];
}

static int open_model(struct session *s, struct err *e)
{
    struct model_options o = {.arch = s->cfg->arch,
                              .style = (enum net_style)s->cfg->net_style,
                              .classes = labels(s),
                              .channels = (int)s->cfg->num_channels,
                              .image_size = (int)s->cfg->image_size,
                              .zero_init_residual = s->cfg->zero_init_residual};
    static const enum split_kind kinds[] = {[MODEL_PARALLEL_FEATURES] = SPLIT_FEATURES,
                                            [MODEL_PARALLEL_CLASSES] = SPLIT_CLASSES,
                                            [MODEL_PARALLEL_LAST] = SPLIT_CLASSES};
    if (s->layout.tensor > 1)
        o.split = (struct split){kinds[s->cfg->model_parallel_dim], s->layout.tensor,
                                 layout_place(&s->layout, s->rank).tensor};
    normalization(s->cfg, o.mean, o.std);
    return model_build(&s->program, &o, e);
}

static struct optimizer choose_optimizer(const struct train_config *c)
{
    static const enum update_rule rules[] = {[OPTIMIZER_SGD] = UPDATE_SGD,
                                             [OPTIMIZER_LARS] = UPDATE_LARS,
                                             [OPTIMIZER_ADAM] = UPDATE_ADAM,
                                             [OPTIMIZER_ADAMW] = UPDATE_ADAMW};
    struct optimizer o = {.rule = rules[c->optimizer],
                          .momentum = c->momentum,
                          .beta2 = c->beta2,
                          .eps = c->adam_eps,
                          .weight_decay = c->weight_decay,
                          .trust = c->optimizer == OPTIMIZER_LARS ? c->lars_eta : 0,
                          .decay_vectors = c->bn_decay && c->optimizer != OPTIMIZER_LARS,
                          .clip_norm = c->clip_grad_norm,
                          .ema = c->ema,
                          .sum_losses = c->loss_reduction != LOSS_MEAN,
                          .bn_momentum = model_bn_momentum((enum net_style)c->net_style)};
    if (c->optimizer == OPTIMIZER_SGD && c->sgd_rule == SGD_CAFFE2)
        o.rule = UPDATE_CAFFE2;
    else if (c->nesterov)
        o.rule = UPDATE_NESTEROV;
    return o;
}

static enum half_rule half_rule(const struct precision *p)
{
    return p->level == LEVEL_O1 ? HALF_OPERANDS : HALF_STORED;
}

static int open_device(struct session *s, const struct env_contract *env, struct err *e)
{
    struct device_options o = {.threads = s->threads};
    train_config_gpu(s->cfg, &o.gpu);
    o.choice = (struct gpu_choice){.local_rank = (int)env->local_rank,
                                   .local_world = s->local_world,
                                   .list = s->cfg->gpus,
                                   .oversubscribe = s->cfg->oversubscribe};
    TRY(device_open(&s->device, s->cfg->device, &o, e));
    const struct device_ops *ops = s->device->ops;
    struct precision *p = &s->precision;
    TRY(precision_resolve(&s->cfg->precision, ops->native(s->device, DT_BF16, HALF_STORED), p, e));
    const bool half = p->half == DT_F16 || p->half == DT_BF16;
    s->compute = half ? p->half : ops->real;
    s->emulate = half && !ops->native(s->device, p->half, half_rule(p));
    s->format = s->cfg->channels_last ? MEMORY_NHWC : (enum memory_format)s->cfg->format;
    if (s->format != MEMORY_AUTO && ops->real == DT_F64)
        return err_set(e, ERR_USAGE, "--memory-format %s: the ref device has a format of its own",
                       s->format == MEMORY_NHWC ? "nhwc" : "nchw");
    if (p->useless_scale && s->leads)
        log_warn("trainer", "--loss-scale is of use with fp16 only: in %s no gradient vanishes for being small",
                 precision_text(p));
    ops->describe(s->device, s->device_text, sizeof s->device_text);
    const struct state_options state = {
        .seed = (uint64_t)s->cfg->seed,
        .second = s->optimizer.rule == UPDATE_ADAM || s->optimizer.rule == UPDATE_ADAMW,
        .ema = s->cfg->ema > 0,
    };
    const struct ownership_options pieces = {.elem_bytes = dtype_size(ops->real),
                                             .bucket_bytes = (size_t)s->cfg->bucket_mb << 20};
    TRY(ownership_init(&s->own, &s->layout, s->rank, s->program, &pieces, e));
    s->saves_together = ownership_is_spread(&s->own);
    TRY(optimizer_slice(&s->optimizer, s->program, &s->own, e));
    TRY(state_init(&s->state, s->device, s->program, &s->own, &state, e));
    s->state.loss_scale = p->scale;
    return optimizer_round(&s->state, p, e);
}

/* No step holds more images than there are: plans and buffers are as large as that, not as an option. */
static size_t batch_of(const struct session *s, bool training)
{
    size_t n = training ? s->train_set->n : s->test_set->n, batch = (size_t)s->cfg->batch_size;
    return batch < n ? batch : n;
}

/* Evaluation takes every held-out sample once, in order, for any number of ranks. */
static struct sampler order_of(const struct session *s, bool training)
{
    const struct train_config *cfg = s->cfg;
    struct sampler o = {.n = training ? s->train_set->n : s->test_set->n,
                        .batch = batch_of(s, training),
                        .rank = s->batch.index,
                        .world = s->batch.count,
                        .seed = (uint64_t)cfg->seed};
    if (training) {
        o.kind = (enum sampler_kind)cfg->sampler;
        o.shards = s->nodes;
        o.shuffle = cfg->shuffle == SHUFFLE_ON || (cfg->shuffle == SHUFFLE_AUTO && o.kind != SAMPLER_SHARDED);
        o.drop_last = cfg->drop_last;
        o.epoch_size = (size_t)cfg->epoch_size;
        o.parts = (int)cfg->accumulate;
    }
    return o;
}

/* Samples that go through the model at once. */
static size_t part_of(const struct session *s, bool training)
{
    const struct sampler order = order_of(s, training);
    return sampler_part_rows(&order);
}

static int open_plan(struct session *s, bool training, struct plan **ret, struct err *e)
{
    const struct state *st = &s->state;
    const bool average = !training && st->ema_params;
    struct plan_options o = {.batch = (int)part_of(s, training),
                             .training = training,
                             .compute = s->compute,
                             .emulate = s->emulate,
                             .half = half_rule(&s->precision),
                             .half_bn = s->precision.half_bn,
                             .format = s->format,
                             .params = average ? st->ema_params : st->params,
                             .stats = average ? st->ema_stats : st->stats,
                             .reduce = st->reduce,
                             .group = s->layout.tensor > 1 ? &s->group : NULL};
    return s->device->ops->plan(s->device, s->program, &o, ret, e);
}

static int open_loader(struct session *s, bool training, struct loader **ret, struct err *e)
{
    const struct train_config *cfg = s->cfg;
    struct loader_options o = {.sampler = order_of(s, training),
                               .input = input_of(s, training),
                               .threads = s->loader_threads,
                               .strict = cfg->strict_data,
                               .batch_log = training ? cfg->debug_batch_sha : NULL};
    return loader_create(ret, training ? s->train_set : s->test_set, &o, e);
}

static int open_pipeline(struct session *s, struct err *e)
{
    struct sampler order = order_of(s, true);
    TRY(sampler_check(&order, e));
    s->part = (int)part_of(s, true);
    s->parts = sampler_parts(&order);
    if (s->cfg->ignore_index >= 0 && !(s->weights = calloc((size_t)s->parts * (size_t)s->part, sizeof *s->weights)))
        return err_errno(e, ENOMEM, "weights of %d samples", s->parts * s->part);
    if (!s->cfg->evaluate) {
        TRY(open_plan(s, true, &s->train_plan, e));
        TRY(open_loader(s, true, &s->train_loader, e));
    }
    s->steps_per_epoch = sampler_steps(&order);
    if (!s->test_set)
        return 0;
    TRY(open_plan(s, false, &s->test_plan, e));
    TRY(open_loader(s, false, &s->test_loader, e));
    order = order_of(s, false);
    s->test_steps = sampler_steps(&order);
    if (s->cfg->eval_steps && s->cfg->eval_steps < s->test_steps)
        s->test_steps = s->cfg->eval_steps;
    return 0;
}

static void describe_precision(struct session *s)
{
    const struct precision *p = &s->precision;
    const bool half = p->level != LEVEL_O0, wide = s->device->ops->real == DT_F64;
    const char *how = !half || !s->emulate ? ""
                      : wide               ? " (emulated in fp64)"
                                           : " (emulated: values are rounded, arithmetic is fp32)";
    snprintf(s->precision_text, sizeof s->precision_text, "%s%s", half || !wide ? precision_text(p) : "fp64", how);
}

static void identify(struct session *s)
{
    describe_precision(s);
    s->identity = (struct snapshot_identity){.cfg = s->cfg,
                                             .arch = s->cfg->arch,
                                             .classes = s->train_set->class_names,
                                             .nclasses = s->train_set->classes,
                                             .num_labels = labels(s),
                                             .image_size = s->cfg->image_size,
                                             .channels = s->cfg->num_channels,
                                             .seed = s->cfg->seed,
                                             .batch = s->cfg->batch_size,
                                             .world = s->layout.world,
                                             .threads = s->threads,
                                             .device = s->device_text,
                                             .amp = s->precision_text,
                                             .optimizer = update_rule_name(s->optimizer.rule),
                                             .train_images = (int64_t)s->train_set->n,
                                             .order = order_of(s, true),
                                             .evaluate = s->cfg->evaluate,
                                             .program = s->program};
}

/* A round that follows another of the same job: after a failure, or because nodes came or went. */
static bool goes_on(const struct env_contract *env)
{
    return env->restart_count > 0 || (env->restart_reason && strcmp(env->restart_reason, "start") != 0);
}

int session_open(struct session *s, const struct train_config *cfg, const struct env_contract *env, struct err *e)
{
    *s = (struct session){.cfg = cfg,
                          .rank = (int)env->rank,
                          .local_world = at_least_one(env->local_world_size),
                          .nodes = at_least_one(env->group_world_size),
                          .lock_fd = -1};
    /* A job that crun restarts goes on with what it saved before, whether or not it was told to look for older
     * runs'. */
    s->resume = cfg->checkpoint_dir && (train_config_resume(cfg) == RESUME_AUTO || goes_on(env));
    s->threads = threads_of_rank(cfg->threads, s->local_world);
    s->optimizer = choose_optimizer(cfg);
    s->loader_threads = threads_of_rank(cfg->loader_threads, s->local_world);
    int rc;
    TRY_GOTO(rc, session_open_layout(s, (int)env->world_size, e), fail);
    TRY_GOTO(rc, open_data(s, e), fail);
    TRY_GOTO(rc, open_model(s, e), fail);
    TRY_GOTO(rc, open_device(s, env, e), fail);
    TRY_GOTO(rc, check_output(s, env, e), fail);
    identify(s);
    s->identity.run_id = env->run_id ? env->run_id : "";
    TRY_GOTO(rc, session_open_comm(s, env, e), fail);
    if (s->resume)
        TRY_GOTO(rc, choices_take_up(s->device, s->comm, s->aside ? "" : cfg->checkpoint_dir, e), fail);
    TRY_GOTO(rc, open_pipeline(s, e), fail);
    return 0;
fail:
    s->failed = true;
    session_close(s);
    return rc;
}

void session_close(struct session *s)
{
    if (s->comm && s->failed)
        s->comm->ops->abort(s->comm); /* nobody may wait for us any more, nor we for them */
    loader_destroy(s->train_loader);
    loader_destroy(s->test_loader);
    if (s->train_plan)
        s->device->ops->plan_close(s->train_plan);
    if (s->test_plan)
        s->device->ops->plan_close(s->test_plan);
    ddp_destroy(s->ddp);
    groups_close(s->groups, s->comm);
    if (s->comm)
        s->comm->ops->close(s->comm);
    meet_close(&s->meet, s->failed ? 0 : LEAVE_MS);
    state_finish(&s->state);
    ownership_finish(&s->own);
    if (s->device)
        s->device->ops->close(s->device);
    program_destroy(s->program);
    dataset_close(s->test_set);
    dataset_close(s->train_set);
    optimizer_finish(&s->optimizer);
    free(s->weights);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    *s = (struct session){0};
}

void session_banner(const struct session *s)
{
    const struct train_config *cfg = s->cfg;
    int64_t batch = cfg->batch_size;
    fprintf(stderr, "%s: %zu parameters, %d classes, %d x %d images\n", cfg->arch, program_trainable(s->program),
            labels(s), (int)cfg->image_size, (int)cfg->image_size);
    fprintf(stderr, "device: %s; %s; %d compute and %d loader threads a rank\n", s->device_text, s->precision_text,
            s->threads, s->loader_threads);
    fprintf(stderr, "data: %zu training images%s", s->train_set->n, s->test_set ? ", " : "\n");
    if (s->test_set)
        fprintf(stderr, "%zu held out\n", s->test_set->n);
    fprintf(stderr, "batch: %lld global, %lld per node, up to %zu per rank (%d ranks, %d nodes); %lld steps an epoch\n",
            (long long)batch, (long long)((batch + s->nodes - 1) / s->nodes),
            sampler_share((size_t)batch, s->batch.count), s->batch.count, s->nodes, (long long)s->steps_per_epoch);
    session_layout_banner(s);
    struct memory_report memory;
    char text[512];
    memory_report(s, &memory);
    fprintf(stderr, "memory a rank: %s\n", memory_text(&memory, false, text, sizeof text));
}
