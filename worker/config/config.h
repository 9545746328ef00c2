/* Options of `trainer` (training): one table gives parsing, --help, --print-config and
 * docs/reference/options-trainer.md.
 *
 *   argv, environment -> args_parse() over train_program (config_model.def, config_training.def, config_run.def; what
 *   is no plain number or word: config_parse.c) -> struct train_config -> train_config_check(): what single options
 *   cannot know -> the run reads it and changes nothing
 *
 * Personalities (worker/personality) fill in the same struct from other trainers' command lines. Also here: exit codes
 * of errors, and how many threads a rank has. */
#ifndef CRUN_WORKER_CONFIG_H
#define CRUN_WORKER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args/args.h"
#include "common/base/choice.h"
#include "worker/data/augment/policy.h"
#include "worker/pipeline/pipeline.h"
#include "worker/precision/precision.h"

struct err;

struct range {
    double min, max;
};

struct window {
    int64_t first, count; /* steps, from 1 */
};

#define DRILLS(X)                                                                                                      \
    X(DRILL_NONE, "none")                                                                                              \
    X(DRILL_WEIGHTS, "weights")                                                                                        \
    X(DRILL_MOMENTS, "moments")                                                                                        \
    X(DRILL_SUMS, "sums")                                                                                              \
    X(DRILL_NAN, "nan")
enum drill_what { DRILLS(CHOICE_ID) };

struct drill { /* a bit flips */
    enum drill_what what;
    int64_t step, rank; /* step: from 1 */
};

#define MILESTONES_MAX 16
struct milestones {
    double epoch[MILESTONES_MAX]; /* rising */
    int n;
};

struct channels {
    double v[3];
    int n; /* 0: not given */
};

#define OPTIMIZERS(X)                                                                                                  \
    X(OPTIMIZER_SGD, "sgd")                                                                                            \
    X(OPTIMIZER_LARS, "lars")                                                                                          \
    X(OPTIMIZER_ADAM, "adam")                                                                                          \
    X(OPTIMIZER_ADAMW, "adamw")                                                                                        \
    X(OPTIMIZER_LAMB, "lamb")
#define SGD_RULES(X)                                                                                                   \
    X(SGD_TORCH, "torch")                                                                                              \
    X(SGD_CAFFE2, "caffe2")
#define LR_PERS(X)                                                                                                     \
    X(LR_PER_STEP, "step")                                                                                             \
    X(LR_PER_EPOCH, "epoch")                                                                                           \
    X(LR_PER_EPOCH_BEFORE, "epoch-before")
#define LR_SCALES(X)                                                                                                   \
    X(LR_SCALE_NONE, "none")                                                                                           \
    X(LR_SCALE_WORKERS, "workers")                                                                                     \
    X(LR_SCALE_BATCH256, "batch256")
#define SHUFFLES(X)                                                                                                    \
    X(SHUFFLE_AUTO, "auto")                                                                                            \
    X(SHUFFLE_ON, "on")                                                                                                \
    X(SHUFFLE_OFF, "off")                                                                                              \
    X(SHUFFLE_BALANCED, "balanced")
#define IF_CHECKPOINTS(X)                                                                                              \
    X(IF_CHECKPOINT_REFUSE, "refuse")                                                                                  \
    X(IF_CHECKPOINT_ASIDE, "aside")
#define ALLREDUCES(X)                                                                                                  \
    X(ALLREDUCE_FP32, "fp32")                                                                                          \
    X(ALLREDUCE_FP16, "fp16")                                                                                          \
    X(ALLREDUCE_BF16, "bf16")
#define REDUCES(X)                                                                                                     \
    X(REDUCE_FLAT, "flat")                                                                                             \
    X(REDUCE_HIERARCHICAL, "hierarchical")
#define MODEL_PARALLEL_DIMS(X)                                                                                         \
    X(MODEL_PARALLEL_NONE, "none")                                                                                     \
    X(MODEL_PARALLEL_FEATURES, "0")                                                                                    \
    X(MODEL_PARALLEL_CLASSES, "1")                                                                                     \
    X(MODEL_PARALLEL_LAST, "-1")                                                                                       \
    X(MODEL_PARALLEL_BLOCKS, "blocks")
#define BEST_BYS(X)                                                                                                    \
    X(BEST_BY_AUTO, "auto")                                                                                            \
    X(BEST_BY_TOP1, "top1")                                                                                            \
    X(BEST_BY_TOP5, "top5")                                                                                            \
    X(BEST_BY_LOSS, "loss")
#define LOSSES(X)                                                                                                      \
    X(LOSS_SOFTMAX, "ce")                                                                                              \
    X(LOSS_BINARY, "bce")
#define LOSS_REDUCTIONS(X)                                                                                             \
    X(LOSS_MEAN, "mean")                                                                                               \
    X(LOSS_SUM, "sum")                                                                                                 \
    X(LOSS_NONE, "none")
