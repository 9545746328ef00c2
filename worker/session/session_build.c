/* Builds data sets, model, precision and plans of a rank, without its peers. */
#include "worker/session/session_build.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/config/config.h"
#include "worker/config/cores.h"
#include "worker/data/sets/dataset.h"
#include "worker/data/sets/split.h"
#include "worker/model/model.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/patterns.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"
#include "worker/session/hints.h"
#include "worker/session/memory_room.h"
#include "worker/session/outlive.h"
#include "worker/session/stop.h"

static struct input_options input_of(const struct session *s, bool training)
{
    const struct train_config *cfg = s->cfg;
    return (struct input_options){.tokens = cfg->length,
                                  .kind = (enum input_kind)cfg->input,
                                  .size = (int)cfg->image_size,
                                  .channels = (int)cfg->num_channels,
                                  .scale = (int)cfg->scale,
                                  .interpolation = (enum interpolation)cfg->interpolation,
                                  .training = training,
                                  .seed = (uint64_t)cfg->seed,
                                  .augment = {.scale_min = cfg->crop_scale.min,
                                              .scale_max = cfg->crop_scale.max,
                                              .ratio_min = 3.0 / 4,
                                              .ratio_max = 4.0 / 3,
                                              .flip = cfg->hflip ? 0.5 : 0},
                                  .unflipped = !cfg->hflip,
                                  .padding = (int)(cfg->crop_padding < 0    ? 0
                                                   : cfg->crop_padding == 0 ? -1
                                                                            : cfg->crop_padding),
                                  .policy = cfg->augment,
                                  .jitter = cfg->color_jitter,
                                  .erase = cfg->random_erase};
}

static int check_input(const struct session *s, struct err *e)
{
    struct input_options training = input_of(s, true), testing = input_of(s, false);
    TRY(input_check(&training, e));
    return train_config_held_out(s->cfg) ? input_check(&testing, e) : 0;
}

static int open_set(const struct session *s, struct dataset **ret, const char *option, const char *path,
                    const struct dataset_options *o, struct err *e)
{
    if (dataset_open(ret, path, o, e) < 0)
        return err_wrap(e, "%s", option);
    if (s->leads && (*ret)->left_out && !(*ret)->length) /* of tokens the banner tells */
        log_warn("data", "%s %s: %s", option, path, (*ret)->left_out);
    return 0;
}

/* Of a model of tokens: these, unless they are made up. */
static int choose_format(const struct train_config *cfg, enum dataset_kind *ret, struct err *e)
{
    static const char *const kinds[] = {DATASET_KINDS(CHOICE_NAME)};
    const char *path = cfg->train_data ? cfg->train_data : cfg->test_data;
    *ret = (enum dataset_kind)cfg->data_format;
    if (!cfg->length || *ret == DATASET_TOKENS || *ret == DATASET_NULL)
        return 0;
    if (*ret != DATASET_AUTO)
        return err_set(e, ERR_USAGE, "--data-format %s are pictures, and %s reads tokens", kinds[*ret], cfg->arch);
    *ret = strcmp(path, "null") == 0 ? DATASET_AUTO : DATASET_TOKENS;
    return 0;
}

static int one_class(const struct session *s, struct err *e)
{
    const char *path = s->cfg->train_data, *part = hints_part_to_train_on(s->train_set, path);
    if (part)
        return err_set(e, ERR_DATA, "--train-data %s holds one class, '%s': is --train-data %s/%s meant?", path, part,
                       path, part);
    return err_set(e, ERR_DATA,
                   "--train-data %s holds one class, a classifier needs at least 2; --num-labels may give more", path);
}

static int hold_out(struct session *s, struct err *e)
{
    struct dataset *whole = s->train_set;
    return dataset_split(whole, s->cfg->train_data, s->cfg->val_split, (uint64_t)s->cfg->seed, &s->train_set,
                         &s->test_set, e);
}

