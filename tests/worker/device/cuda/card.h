/* A network on a cuda device over a GPU that is not there, as tests of its plans begin and end: opened with zeroed or
 * initial parameters, planned, run on a batch of noise, closed with nothing left behind. What fails ends the case. */
#ifndef CRUN_TESTS_CARD_H
#define CRUN_TESTS_CARD_H

#include <stdint.h>

#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/device.h"

enum { CARD_BATCH_MAX = 4, CARD_CLASSES = 3 };

struct CMUnitTest;
struct cudnn_options;
struct err;
struct plan;
struct program;

struct card {
    struct program *p;
    struct gpu *gpu;
    struct device *d;
    struct plan *plan; /* card_plan(); NULL: none */
    struct arenas at;
    struct fake_counts counts; /* at the end */
    uint8_t *images;
    int32_t labels[CARD_BATCH_MAX];
    float weights[CARD_BATCH_MAX];
    struct run_args run;
    char said[16384]; /* log lines of planning and running */
};

/* p is taken over. dnn NULL: no cuDNN; else its options. Parameters begin as training does, unless the GPU is idle. */
void card_open(struct card *c, struct program *p, const struct fake_options *fake, const struct cuda_options *o,
               const struct cudnn_options *dnn);
/* Of a training step, and a batch for it. */
int card_plan(struct card *c, int batch, enum dtype type, enum memory_format format, struct err *e);
/* Once more, with other parameters as far as the plan knows; the GPU may still be at it. */
int card_run(struct card *c, struct err *e);
void card_close(struct card *c);

void card_hear(struct card *c); /* what is logged from now on is in `said`; NULL: is not */
int count_words(const char *text, const char *word);

int card_graphs(const struct card *c, enum cudnn_pattern pattern); /* steps of the plan */
int card_kernels(const struct card *c, enum kernel k);
/* a and b apart, by b. */
double card_distance(const float *a, const float *b, size_t n);

/* card_dnn.c: main() of tests that plan for the GPU whose properties their argument has, in a folder of scratch. */
extern char *card_props;
extern const char *card_dir;
/* plan(cache) in a process of its own is killed: an engine that it tries takes it along. */
void card_dies(void (*plan)(const char *cache), const char *cache);
int card_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t n);

#endif