enum model_parallel_dim { MODEL_PARALLEL_DIMS(CHOICE_ID) };
enum loss_reduction { LOSS_REDUCTIONS(CHOICE_ID) };
enum loss_name { LOSSES(CHOICE_ID) };
enum best_by { BEST_BYS(CHOICE_ID) };
enum optimizer_name { OPTIMIZERS(CHOICE_ID) };
enum sgd_rule { SGD_RULES(CHOICE_ID) };
enum lr_per { LR_PERS(CHOICE_ID) };
enum lr_scale { LR_SCALES(CHOICE_ID) };
struct shuffle {
    enum { SHUFFLES(CHOICE_ID) SHUFFLE_SHARDS } how;
    int shards; /* SHUFFLE_SHARDS: that are mixed with one another */
};
enum if_checkpoint { IF_CHECKPOINTS(CHOICE_ID) };
enum allreduce { ALLREDUCES(CHOICE_ID) };
enum reduce_way { REDUCES(CHOICE_ID) };
enum resume { RESUME_OFF, RESUME_AUTO, RESUME_PATH };

#define TRAIN_LOSS_SPIKE "20" /* the default of loss_spike */

struct train_config {
    const char *train_data, *test_data;
    int data_format;     /* enum dataset_kind */
    int64_t num_labels;  /* 0: as many as the training set has classes */
    int64_t null_images; /* of --train-data null; 0: ImageNet's number */
    int64_t num_channels, image_size;
    int64_t token_bytes;     /* 0, 2, 4 */
    int64_t sequence_length; /* 0: the model's, or the checkpoint's */
    /* Not options: which of them are given, and what run_model_choose() finds (manifest/run_model.h): the model's
     * text, what it reads, and names of classes where there is no --train-data. */
    struct {
        bool arch, image_size, num_channels;
        const char *of_pictures, *of_tokens; /* an option that is for one of them alone; NULL: none is given */
    } given;
    const char *model;
    int length, vocabulary; /* of tokens, if the model reads them; 0: pictures */
    char *const *class_names;
    int n_class_names;
    int input, sampler; /* enum input_kind, enum sampler_kind */
    struct shuffle shuffle;
    bool drop_last;
    int64_t epoch_size; /* 0: the set's own number */
    int64_t scale;      /* 0: as the input does */
    int interpolation;  /* enum interpolation */
    struct channels mean, std;
    struct range crop_scale;
    int64_t crop_padding; /* -1: as the input does */
    bool hflip;
    struct policy augment;
    struct jitter color_jitter;
    double random_erase, mixup, cutmix; /* a share of the pictures; of Beta distributions, 0: not so */
    int64_t mix_group, repeated_augmentation;
    double bce_threshold;
    bool strict_data;
    const char *debug_batch_sha; /* NULL: none */
    int64_t loader_threads;      /* 0: cores / local ranks */
    int64_t cache_decoded;       /* bytes a node; 0: none */

    const char *arch, *device;
    struct precision_options precision;
    int format; /* enum memory_format */
    bool channels_last;
    int net_style; /* enum net_style */
    bool zero_init_residual, sync_bn;

    int64_t batch_size;            /* global */
    int64_t accumulate;            /* parts of a rank's share that go through the model one after the other */
    int64_t num_epochs, max_steps; /* max_steps 0: no limit */
    double max_time;               /* seconds, 0: no limit */
    int optimizer, sgd_rule;       /* enum optimizer_name, enum sgd_rule */
    double base_lr, momentum, weight_decay, beta2, adam_eps, lars_eta, clip_grad_norm, label_smoothing, ema;
    int loss_reduction;        /* enum loss_reduction */
    int64_t ignore_index;      /* a label that counts nowhere; none is negative */
    int loss;                  /* enum loss_name */
    const char *class_weights; /* numbers, or "balanced"; NULL: all are 1 */
    double layer_decay;        /* of rates; 1: none */
    int64_t ema_every;         /* steps; 0: each, with a warm-up of its own */
    int lr_per;                /* enum lr_per */
    const char *recipe;        /* NULL: none */
    double val_split;          /* of --train-data; 0: nothing is held out */
    int best_by;               /* enum best_by */
    int64_t early_stop;        /* evaluations; 0: never */
    double max_loss;           /* of an epoch; 0: any */
    bool nesterov, bn_decay;
    const char *no_decay, *lr_mul;      /* worker/program/patterns.h; NULL: none */
    int lr_policy, lr_scale, lr_warmup; /* enum lr_policy, lr_scale, lr_warmup */
    struct milestones milestones;
    double lr_step_epochs, lr_gamma, lr_power, lr_min, warmup_start;
    double warmup_epochs; /* < 0: 5 % of the run, or what the policy brings */
    int64_t seed, eval_every;
    int64_t start_epoch, eval_steps; /* 0: the first; the whole set */