int session_open_data(struct session *s, struct err *e)
{
    const struct train_config *cfg = s->cfg;
    TRY(check_input(s, e));
    /* without training data, of an evaluation: the classes are the checkpoint's */
    const bool trains = cfg->train_data != NULL;
    struct dataset_options o = {
        .testing = !trains,
        .class_names = trains ? NULL : cfg->class_names,
        .classes = trains ? 0 : cfg->n_class_names,
        .num_labels = (int)cfg->num_labels,
        .null_samples = (size_t)cfg->null_images,
        .null_size = (int)cfg->image_size,
        .length = cfg->length,
        .vocabulary = cfg->vocabulary,
        .token_bytes = (int)cfg->token_bytes,
        .makes_nothing = s->looks_only,
    };
    TRY(choose_format(cfg, &o.kind, e));
    TRY(trains ? open_set(s, &s->train_set, "--train-data", cfg->train_data, &o, e)
               : open_set(s, &s->train_set, "--test-data", cfg->test_data, &o, e));
    if (trains && cfg->num_labels && s->train_set->classes > cfg->num_labels)
        return err_set(e, ERR_DATA, "%s has %d classes, --num-labels allows %d", cfg->train_data, s->train_set->classes,
                       (int)cfg->num_labels);
    if (trains && cfg->shuffle.how == SHUFFLE_SHARDS && !s->train_set->shard_ends)
        return err_set(e, ERR_USAGE,
                       "--shuffle shards:%d is for tar files, and --train-data %s is none: use --shuffle on",
                       cfg->shuffle.shards, cfg->train_data);
    if (s->train_set->classes < 2 && cfg->num_labels < 2)
        return one_class(s, e);
    if (cfg->val_split > 0)
        return hold_out(s, e);
    if (!cfg->test_data)
        return 0;
    o.testing = true;
    o.class_names = s->train_set->class_names;
    o.classes = s->train_set->classes;
    o.null_samples = 0;
    return open_set(s, &s->test_set, "--test-data", cfg->test_data, &o, e);
}

int session_labels(const struct session *s)
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

static struct input model_input(const struct train_config *cfg)
{
    const int size = (int)cfg->image_size;
    float mean[4], std[4];
    if (cfg->length)
        return input_tokens(cfg->length, cfg->vocabulary);
    normalization(cfg, mean, std);
    return input_pictures((int)cfg->num_channels, size, size, mean, std);
}

/* This rank's stage of the model. */
static int cut_model(struct session *s, struct err *e)
{
    const int stages = s->pipeline.stages, parts = stages * s->pipeline.chunks,
              stage = layout_place(&s->layout, s->rank).stage;
    s->cuts = calloc((size_t)parts, sizeof *s->cuts);
    if (!s->cuts)
        return err_errno(e, ENOMEM, "a model of %d parts", parts);
    int rc = s->cfg->stage_cut ? stages_cut_at(s->whole, s->cfg->stage_cut, parts, s->cuts, e)
                               : stages_cut(s->whole, parts, s->cuts, e);
    if (rc == -EINVAL) /* the command line's fault */
        return ERR_USAGE;
    TRY(rc);
    s->pipeline.trains_from = stages_first_trained(s->whole, s->cuts, parts);
    return stages_program(&s->program, s->whole, s->cuts, parts, stages, stage, e);
}

