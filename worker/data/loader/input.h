/* How a picture becomes the input of a model: from file bytes to (size, size, channels) u8, and from that to numbers.
 * Tokens are that input already.
 *
 *   - torch: training torchvision's RandomResizedCrop and flip, else Resize and CenterCrop; ImageNet's mean and
 *     deviation.
 *   - caffe2 (ImageInputOp): the short side to `scale` (OpenCV's INTER_AREA), training a random crop and flip, else the
 *     central crop; BGR, (x - 128) / 128.
 *   - plain (torchvision's ToTensor): the central square, scaled where it has another size; 0 to 1; nothing random.
 *   - cifar: training a random crop of the picture with 4 zero pixels around it, and flip; CIFAR-10's mean and
 *     deviation.
 * Then, in training, the operations of a policy (policy.h). What is random is a function of (seed, pass, id,
 * repetition). Pure; any thread. */
#ifndef CRUN_WORKER_DATA_INPUT_H
#define CRUN_WORKER_DATA_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"
#include "worker/data/augment/policy.h"
#include "worker/data/image/image.h"

struct err;

#define INPUTS(X)                                                                                                      \
    X(INPUT_TORCH, "torch")                                                                                            \
    X(INPUT_CAFFE2, "caffe2")                                                                                          \
    X(INPUT_PLAIN, "plain")                                                                                            \
    X(INPUT_CIFAR, "cifar")
enum input_kind { INPUTS(CHOICE_ID) };

/* X(id, word): how a picture is scaled; with caffe2 by area. */
#define INTERPOLATIONS(X)                                                                                              \
    X(INTERPOLATION_BILINEAR, "bilinear")                                                                              \
    X(INTERPOLATION_BICUBIC, "bicubic")                                                                                \
    X(INTERPOLATION_RANDOM, "random") /* each training picture in one of both ways, others bicubic */
enum interpolation { INTERPOLATIONS(CHOICE_ID) };

struct input_options {
    int tokens; /* a sample is so many tokens, and nothing below counts; 0: it is a picture */
    enum input_kind kind;
    int size, channels; /* channels: 1 or 3 */
    int scale;          /* short side before the crop; 0: caffe2 256, torch size * 256 / 224 rounded */
    enum interpolation interpolation;
    bool training;
    struct augment augment; /* torch */
    bool unflipped;         /* caffe2, cifar: never mirrored; else half of the pictures are */
    int padding; /* cifar, plain: zero pixels around a training picture that is then cropped; 0: cifar 4; -1: none */
    struct policy policy;
    struct jitter jitter;
    double erase; /* share of the pictures in which a box becomes 0 once they are numbers: input_erased() */
    uint64_t seed;
};

/* A sample as a pass shows it, for the repetition-th time from 0 on. */
struct showing {
    uint64_t pass;
    uint32_t id, repetition;
};

/* Fills in the defaults. ERR_USAGE: a crop that is larger than what it is cut from, and what -EINVAL is for. */
int input_check(struct input_options *o, struct err *e);

#define INPUT_KEPT_BYTES ((size_t)32 << 20) /* of a file, or a decoded picture, from one to the next */

size_t input_bytes(const struct input_options *o);  /* of a sample: what a model reads */
size_t input_labels(const struct input_options *o); /* one, or one a token */

/* Memory that a thread keeps from one picture to the next, some INPUT_KEPT_BYTES at most. */
struct input_scratch;
struct input_scratch *input_scratch_create(void); /* NULL: no memory */
void input_scratch_destroy(struct input_scratch *s);

/* Decode and transform a sample. dst: (size, size, channels) u8, BGR with caffe2. The errors of image_decode(). */
int input_load(const struct input_options *o, struct input_scratch *s, const void *data, size_t n, struct showing at,
               uint8_t *dst, struct err *e);

/* The same in two: decode the whole picture (*ret is the scratch's, until it is used again), and transform that, or one
 * that was decoded so. dst becomes what input_load() makes of it. */
int input_decode(const struct input_options *o, struct input_scratch *s, const void *data, size_t n, struct image *ret,
                 struct err *e);
int input_transform(const struct input_options *o, struct input_scratch *s, const struct image *whole,
                    struct showing at, uint8_t *dst, struct err *e);

/* The box of it that becomes 0, if one does: x0, y0, x1, y1. */
bool input_erased(const struct input_options *o, struct showing at, int16_t box[4]);

/* The model sees (x / 255 - mean) / std of each channel, in the order of input_load()'s. */
void input_normalization(enum input_kind kind, int channels, float mean[4], float std[4]);

#endif
