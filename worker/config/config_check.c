/* What options contradict each other. */
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/data/loader/input.h"
#include "worker/data/loader/sampler.h"
#include "worker/device/device.h"
#include "worker/optim/schedule.h"
#include "worker/program/patterns.h"

#define CHECKPOINT_NAME_MAX 200 /* bytes: with the epochs and suffixes behind it, it is still a file name */

static int check_aliases(const struct train_config *c, struct err *e)
{
    struct precision p;
    TRY(precision_resolve(&c->precision, false, &p, e));
    if (c->channels_last && c->format == MEMORY_NCHW)
        return err_set(e, ERR_USAGE, "--channels-last and --memory-format nchw contradict each other");
    if (c->fp16_allreduce && c->allreduce == ALLREDUCE_BF16)
        return err_set(e, ERR_USAGE, "--fp16-allreduce and --allreduce-dtype bf16 contradict each other");
    if (c->fsdp && c->zero != 0 && c->zero != 3)
        return err_set(e, ERR_USAGE, "--fsdp is --zero 3, and --zero %d contradicts it", (int)c->zero);
    return 0;
}

int train_config_check_channels(const struct train_config *c, struct err *e)
{
    if (c->num_channels != 1 && c->num_channels != 3)
        return err_set(e, ERR_USAGE, "--num-channels %d: must be 1 or 3", (int)c->num_channels);
    if ((c->mean.n && c->mean.n != 1 && c->mean.n != c->num_channels) ||
        (c->std.n && c->std.n != 1 && c->std.n != c->num_channels))
        return err_set(e, ERR_USAGE, "--mean and --std take one value or one for each of the %d channels",
                       (int)c->num_channels);
    return 0;
}

static int check_data(const struct train_config *c, struct err *e)
{
    if (c->evaluate && !train_config_held_out(c))
        return err_set(e, ERR_USAGE, "--evaluate needs --test-data");
    if (c->val_split > 0 && c->test_data)
        return err_set(e, ERR_USAGE,
                       "--val-split %g: --test-data is evaluated already; drop one of the two, and try the test "
                       "data with --evaluate in the end",
                       c->val_split);
    if (c->val_split > 0 && !c->train_data)
        return err_set(e, ERR_USAGE, "--val-split %g needs --train-data, which it holds samples out of", c->val_split);
    if (c->early_stop && !train_config_held_out(c))
        return err_set(e, ERR_USAGE, "--early-stop %d: nothing is evaluated; --test-data or --val-split is needed",
                       (int)c->early_stop);
    if (c->report && !c->evaluate)
        return err_set(e, ERR_USAGE, "--report goes with --evaluate");
    if (c->token_bytes && c->token_bytes != 2 && c->token_bytes != 4)
        return err_set(e, ERR_USAGE, "--token-bytes %d: must be 2 or 4", (int)c->token_bytes);
    if (!c->train_data && !c->evaluate)
        return err_set(e, ERR_USAGE, "option '--train-data' is required: a folder of training images, for example");
    return 0;
}

static int check_input(const struct train_config *c, struct err *e)
{
    TRY(train_config_check_channels(c, e));
    if (c->scale && c->input != INPUT_TORCH && c->input != INPUT_CAFFE2)
        return err_set(e, ERR_USAGE, "--scale %d: --input plain and cifar scale to --image-size", (int)c->scale);
    if (c->input != INPUT_TORCH && (c->crop_scale.min != 0.08 || c->crop_scale.max != 1))
        return err_set(e, ERR_USAGE, "--crop-scale: only --input torch crops shares of the area");
    if (c->crop_padding > 0 && (c->input == INPUT_TORCH || c->input == INPUT_CAFFE2))
        return err_set(e, ERR_USAGE, "--crop-padding %d: only --input cifar and plain put pixels around an image",
                       (int)c->crop_padding);
    if (c->interpolation != INTERPOLATION_BILINEAR && c->input == INPUT_CAFFE2)
        return err_set(e, ERR_USAGE, "--interpolation: --input caffe2 scales by area; leave --interpolation out");
    if (c->drop_last && c->sampler != SAMPLER_DISTRIBUTED)
        return err_set(e, ERR_USAGE, "--drop-last is an option of --sampler distributed; the others repeat nothing");
    if (c->num_labels == 1)
        return err_set(e, ERR_USAGE, "--num-labels 1: a classifier needs at least 2 classes");
    return 0;
}

