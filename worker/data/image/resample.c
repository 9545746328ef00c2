/* Scales u8 pictures in two passes, rows first. */
#include "worker/data/image/resample.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

#define LONGEST (1 << 24) /* pixels a side: 255 times as much is a sum of area_row() */

/* --- filters */

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Keys' cubic with a = -0.5, as Pillow's. */
static double cubic(double x)
{
    x = fabs(x);
    return x < 1.0 ? ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1 : x < 2.0 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0.0;
}

/* Half the width of the filter, in pixels that are not reduced. */
static double reach(enum filter f)
{
    return f == FILTER_BICUBIC ? 2.0 : 1.0;
}

/* The weights of one output pixel whose centre falls on `centre` of the source. */
static void fill_smooth(struct axis *a, enum filter f, int i, double centre, double reduction, int size)
{
    double (*const shape)(double) = f == FILTER_BICUBIC ? cubic : triangle;
    const size_t at = (size_t)i * (size_t)a->taps;
    const double half = reduction * reach(f);
    int first = (int)(centre - half + 0.5), end = (int)(centre + half + 0.5);
    first = first < 0 ? 0 : first;
    end = end > size ? size : end;
    double sum = 0.0;
    for (int k = first; k < end; k++)
        sum += shape((k - centre + 0.5) * (1.0 / reduction));
    for (int k = first; k < end; k++) {
        double w = shape((k - centre + 0.5) * (1.0 / reduction));
        const int32_t fixed = (int32_t)((w < 0 ? -0.5 : 0.5) + (sum != 0.0 ? w / sum : w) * (1 << RESAMPLE_PRECISION));
        a->weight[at + (size_t)(k - first)] = fixed;
        const int8_t high = (int8_t)((fixed + (1 << 15)) >> 16);
        a->low[at + (size_t)(k - first)] = (int16_t)(fixed - high * (1 << 16));
        a->high[at + (size_t)(k - first)] = high;
    }
    a->first[i] = first;
    a->count[i] = end - first;
}

/* Source pixel k covers [k * out, (k + 1) * out), output pixel i [i * size, (i + 1) * size): a weight is what they
 * share. */
static void fill_area(struct axis *a, int i, int64_t o, int64_t size, int64_t out)
{
    const int64_t lo = o * size, hi = lo + size, first = lo / out, end = (hi + out - 1) / out;
    for (int64_t k = first; k < end; k++) {
        const int64_t from = k * out > lo ? k * out : lo, to = (k + 1) * out < hi ? (k + 1) * out : hi;
        a->weight[i * (int64_t)a->taps + (k - first)] = (int32_t)(to - from);
    }
    a->first[i] = (int)first;
    a->count[i] = (int)(end - first);
}

static void axis_free(struct axis *a)
{
    free(a->first);
    free(a->weight);
    free(a->low);
}

/* Outputs win .. win + n - 1 of the `out` that cover lo .. hi of the `size` source pixels. */
static int axis_init(struct axis *a, enum filter f, int size, double lo, double hi, int out, int win, int n,
                     struct err *e)
{
    const double scale = (hi - lo) / out, reduction = scale < 1.0 ? 1.0 : scale;
    *a = (struct axis){.n = n, .taps = ((int)ceil(reduction * reach(f)) * 2 + 1 + 3) / 4 * 4};
    const size_t weights = (size_t)n * (size_t)a->taps;
    a->first = calloc(2 * (size_t)n, sizeof *a->first);
    a->weight = calloc(weights, sizeof *a->weight);
    a->low = calloc(weights, sizeof *a->low + sizeof *a->high);
    if (!a->first || !a->weight || !a->low) {
        axis_free(a);
        *a = (struct axis){0};
        return err_set(e, -ENOMEM, "no memory for a filter of %d x %d weights", n, a->taps);
    }
    a->high = (int8_t *)(a->low + weights);
    a->count = a->first + n;
    for (int i = 0; i < n; i++)
        if (f == FILTER_AREA)
            fill_area(a, i, win + i, size, out);
        else
            fill_smooth(a, f, i, lo + (win + i + 0.5) * scale, reduction, size);
    a->origin = a->first[0];
    for (int i = 0; i < n; i++) {
        a->first[i] -= a->origin;
        a->most = a->count[i] > a->most ? a->count[i] : a->most;
    }
    return 0;
}

struct resample resample_crop(enum filter filter, const struct crop *c, int w, int h)
{
    return (struct resample){.filter = filter,
                             .source = {.x = c->x, .y = c->y, .w = c->w, .h = c->h},
                             .x1 = c->w,
                             .y1 = c->h,
                             .w = w,
                             .h = h,
                             .window = {.w = w, .h = h},
                             .flip = c->flip};
}

