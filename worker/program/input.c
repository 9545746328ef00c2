/* Describes the samples that a model reads: shapes, types, bytes. */
#include "worker/program/input.h"

#include <stdint.h>

struct input input_pictures(int channels, int height, int width, const float *mean, const float *std)
{
    struct input in = {.rows = INPUT_PICTURES, .channels = channels, .height = height, .width = width};
    for (int c = 0; c < channels && c < 4; c++) {
        in.mean[c] = mean ? mean[c] : 0.0f;
        in.std[c] = std ? std[c] : 1.0f;
    }
    return in;
}

struct input input_tokens(int length, int vocabulary)
{
    return (struct input){.rows = INPUT_TOKENS, .length = length, .vocabulary = vocabulary};
}

size_t input_row_bytes(const struct input *in)
{
    return in->rows == INPUT_TOKENS ? (size_t)in->length * sizeof(int32_t)
                                    : (size_t)in->channels * (size_t)in->height * (size_t)in->width;
}

size_t input_row_labels(const struct input *in)
{
    return in->rows == INPUT_TOKENS ? (size_t)in->length : 1;
}
