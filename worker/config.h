/* Options of `trainer` (training): one table gives parsing, --help, --print-config and docs/options.md. */
#ifndef CRUN_WORKER_CONFIG_H
#define CRUN_WORKER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args.h"

struct err;

struct range {
    double min, max;
};

enum amp { AMP_AUTO, AMP_BF16, AMP_OFF };
enum resume { RESUME_OFF, RESUME_AUTO };

struct train_config {
    const char *train_data, *test_data;
    int data_format;     /* enum dataset_kind */
    int64_t num_labels;  /* 0: as many as the training set has classes */
    int64_t null_images; /* of --train-data null; 0: ImageNet's number */
    int64_t num_channels, image_size;
    struct range crop_scale;
    bool strict_data;
    int64_t loader_threads; /* 0: cores / local ranks */

    const char *arch, *device;
    int amp; /* enum amp */
    bool zero_init_residual, sync_bn;

    int64_t batch_size;            /* global */
    int64_t num_epochs, max_steps; /* max_steps 0: no limit */
    double max_time;               /* seconds, 0: no limit */
    double base_lr, momentum, weight_decay;
    int lr_policy;                                  /* enum lr_policy */
    double lr_step_epochs, lr_gamma, warmup_epochs; /* warmup_epochs < 0: 5 % of the run */
    int64_t seed, eval_every;

    const char *checkpoint_dir;
    int64_t checkpoint_every, checkpoint_keep;
    double checkpoint_seconds;
    int resume; /* enum resume */

    const char *log_dir;
    int64_t print_freq;
    int log_level;

    int64_t threads; /* 0: cores / local ranks */
    const char *comm;
    double comm_timeout;
    int64_t bucket_mb, check_replicas;
};

extern const struct arg_program train_program;

/* Check what single options cannot know. ERR_USAGE with one sentence. */
int train_config_check(const struct train_config *c, struct err *e);

#endif