int resample_short_side(struct resample *ret, enum filter filter, int w, int h, int resize, int size, struct err *e)
{
    if (size < 1 || resize < size)
        return err_set(e, -EINVAL, "cannot take %d x %d pixels of an image resized to %d", size, size, resize);
    const int64_t to_w = w < h ? resize : (int64_t)resize * w / h, to_h = w < h ? (int64_t)resize * h / w : resize;
    if (to_w > INT32_MAX || to_h > INT32_MAX || w > LONGEST || h > LONGEST)
        return err_set(e, ERR_DATA, "an image of %d x %d pixels is too long to be resized to %d", w, h, resize);
    *ret = (struct resample){.filter = filter,
                             .source = {.w = w, .h = h},
                             .x1 = w,
                             .y1 = h,
                             .w = (int)to_w,
                             .h = (int)to_h,
                             .window = {.w = size, .h = size}};
    return 0;
}

void resample_centre(struct resample *r)
{
    r->window.x = (int)rint((double)(r->w - r->window.w) / 2.0); /* half to even, as Python's round() */
    r->window.y = (int)rint((double)(r->h - r->window.h) / 2.0);
}

int resampler_init(struct resampler *s, const struct resample *r, struct err *e)
{
    *s = (struct resampler){.r = *r, .kernels = resample_best()};
    const struct rect *src = &r->source, *win = &r->window;
    TRY(axis_init(&s->across, r->filter, src->w, r->x0, r->x1, r->w, win->x, win->w, e));
    int rc = axis_init(&s->down, r->filter, src->h, r->y0, r->y1, r->h, win->y, win->h, e);
    if (rc < 0)
        resampler_free(s);
    return rc;
}

void resampler_free(struct resampler *s)
{
    axis_free(&s->across);
    axis_free(&s->down);
    *s = (struct resampler){0};
}

static int span(const struct axis *a)
{
    return a->first[a->n - 1] + a->count[a->n - 1]; /* firsts and ends never fall */
}

struct rect resampler_needs(const struct resampler *s)
{
    return (struct rect){.x = s->r.source.x + s->across.origin,
                         .y = s->r.source.y + s->down.origin,
                         .w = span(&s->across),
                         .h = span(&s->down)};
}

/* --- bilinear and bicubic */

void resample_pixel_rgb(const struct axis *a, int i, const uint8_t *src, uint8_t *out)
{
    const int32_t *w = a->weight + (size_t)i * (size_t)a->taps;
    const uint8_t *p = src + (size_t)a->first[i] * 3;
    int32_t s0 = 1 << (RESAMPLE_PRECISION - 1), s1 = s0, s2 = s0;
    for (int k = 0; k < a->count[i]; k++, p += 3) {
        s0 += p[0] * w[k];
        s1 += p[1] * w[k];
        s2 += p[2] * w[k];
    }
    out[0] = resample_rounded(s0);
    out[1] = resample_rounded(s1);
    out[2] = resample_rounded(s2);
}

static void rows_rgb(const struct axis *a, const uint8_t *src, size_t stride, int n, const uint8_t *end, uint8_t *dst,
                     bool flip)
{
    (void)end;
    for (int y = 0; y < n; y++, src += stride, dst += (size_t)a->n * 3)
        for (int i = 0; i < a->n; i++)
            resample_pixel_rgb(a, i, src, dst + (size_t)(flip ? a->n - 1 - i : i) * 3);
}

static void row_grey(const struct axis *a, const uint8_t *src, uint8_t *dst, bool flip)
{
    for (int i = 0; i < a->n; i++) {
        const int32_t *w = a->weight + (size_t)i * (size_t)a->taps;
        const uint8_t *p = src + a->first[i];
        int32_t s = 1 << (RESAMPLE_PRECISION - 1);
        for (int k = 0; k < a->count[i]; k++)
            s += p[k] * w[k];
        dst[flip ? a->n - 1 - i : i] = resample_rounded(s);
    }
}

static void columns(const struct axis *a, const uint8_t *rows, size_t bytes, uint8_t *dst)
{
    enum { RUN = 64 };
    for (int i = 0; i < a->n; i++, dst += bytes) {
        const int32_t *w = a->weight + (size_t)i * (size_t)a->taps;
        const uint8_t *top = rows + (size_t)a->first[i] * bytes;
        for (size_t at = 0; at < bytes; at += RUN) {
            const size_t n = bytes - at < RUN ? bytes - at : RUN;
            int32_t sums[RUN];
            for (size_t x = 0; x < n; x++)
                sums[x] = 1 << (RESAMPLE_PRECISION - 1);
            for (int k = 0; k < a->count[i]; k++)
                for (size_t x = 0; x < n; x++)
                    sums[x] += top[(size_t)k * bytes + at + x] * w[k];
            for (size_t x = 0; x < n; x++)
                dst[at + x] = resample_rounded(sums[x]);
        }
    }
}