static int check_mixing(const struct train_config *c, struct err *e)
{
    const bool mixes = c->mixup > 0 || c->cutmix > 0;
    if (mixes && c->ignore_index >= 0)
        return err_set(e, ERR_USAGE,
                       "--ignore-index %d: an image of that class may be mixed with others; leave --mixup and --cutmix "
                       "out",
                       (int)c->ignore_index);
    if (mixes && c->class_weights)
        return err_set(e, ERR_USAGE,
                       "--class-weights: an image of two classes has no weight of one; leave --class-weights out, or "
                       "--mixup and --cutmix");
    if (!mixes && c->mix_group != 128)
        return err_set(e, ERR_USAGE, "--mix-group %d: nothing is mixed without --mixup or --cutmix", (int)c->mix_group);
    return 0;
}

static int check_folders(const struct train_config *c, struct err *e)
{
    if ((c->checkpoint_dir && !*c->checkpoint_dir) || (c->log_dir && !*c->log_dir))
        return err_set(e, ERR_USAGE, "%s '': a folder is needed",
                       c->checkpoint_dir && !*c->checkpoint_dir ? "--checkpoint-dir" : "--log-dir");
    if (train_config_resume(c) == RESUME_AUTO && !c->checkpoint_dir)
        return err_set(e, ERR_USAGE, "--resume auto needs --checkpoint-dir: it says where to look");
    if (c->checkpoint_name && (!c->checkpoint_dir || !*c->checkpoint_name || strchr(c->checkpoint_name, '/')))
        return err_set(e, ERR_USAGE, "--checkpoint-name '%s': a file name in --checkpoint-dir is needed",
                       c->checkpoint_name);
    if (c->checkpoint_name && strlen(c->checkpoint_name) > CHECKPOINT_NAME_MAX)
        return err_set(e, ERR_USAGE, "--checkpoint-name: %zu bytes, at most %d are taken", strlen(c->checkpoint_name),
                       CHECKPOINT_NAME_MAX);
    if ((c->checkpoint_every || c->checkpoint_seconds > 0) && !c->checkpoint_dir)
        return err_set(e, ERR_USAGE, "--checkpoint-every and --checkpoint-seconds need --checkpoint-dir");
    return 0;
}

static int check_loss(const struct train_config *c, struct err *e)
{
    if (c->class_weights && c->loss == LOSS_BINARY)
        return err_set(e, ERR_USAGE, "--class-weights are those of --loss ce; --loss bce has none");
    if (c->bce_threshold > 0 && (c->loss != LOSS_BINARY || (c->mixup <= 0 && c->cutmix <= 0)))
        return err_set(e, ERR_USAGE,
                       "--bce-threshold %g: labels share an image only with --loss bce and --mixup or --cutmix",
                       c->bce_threshold);
    if (c->bce_threshold > 0 && c->label_smoothing > 0)
        return err_set(e, ERR_USAGE,
                       "--label-smoothing %g: with --bce-threshold targets are 0 or 1; leave one of the two out",
                       c->label_smoothing);
    return 0;
}

static int check_optimizer(const struct train_config *c, struct err *e)
{
    if (c->optimizer != OPTIMIZER_SGD && (c->nesterov || c->sgd_rule != SGD_TORCH))
        return err_set(e, ERR_USAGE, "--nesterov and --sgd-rule are rules of --optimizer sgd");
    if (c->nesterov && c->sgd_rule == SGD_CAFFE2)
        return err_set(e, ERR_USAGE, "--nesterov goes with --sgd-rule torch; caffe2's rule is Nesterov's already");
    if (c->nesterov && c->momentum == 0)
        return err_set(e, ERR_USAGE, "--nesterov needs a --momentum above 0");
    if (c->optimizer >= OPTIMIZER_ADAM && (c->momentum >= 1 || c->beta2 >= 1))
        return err_set(e, ERR_USAGE, "--momentum %g, --beta2 %g: adam needs both below 1", c->momentum, c->beta2);
    if ((c->lr_policy == LR_HOROVOD || c->lr_policy == LR_APEX) && c->lr_scale != LR_SCALE_NONE)
        return err_set(e, ERR_USAGE, "--lr-policy %s scales the rate itself: leave --lr-scale out",
                       schedule_policy_name((enum lr_policy)c->lr_policy));
    TRY(patterns_check("no-decay", c->no_decay, false, e));
    TRY(patterns_check("lr-mul", c->lr_mul, true, e));
    if ((c->lr_policy == LR_COSINE || c->lr_policy == LR_TIMM) && c->lr_min > c->base_lr)
        return err_set(e, ERR_USAGE, "--lr-min %g is above --base-learning-rate %g, from which the rate falls",
                       c->lr_min, c->base_lr);
    if (c->ema >= 1)
        return err_set(e, ERR_USAGE, "--ema %g: an average that keeps all of itself never moves", c->ema);
    return 0;
}