int session_build_model(struct session *s, struct err *e)
{
    struct model_options o = {.arch = s->cfg->arch,
                              .text = s->cfg->model,
                              .classes = session_labels(s),
                              .factors = s->cfg->lr_mul,
                              .input = model_input(s->cfg)};
    static const enum split_kind kinds[] = {[MODEL_PARALLEL_FEATURES] = SPLIT_FEATURES,
                                            [MODEL_PARALLEL_CLASSES] = SPLIT_CLASSES,
                                            [MODEL_PARALLEL_LAST] = SPLIT_CLASSES,
                                            [MODEL_PARALLEL_BLOCKS] = SPLIT_NONE};
    if (s->layout.tensor > 1)
        o.split = (struct split){kinds[s->cfg->model_parallel_dim], s->layout.tensor,
                                 layout_place(&s->layout, s->rank).tensor};
    if (s->layout.zero == 3)
        o.align = OWNERSHIP_ALIGN * (size_t)s->batch.count;
    TRY(model_build(&s->whole, &o, e));
    TRY(patterns_check_model("no-decay", s->cfg->no_decay, s->whole, e));
    TRY(patterns_check_model("lr-mul", s->cfg->lr_mul, s->whole, e));
    if (s->whole->n_train == 0)
        return err_set(e, ERR_USAGE, "%s%s: all parameters of %s are frozen, so there is nothing to train",
                       s->cfg->lr_mul ? "--lr-mul " : "--arch ", s->cfg->lr_mul ? s->cfg->lr_mul : s->cfg->arch,
                       s->whole->arch);
    if (s->layout.stages > 1)
        return cut_model(s, e);
    s->program = s->whole;
    return 0;
}

static struct optimizer choose_optimizer(const struct train_config *c)
{
    static const enum update_rule rules[] = {[OPTIMIZER_SGD] = UPDATE_SGD,
                                             [OPTIMIZER_LARS] = UPDATE_LARS,
                                             [OPTIMIZER_ADAM] = UPDATE_ADAM,
                                             [OPTIMIZER_ADAMW] = UPDATE_ADAMW,
                                             [OPTIMIZER_LAMB] = UPDATE_LAMB};
    struct optimizer o = {.rule = rules[c->optimizer],
                          .momentum = c->momentum,
                          .beta2 = c->beta2,
                          .eps = c->adam_eps,
                          .weight_decay = c->weight_decay,
                          .trust = c->optimizer == OPTIMIZER_LARS   ? c->lars_eta
                                   : c->optimizer == OPTIMIZER_LAMB ? 1
                                                                    : 0,
                          .decay_vectors = c->bn_decay && c->optimizer != OPTIMIZER_LARS,
                          .no_decay = c->no_decay,
                          .lr_mul = c->lr_mul,
                          .layer_decay = c->layer_decay,
                          .ema_every = c->ema_every,
                          .epoch = 1,
                          .clip_norm = c->clip_grad_norm,
                          .ema = c->ema,
                          .sum_losses = c->loss_reduction != LOSS_MEAN,
                          .weighted = c->class_weights != NULL,
                          .bn_momentum = model_bn_momentum((enum net_style)c->net_style)};
    if (c->optimizer == OPTIMIZER_SGD && c->sgd_rule == SGD_CAFFE2)
        o.rule = UPDATE_CAFFE2;
    else if (c->nesterov)
        o.rule = UPDATE_NESTEROV;
    return o;
}

void session_begin(struct session *s, const struct train_config *cfg, int rank, int local_world, int nodes)
{
    *s = (struct session){.cfg = cfg,
                          .rank = rank,
                          .local_world = local_world,
                          .nodes = nodes,
                          .threads = threads_of_rank(cfg->threads, local_world),
                          .loader_threads = threads_of_rank(cfg->loader_threads, local_world),
                          .optimizer = choose_optimizer(cfg),
                          .lock_fd = -1};
}

static enum half_rule half_rule(const struct precision *p)
{
    return p->level == LEVEL_O1 ? HALF_OPERANDS : HALF_STORED;
}

int session_open_device(struct session *s, const struct gpu_choice *c, struct err *e)
{
    struct device_options o = {.threads = s->threads, .choice = *c};
    char cache[CONFIG_CACHE_BYTES];
    train_config_gpu(s->cfg, s->layout.world <= 1, &o.gpu, cache);
    o.gpu.stopping = stop_wanted;
    return device_open(&s->device, s->cfg->device, &o, e);
}

int session_resolve_precision(struct session *s, struct err *e)
{
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
    return 0;
}