const struct resample_kernels resample_plain = {.rows_rgb = rows_rgb, .columns = columns};

const struct resample_kernels *resample_best(void)
{
#ifdef RESAMPLE_X86
    if (__builtin_cpu_supports("avx2"))
        return &resample_avx2;
#endif
    return &resample_plain;
}

/* The first pixel that is needed. */
static const uint8_t *first_pixel(const struct region *part, const struct rect *needs)
{
    const size_t c = (size_t)part->im.c, stride = (size_t)part->im.w * c;
    return part->im.px + (size_t)(needs->y - part->y) * stride + (size_t)(needs->x - part->x) * c;
}

/* rows: (needs.h, window.w, c) */
static void smooth(const struct resampler *s, const struct region *part, const struct rect *needs, uint8_t *rows,
                   uint8_t *dst)
{
    const struct image *im = &part->im;
    const size_t c = (size_t)im->c, stride = (size_t)im->w * c, bytes = (size_t)s->r.window.w * c;
    const uint8_t *px = first_pixel(part, needs), *end = im->px + (size_t)im->h * stride;
    if (c == 3)
        s->kernels->rows_rgb(&s->across, px, stride, needs->h, end, rows, s->r.flip);
    else
        for (int y = 0; y < needs->h; y++)
            row_grey(&s->across, px + (size_t)y * stride, rows + (size_t)y * bytes, s->r.flip);
    s->kernels->columns(&s->down, rows, bytes, dst);
}

/* --- area */

static void area_row(const struct axis *a, const uint8_t *px, int c, uint32_t *out)
{
    for (int i = 0; i < a->n; i++)
        for (int ch = 0; ch < c; ch++) {
            const int32_t *w = a->weight + (size_t)i * (size_t)a->taps;
            const uint8_t *p = px + (size_t)a->first[i] * (size_t)c + ch;
            uint32_t sum = 0; /* at most 255 * source width */
            for (int k = 0; k < a->count[i]; k++)
                sum += p[(size_t)k * (size_t)c] * (uint32_t)w[k];
            *out++ = sum;
        }
}

/* sums: (needs.h, window.w, c) */
static void area(const struct resampler *s, const struct region *part, const struct rect *needs, uint32_t *sums,
                 uint8_t *dst)
{
    const struct image *im = &part->im;
    const struct axis *down = &s->down;
    const int c = im->c, width = s->r.window.w;
    const size_t stride = (size_t)im->w * (size_t)c, n = (size_t)width * (size_t)c;
    const uint8_t *px = first_pixel(part, needs);
    for (int y = 0; y < needs->h; y++)
        area_row(&s->across, px + (size_t)y * stride, c, sums + (size_t)y * n);
    const uint64_t whole = (uint64_t)s->r.source.w * (uint64_t)s->r.source.h;
    for (int i = 0; i < down->n; i++)
        for (size_t x = 0; x < n; x++) {
            const size_t at = s->r.flip ? ((size_t)width - 1 - x / (size_t)c) * (size_t)c + x % (size_t)c : x;
            const int32_t *w = down->weight + (size_t)i * (size_t)down->taps;
            const uint32_t *top = sums + (size_t)down->first[i] * n + at;
            uint64_t sum = 0;
            for (int k = 0; k < down->count[i]; k++)
                sum += (uint64_t)top[(size_t)k * n] * (uint64_t)w[k];
            *dst++ = (uint8_t)((2 * sum + whole) / (2 * whole));
        }
}

static bool rows_reserve(struct resample_rows *rows, size_t bytes)
{
    if (bytes > rows->bytes) {
        free(rows->at);
        rows->at = malloc(bytes);
        rows->bytes = rows->at ? bytes : 0;
    }
    return bytes <= rows->bytes;
}

int resampler_run(const struct resampler *s, const struct region *part, struct resample_rows *rows, uint8_t *dst,
                  struct err *e)
{
    const struct rect needs = resampler_needs(s);
    const size_t each = s->r.filter == FILTER_AREA ? sizeof(uint32_t) : 1;
    if (!rows_reserve(rows, (size_t)s->r.window.w * (size_t)part->im.c * (size_t)needs.h * each))
        return err_set(e, -ENOMEM, "no memory to resize %d x %d to %d x %d", s->r.source.w, s->r.source.h, s->r.w,
                       s->r.h);
    if (s->r.filter == FILTER_AREA)
        area(s, part, &needs, rows->at, dst);
    else
        smooth(s, part, &needs, rows->at, dst);
    return 0;
}