static int check_model_parallel(const struct train_config *c, struct err *e)
{
    static const char *const dims[] = {MODEL_PARALLEL_DIMS(CHOICE_NAME)};
    if (c->model_parallel_dim != MODEL_PARALLEL_NONE && !c->model_parallel && !c->model_parallel_size &&
        !c->auto_parallel)
        return err_set(e, ERR_USAGE,
                       "--model-parallel-dim %s: over which ranks? --enable-model-parallel takes all, "
                       "--model-parallel-size N groups of N",
                       dims[c->model_parallel_dim]);
    return 0;
}

static int check_stages(const struct train_config *c, struct err *e)
{
    const struct pipeline p = train_config_pipeline(c);
    const char *useless = c->stage_cut                    ? "--stage-cut"
                          : c->recompute                  ? "--recompute"
                          : c->schedule == PIPELINE_GPIPE ? "--schedule gpipe"
                                                          : NULL;
    if (c->stages == 1 && useless)
        return err_set(e, ERR_USAGE, "%s: the model is in one piece; --stages N cuts it", useless);
    return c->auto_parallel ? 0 : pipeline_check(&p, e);
}

static int check_seconds(const struct train_config *c, struct err *e)
{
    if (c->replicate_state && train_config_zero(c) == 0)
        return err_set(e, ERR_USAGE, "--replicate-state %d: without --zero every rank has the whole state already",
                       (int)c->replicate_state);
    return 0;
}

/* Replicas are compared, and losses doubted, with --check-replicas alone. */
static int check_replicas(const struct train_config *c, struct err *e)
{
    if (c->check_replicas)
        return 0;
    if (c->drill.what != DRILL_NONE)
        return err_set(e, ERR_USAGE, "--drill-corrupt needs --check-replicas STEPS: else nobody finds what it spoils");
    if (c->loss_spike != atof(TRAIN_LOSS_SPIKE) && c->loss_spike != 0)
        return err_set(e, ERR_USAGE, "--loss-spike %g needs --check-replicas STEPS: else any loss is believed",
                       c->loss_spike);
    return 0;
}

/* What --auto-parallel chooses cannot be given as well; micro-batches can. */
static int check_auto(const struct train_config *c, struct err *e)
{
    const char *chosen = c->stages != 1                 ? "--stages"
                         : c->schedule != PIPELINE_1F1B ? "--schedule"
                         : c->recompute                 ? "--recompute"
                         : c->stage_cut                 ? "--stage-cut"
                         : c->fsdp                      ? "--fsdp"
                         : c->zero                      ? "--zero"
                         : c->by_node != REDUCE_FLAT    ? "--allreduce"
                         : c->model_parallel_size       ? "--model-parallel-size"
                         : c->model_parallel            ? "--enable-model-parallel"
                                                        : NULL;
    if (c->auto_parallel && chosen)
        return err_set(e, ERR_USAGE, "%s: --auto-parallel chooses that itself; leave one of them out", chosen);
    if (c->memory_limit && !c->auto_parallel)
        return err_set(e, ERR_USAGE, "--memory-limit is what --auto-parallel may choose within; give that, too");
    return 0;
}

int train_config_check(const struct train_config *c, struct err *e)
{
    TRY(check_data(c, e));
    TRY(check_aliases(c, e));
    TRY(check_input(c, e));
    TRY(check_mixing(c, e));
    TRY(check_folders(c, e));
    TRY(check_optimizer(c, e));
    TRY(check_loss(c, e));
    TRY(check_model_parallel(c, e));
    TRY(check_auto(c, e));
    TRY(check_stages(c, e));
    TRY(check_seconds(c, e));
    TRY(check_replicas(c, e));
    if (c->start_epoch >= c->num_epochs)
        return err_set(e, ERR_USAGE, "--start-epoch %d: the run has %d epochs, counted from 0", (int)c->start_epoch,
                       (int)c->num_epochs);
    if (c->data_parallel && !c->gpus && !c->procs)
        return err_set(e, ERR_USAGE, "--data-parallel: over which devices? Give --gpus or --procs");
    if (c->comm_timeout <= 0)
        return err_set(e, ERR_USAGE, "--comm-timeout 0: must be above 0 seconds");
    return 0;
}