void session_describe_precision(struct session *s)
{
    const struct precision *p = &s->precision;
    const bool half = p->level != LEVEL_O0, wide = s->device->ops->real == DT_F64;
    const char *how = !half || !s->emulate ? ""
                      : wide               ? " (emulated in fp64)"
                                           : " (emulated: values are rounded, arithmetic is fp32)";
    snprintf(s->precision_text, sizeof s->precision_text, "%s%s", half || !wide ? precision_text(p) : "fp64", how);
}

int session_build_ownership(struct session *s, struct err *e)
{
    if (s->layout.seconds && s->device->ops->async && !outlive_waits(s))
        return err_set(e, ERR_USAGE,
                       "--replicate-state %d: on a GPU ranks that have a stage or a part of the last layer start again "
                       "when one dies, and nobody would take up what is replicated",
                       (int)s->cfg->replicate_state);
    const struct ownership_options pieces = {.elem_bytes = dtype_size(s->device->ops->real),
                                             .bucket_bytes = (size_t)s->cfg->bucket_mb << 20,
                                             .whole_gradients = s->pipeline.chunks > 1,
                                             .compact = s->device->ops->async != NULL};
    TRY(ownership_init(&s->own, &s->layout, s->rank, s->program, &pieces, e));
    s->saves_together = ownership_is_spread(&s->own);
    s->optimizer.model = s->whole;
    return optimizer_slice(&s->optimizer, s->program, &s->own, e);
}

struct state_options session_state(const struct session *s)
{
    return (struct state_options){
        .seed = (uint64_t)s->cfg->seed,
        .second = s->optimizer.rule >= UPDATE_ADAM,
        .ema = s->cfg->ema > 0,
        .whole = s->whole,
    };
}

static struct mix_options mix_of(const struct train_config *cfg)
{
    return (struct mix_options){
        .mixup = cfg->mixup, .cutmix = cfg->cutmix, .least = cfg->bce_threshold, .group = (size_t)cfg->mix_group};
}

/* Evaluation takes every held-out sample once, in order, for any number of ranks. */
struct sampler session_order(const struct session *s, bool training)
{
    const struct train_config *cfg = s->cfg;
    struct sampler o = {.n = training ? s->train_set->n : s->test_set->n,
                        .batch = (size_t)cfg->batch_size,
                        .rank = s->batch.index,
                        .world = s->batch.count,
                        .seed = (uint64_t)cfg->seed};
    if (training) {
        o.kind = (enum sampler_kind)cfg->sampler;
        o.shards = s->nodes;
        const int how = cfg->shuffle.how;
        o.shuffle = how == SHUFFLE_ON || how == SHUFFLE_SHARDS || how == SHUFFLE_BALANCED ||
                    (how == SHUFFLE_AUTO && o.kind != SAMPLER_SHARDED);
        o.mixed = how == SHUFFLE_SHARDS ? cfg->shuffle.shards : 0;
        o.sets = s->train_set->n_shards;
        o.set_ends = s->train_set->shard_ends;
        o.balanced = how == SHUFFLE_BALANCED;
        o.classes = s->drawn_classes;
        o.class_ends = s->class_ends;
        o.by_class = s->by_class;
        o.drop_last = cfg->drop_last;
        o.epoch_size = (size_t)cfg->epoch_size;
        o.parts = (int)cfg->accumulate;
        o.repetitions = (int)cfg->repeated_augmentation;
        const struct mix_options mix = mix_of(cfg);
        o.mix_group = mix_is_on(&mix) ? mix.group : 0;
    }
    sampler_clip(&o); /* plans and buffers are as large as what there is, not as an option */
    return o;
}

size_t session_part(const struct session *s, bool training)
{
    const struct sampler order = session_order(s, training);
    return sampler_part_rows(&order);
}

