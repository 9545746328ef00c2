/* Rows of pixels are copied whole; where they go depends on nothing but the shape. */
#include "worker/device/cpu/product.h"

#include <string.h>

static size_t pixel_bytes(const struct dnn_shape *s)
{
    return (size_t)s->c * dtype_size(s->src_type);
}

bool product_is_whole(const struct dnn_shape *s)
{
    return s->kh == 1 && s->kw == 1 && s->sh == 1 && s->sw == 1 && s->oh == s->h && s->ow == s->w;
}

static size_t row_bytes(const struct dnn_shape *s)
{
    return (size_t)(s->kh * s->kw) * pixel_bytes(s);
}

size_t product_unfolded_bytes(const struct dnn_shape *s)
{
    return (size_t)s->n * (size_t)(s->oh * s->ow) * row_bytes(s);
}

/* Pixels [x, x + kw) of a line of the input; line: NULL where it is padding. */
static void unfold_line(const struct dnn_shape *s, const char *line, int x, char *to)
{
    const size_t pixel = pixel_bytes(s);
    const int first = x < 0 ? -x : 0, end = x + s->kw > s->w ? s->w - x : s->kw;
    if (!line || end <= first) {
        memset(to, 0, (size_t)s->kw * pixel);
        return;
    }
    memset(to, 0, (size_t)first * pixel);
    memcpy(to + (size_t)first * pixel, line + (size_t)(x + first) * pixel, (size_t)(end - first) * pixel);
    memset(to + (size_t)end * pixel, 0, (size_t)(s->kw - end) * pixel);
}

void product_unfold(const struct dnn_shape *s, const void *x, void *rows, int threads)
{
    const size_t line = (size_t)s->w * pixel_bytes(s), window = (size_t)s->kw * pixel_bytes(s);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int n = 0; n < s->n; n++)
        for (int oy = 0; oy < s->oh; oy++) {
            char *to = (char *)rows + (size_t)(n * s->oh + oy) * (size_t)s->ow * row_bytes(s);
            for (int ox = 0; ox < s->ow; ox++)
                for (int ky = 0; ky < s->kh; ky++, to += window) {
                    const int y = oy * s->sh - s->ph + ky;
                    const bool inside = y >= 0 && y < s->h;
                    unfold_line(s, inside ? (const char *)x + (size_t)(n * s->h + y) * line : NULL, ox * s->sw - s->pw,
                                to);
                }
        }
}

/* A line of x that the window saw, from its row of pixels. */
static void spread_line(const struct dnn_shape *s, const char *from, char *line)
{
    const size_t pixel = pixel_bytes(s);
    for (int ox = 0, x = 0; ox < s->ow; ox++) {
        memcpy(line + (size_t)x * pixel, from + (size_t)ox * pixel, pixel);
        const int next = ox + 1 < s->ow ? x + s->sw : s->w;
        memset(line + (size_t)(x + 1) * pixel, 0, (size_t)(next - x - 1) * pixel);
        x = next;
    }
}

void product_spread(const struct dnn_shape *s, const void *rows, void *x, int threads)
{
    const size_t line = (size_t)s->w * pixel_bytes(s), row = (size_t)s->ow * pixel_bytes(s);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int n = 0; n < s->n; n++)
        for (int y = 0; y < s->h; y++) {
            char *to = (char *)x + (size_t)(n * s->h + y) * line;
            if (y % s->sh == 0 && y / s->sh < s->oh)
                spread_line(s, (const char *)rows + (size_t)(n * s->oh + y / s->sh) * row, to);
            else
                memset(to, 0, line);
        }
}

/* Measured with shapes of ResNet-18 and 50, batches of 8 to 64. With AMX units a product of a 1x1 window is faster in
 * either direction, most of all where the window strides. By weights also 3x3 windows gain on narrow maps, unfolded:
 * 1.3 to 4 times as fast, one of them (256 channels, 14x14) in a step alone. Without such units a product gains on
 * small maps, with a 1x1 window, in bf16 and fp32. */
bool product_pays(const struct dnn_shape *s, enum dnn_dir dir, bool amx)
{
    enum { LINE = 16, SHORT_LINE = 8 };
    const bool weights = dir == DNN_BWD_WEIGHTS, tiles = amx && s->src_type == DT_BF16;
    if (s->bias || dir == DNN_FORWARD || s->src_type != s->dst_type)
        return false;
    if (s->kh == 1 && s->kw == 1 && s->ph == 0 && s->pw == 0)
        return tiles || s->ow <= (weights ? LINE : SHORT_LINE);
    return tiles && weights && s->kh == 3 && s->kw == 3 && s->c >= 128 && s->k >= 256 && s->ow <= LINE;
}
