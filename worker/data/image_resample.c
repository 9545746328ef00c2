/* Bilinear resampling with antialiasing, to the bit as Pillow's Image.resize(BILINEAR) defines it: a triangle filter whose support grows with
 * the reduction, weights in 22-bit fixed point, first along rows, rounded to u8, then along columns. Only what the window needs is computed. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "worker/data/image_impl.h"

#define PRECISION 22 /* bits: 32 less 8 for the pixel and 2 for the overshoot of other filters */

/* Filter of one axis. Output i is the sum of src[first[i] + k] * weight[i * taps + k], k < count[i]. */
struct axis {
    int n, taps;
    int *first, *count;
    int32_t *weight;
};

static void axis_free(struct axis *a)
{
    free(a->first);
    free(a->weight);
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* The weights of one output pixel whose centre falls on `centre` of the source. */
static void fill_taps(struct axis *a, int i, double centre, double reduction, int size)
{
    int32_t *weight = a->weight + (size_t)i * (size_t)a->taps;
    int first = (int)(centre - reduction + 0.5), end = (int)(centre + reduction + 0.5);
    first = first < 0 ? 0 : first;
    end = end > size ? size : end;
    double sum = 0.0;
    for (int k = first; k < end; k++)
        sum += triangle((k - centre + 0.5) * (1.0 / reduction));
    for (int k = first; k < end; k++) {
        double w = triangle((k - centre + 0.5) * (1.0 / reduction));
        weight[k - first] = (int32_t)(0.5 + (sum != 0.0 ? w / sum : w) * (1 << PRECISION));
    }
    a->first[i] = first;
    a->count[i] = end - first;
}

/* Outputs win .. win + n - 1 of the `out` that cover lo .. hi of the `size` source pixels. */
static int axis_init(struct axis *a, int size, double lo, double hi, int out, int win, int n, struct err *e)
{
    double scale = (hi - lo) / out, reduction = scale < 1.0 ? 1.0 : scale;
    *a = (struct axis){.n = n, .taps = (int)ceil(reduction) * 2 + 1};
    a->first = malloc(sizeof *a->first * 2 * (size_t)n);
    a->weight = malloc(sizeof *a->weight * (size_t)n * (size_t)a->taps);
    if (!a->first || !a->weight) {
        axis_free(a);
        return err_set(e, -ENOMEM, "no memory for a filter of %d x %d weights", n, a->taps);
    }
    a->count = a->first + n;
    for (int i = 0; i < n; i++)
        fill_taps(a, i, lo + (win + i + 0.5) * scale, reduction, size);
    return 0;
}

static inline uint8_t rounded(int32_t sum)
{
    int32_t v = sum >> PRECISION; /* weights are not negative and sum to one, give or take their rounding */
    return v > 255 ? 255 : (uint8_t)v;
}

/* One row: src of any width to dst of a->n pixels, from right to left if flip. */
static void row_pass(const struct axis *a, const uint8_t *src, uint8_t *dst, int c, bool flip)
{
    for (int i = 0; i < a->n; i++) {
        const int32_t *w = a->weight + (size_t)i * (size_t)a->taps;
        const uint8_t *p = src + (size_t)a->first[i] * (size_t)c;
        uint8_t *out = dst + (size_t)(flip ? a->n - 1 - i : i) * (size_t)c;
        if (c == 3) {
            int32_t s0 = 1 << (PRECISION - 1), s1 = s0, s2 = s0;
            for (int k = 0; k < a->count[i]; k++, p += 3) {
                s0 += p[0] * w[k];
                s1 += p[1] * w[k];
                s2 += p[2] * w[k];
            }
            out[0] = rounded(s0);
            out[1] = rounded(s1);
            out[2] = rounded(s2);
        } else {
            int32_t s = 1 << (PRECISION - 1);
            for (int k = 0; k < a->count[i]; k++)
                s += p[k] * w[k];
            out[0] = rounded(s);
        }
    }
}

/* rows: the row pass of source rows `base` onwards, `bytes` each. sums: bytes accumulators. */
static void column_pass(const struct axis *a, const uint8_t *rows, int base, size_t bytes, int32_t *sums, uint8_t *dst)
{
    for (int i = 0; i < a->n; i++, dst += bytes) {
        const int32_t *w = a->weight + (size_t)i * (size_t)a->taps;
        const uint8_t *p = rows + (size_t)(a->first[i] - base) * bytes;
        for (size_t x = 0; x < bytes; x++)
            sums[x] = 1 << (PRECISION - 1);
        for (int k = 0; k < a->count[i]; k++, p += bytes)
            for (size_t x = 0; x < bytes; x++)
                sums[x] += p[x] * w[k];
        for (size_t x = 0; x < bytes; x++)
            dst[x] = rounded(sums[x]);
    }
}

int image_resample(const struct image_view *src, const struct resample *r, uint8_t *dst, struct err *e)
{
    struct axis across, down;
    TRY(axis_init(&across, src->w, r->x0, r->x1, r->w, r->win_x, r->win_w, e));
    int rc = axis_init(&down, src->h, r->y0, r->y1, r->h, r->win_y, r->win_h, e);
    if (rc < 0) {
        axis_free(&across);
        return rc;
    }
    int base = down.first[0], end = down.first[down.n - 1] + down.count[down.n - 1];
    size_t bytes = (size_t)r->win_w * (size_t)src->c;
    uint8_t *rows = malloc(bytes * (size_t)(end - base));
    int32_t *sums = malloc(sizeof *sums * bytes);
    if (rows && sums) {
        for (int y = base; y < end; y++)
            row_pass(&across, src->px + (size_t)y * src->stride, rows + (size_t)(y - base) * bytes, src->c, r->flip);
        column_pass(&down, rows, base, bytes, sums, dst);
    } else {
        rc = err_set(e, -ENOMEM, "no memory to resize %d x %d to %d x %d", src->w, src->h, r->w, r->h);
    }
    free(rows);
    free(sums);
    axis_free(&across);
    axis_free(&down);
    return rc;
}