    const char *checkpoint_dir;
    int64_t checkpoint_every, checkpoint_keep;
    double checkpoint_seconds;
    int if_checkpoint; /* enum if_checkpoint */
    bool checkpoint_sync, checkpoint_per_node;
    const char *checkpoint_name; /* NULL: no links <name>_<epoch>.mdl */
    const char *resume;          /* "off", "auto" or a path: see train_config_resume() */
    const char *pretrained;      /* NULL: none */
    const char *pretrained_part; /* NULL: what is usual */
    bool evaluate;               /* evaluate --test-data and end */
    const char *report;          /* ... and write into this folder; NULL: not */

    const char *log_dir;
    const char *tensorboard, *timeline;
    struct window timeline_steps;
    int64_t prof;       /* 0: as --timeline and --timeline-steps say */
    int progress;       /* enum progress_format */
    int64_t print_freq; /* 0: as the format's program does */
    bool log_all_ranks, mem_report;
    int log_level;

    int64_t procs, nodes, node_rank; /* worker/meet/ranks.h; 0: not given */
    const char *gpus, *dist_url, *run_id;
    bool data_parallel, oversubscribe;

    bool tf32, cuda_graphs, autotune, conv_fusion, deterministic, fast_attention, cuda_check; /* of GPUs */
    int64_t workspace_mb;                                                                     /* 0: no limit */
    const char *plan_cache; /* "auto", "none" or a folder */
    double tune_seconds;    /* 0: no limit */

    int64_t threads; /* 0: cores / local ranks */
    const char *comm;
    double comm_timeout;
    int64_t model_parallel_size; /* 0: not given */
    int model_parallel_dim;      /* enum model_parallel_dim */
    bool model_parallel;
    int64_t stages, stage_chunks; /* chunks 0: not given */
    const char *stage_cut;        /* NULL: by cost */
    int schedule;                 /* enum pipeline_kind */
    bool recompute;
    int64_t bucket_mb, zero, check_replicas;
    bool by_world;             /* not an option: the batch was given for a rank or a node (personalities) */
    double memory_checkpoints; /* percent of the time that copying into memory may take; 0: none */
    int64_t replicate_state;   /* 1: what --zero cuts has a second owner; 0: it has not */
    double loss_spike;         /* 0: any loss is believed */
    struct drill drill;
    int allreduce; /* enum allreduce */
    int by_node;   /* enum reduce_way */
    bool fp16_allreduce, fsdp;
    bool auto_parallel;
    int64_t memory_limit; /* bytes of a rank; 0: none */
    const char *network;  /* between nodes, "50us,10"; NULL: as it is measured */
};

extern const struct arg_program train_program;

enum allreduce train_config_allreduce(const struct train_config *c);

struct gpu_options;
enum { CONFIG_CACHE_BYTES = 1024 };
/* alone: no other rank waits for this one. cache: room for the name of the plan cache's folder, which *ret points at.
 */
void train_config_gpu(const struct train_config *c, bool alone, struct gpu_options *ret,
                      char cache[CONFIG_CACHE_BYTES]);

/* Ranks of a tensor group in a world of so many: 1 where the last layer is whole. */
int train_config_tensor(const struct train_config *c, int world);

/* The pipeline that is asked for; one stage: there is none. */
struct pipeline train_config_pipeline(const struct train_config *c);
/* Level of ZeRO. */
int train_config_zero(const struct train_config *c);

enum resume train_config_resume(const struct train_config *c);

/* What is evaluated: --test-data, or what it is held out of; NULL: nothing is. */
const char *train_config_held_out(const struct train_config *c);

/* *c, which is zeroed: of a command line that gives no option, and no training set. r: as of args_parse(). */
int train_config_defaults(struct train_config *c, struct arg_result *r, struct err *e);

/* Rate and weight decay that the command line leaves out become those that torch.optim has for the optimizer: adam and
 * adamw do not learn at SGD's rate. p, r: of the args_parse() that c comes from. */
void train_config_by_optimizer(struct train_config *c, const struct arg_program *p, const struct arg_result *r);

/* Notes what c->given has. p, r: as above. */
void train_config_note_given(struct train_config *c, const struct arg_program *p, const struct arg_result *r);

/* Are num_channels, and what is given for each of them, possible? */
int train_config_check_channels(const struct train_config *c, struct err *e);

/* What the model reads: "224 x 224 images" or "sequences of 1024 tokens". Returns out. */
const char *train_config_samples(const struct train_config *c, char out[64]);

/* Check what single options cannot know. ERR_USAGE with one sentence. */
int train_config_check(const struct train_config *c, struct err *e);

#endif