struct plan_options session_plan(const struct session *s, bool training)
{
    const struct state *st = &s->state;
    const struct sampler order = session_order(s, training);
    const bool average = !training && st->ema_params;
    return (struct plan_options){.batch = (int)session_part(s, training),
                                 .others = (int)sampler_part_others(&order),
                                 .mixes = training && (order.mix_group || s->cfg->random_erase > 0),
                                 .training = training,
                                 .compute = s->compute,
                                 .emulate = s->emulate,
                                 .half = half_rule(&s->precision),
                                 .half_bn = s->precision.half_bn,
                                 .loss = training ? s->loss : (struct loss_rule){0},
                                 .fresh_weights = training && sampler_parts(&order) == 1,
                                 .format = s->format,
                                 .params = average ? st->ema_params : st->params,
                                 .stats = average ? st->ema_stats : st->stats,
                                 .reduce = st->reduce,
                                 .room = training ? memory_room_of_training : memory_room_of_evaluation,
                                 .room_ctx = s,
                                 .group = s->layout.tensor > 1 ? &s->group : NULL};
}

static int open_stage(struct session *s, bool training, bool forecast, struct err *e)
{
    const struct sampler order = session_order(s, training);
    struct stage_options o = {.order = s->pipeline,
                              .index = layout_place(&s->layout, s->rank).stage,
                              .comm = forecast ? NULL : s->groups[LAYOUT_STAGES],
                              .before = s->edges[0],
                              .behind = s->edges[1],
                              .device = s->device,
                              .program = s->program,
                              .own = &s->own,
                              .ddp = s->ddp,
                              .plan = session_plan(s, training),
                              .recompute = s->cfg->recompute && training};
    o.order.micro_batches = training ? sampler_parts(&order) : 1;
    o.plan.forecast = forecast;
    if (training)
        TRY(pipeline_check(&o.order, e)); /* a small data set has fewer of them */
    return stage_open(training ? &s->train_stage : &s->test_stage, &o, e);
}

bool session_loads(const struct session *s)
{
    return layout_place(&s->layout, s->rank).stage == 0;
}

int session_open_plan(struct session *s, bool training, bool forecast, struct err *e)
{
    struct plan_options o = session_plan(s, training);
    struct residency **needs = training ? &s->train_needs : &s->test_needs;
    if (s->layout.stages > 1)
        return open_stage(s, training, forecast, e);
    o.forecast = forecast;
    if (ownership_gathers(&s->own)) {
        TRY(residency_create(needs, &s->own, s->ddp, s->device, o.params, e));
        o.needs = residency_needs(*needs);
    }
    return s->device->ops->plan(s->device, s->program, &o, training ? &s->train_plan : &s->test_plan, e);
}

void session_close_plan(struct session *s, bool training)
{
    struct plan **plan = training ? &s->train_plan : &s->test_plan;
    struct residency **needs = training ? &s->train_needs : &s->test_needs;
    struct stage **stage = training ? &s->train_stage : &s->test_stage;
    stage_close(*stage);
    if (*plan)
        s->device->ops->plan_close(*plan);
    residency_destroy(*needs);
    *plan = NULL;
    *needs = NULL;
    *stage = NULL;
}

/* Other ranks wait meanwhile, for --comm-timeout: the rank whose file is not read says so before they give up. */
static int64_t batch_timeout_ms(const struct session *s)
{
    const double most = s->cfg->comm_timeout * 1000 / 2;
    return s->layout.world > 1 && most < LOADER_TIMEOUT_MS ? (int64_t)ceil(most) : LOADER_TIMEOUT_MS;
}

struct loader_options session_loader(const struct session *s, bool training)
{
    return (struct loader_options){.sampler = session_order(s, training),
                                   .input = input_of(s, training),
                                   .mix = training ? mix_of(s->cfg) : (struct mix_options){0},
                                   .threads = s->loader_threads,
                                   .device = s->device,
                                   .cache = training ? s->pictures : NULL,
                                   .strict = s->cfg->strict_data,
                                   .timeout_ms = batch_timeout_ms(s),
                                   .batch_log = training ? s->cfg->debug_batch_sha : NULL};
}
