/* What a model reads. A row of a batch is one sample of it. Pure. */
#ifndef CRUN_WORKER_PROGRAM_INPUT_H
#define CRUN_WORKER_PROGRAM_INPUT_H

#include <stddef.h>

struct input {
    enum input_rows { INPUT_PICTURES, INPUT_TOKENS } rows;
    /* PICTURES: a row is u8 (height, width, channels), 1 to 4 channels, and has one label. mean, std: per channel, of
     * values in [0, 1]; OP_INPUT makes (x / 255 - mean) / std. */
    int channels, height, width;
    float mean[4], std[4];
    /* TOKENS: a row is i32 (length), each from 0 to vocabulary - 1, and has a label for each. */
    int length, vocabulary;
};

struct input input_pictures(int channels, int height, int width, const float *mean, const float *std); /* NULL: 0, 1 */
struct input input_tokens(int length, int vocabulary);
size_t input_row_bytes(const struct input *in);
size_t input_row_labels(const struct input *in);

#endif
