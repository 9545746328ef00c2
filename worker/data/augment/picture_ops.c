/* Carries out single operations of augmentation on the bytes of a picture. */
#include "worker/data/augment/picture_ops.h"

#include <math.h>
#include <string.h>

#include "worker/data/image/image_impl.h"
#include "worker/data/image/portable_math.h"

static size_t bytes_of(const struct image *im)
{
    return (size_t)im->w * (size_t)im->h * (size_t)im->c;
}

/* --- levels by a table */

struct table {
    uint8_t of[3][256];
};

static void look_up(struct image *im, const struct table *t)
{
    const size_t n = (size_t)im->w * (size_t)im->h;
    uint8_t *px = im->px;
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < im->c; c++, px++)
            *px = t->of[c][*px];
}

static uint8_t clipped(double v)
{
    return v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v;
}

/* The level of the same table for all channels. */
static int level_of(enum picture_op op, double value, int level)
{
    const int bits = (int)value;
    switch (op) {
    case PICTURE_POSTERIZE:
        return bits >= 8 ? level : bits <= 0 ? 0 : level & ~((1 << (8 - bits)) - 1);
    case PICTURE_SOLARIZE:
        return level < value ? level : 255 - level;
    case PICTURE_SOLARIZE_ADD:
        return level >= 128 ? level : clipped(level + (int)value);
    default: /* PICTURE_INVERT */
        return 255 - level;
    }
}

static void by_level(struct image *im, enum picture_op op, double value)
{
    struct table t;
    for (int level = 0; level < 256; level++)
        t.of[0][level] = t.of[1][level] = t.of[2][level] = (uint8_t)level_of(op, value, level);
    look_up(im, &t);
}

static void count_levels(const struct image *im, int channel, uint32_t counts[256])
{
    const size_t n = bytes_of(im);
    memset(counts, 0, 256 * sizeof *counts);
    for (size_t i = (size_t)channel; i < n; i += (size_t)im->c)
        counts[im->px[i]]++;
}

static void spread_levels(const uint32_t counts[256], uint8_t to[256])
{
    int lo = 0, hi = 255;
    while (lo < 255 && !counts[lo])
        lo++;
    while (hi > 0 && !counts[hi])
        hi--;
    const double scale = hi > lo ? 255.0 / (hi - lo) : 1, offset = hi > lo ? -lo * scale : 0;
    for (int level = 0; level < 256; level++)
        to[level] = clipped(level * scale + offset);
}

static void even_levels(const uint32_t counts[256], uint8_t to[256])
{
    uint64_t sum = 0, n, step;
    int last = 255;
    while (last > 0 && !counts[last])
        last--;
    for (int level = 0; level < last; level++)
        sum += counts[level];
    step = sum / 255;
    n = step / 2;
    for (int level = 0; level < 256; level++) {
        const uint64_t even = step ? n / step : (uint64_t)level;
        to[level] = even > 255 ? 255 : (uint8_t)even;
        n += counts[level];
    }
}

static void by_histogram(struct image *im, void (*make)(const uint32_t counts[256], uint8_t to[256]))
{
    struct table t;
    uint32_t counts[256];
    for (int c = 0; c < im->c; c++) {
        count_levels(im, c, counts);
        make(counts, t.of[c]);
    }
    look_up(im, &t);
}

/* --- between a picture and a duller one */

static void blend(struct image *im, const uint8_t *dull, double factor)
{
    const size_t n = bytes_of(im);
    const float by = (float)factor;
    if (by == 1)
        return;
    for (size_t i = 0; i < n; i++) {
        const float v = (float)dull[i] + by * (float)(im->px[i] - dull[i]);
        im->px[i] = v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v;
    }
}

/* The same where all of the duller picture has one level. */
static void blend_level(struct image *im, int level, double factor)
{
    struct table t;
    const float by = (float)factor;
    for (int v = 0; v < 256; v++)
        t.of[0][v] = clipped((double)((float)level + by * (float)(v - level)));
    memcpy(t.of[1], t.of[0], sizeof t.of[0]);
    memcpy(t.of[2], t.of[0], sizeof t.of[0]);
    if (by != 1)
        look_up(im, &t);
}

static void make_grey(const struct image *im, uint8_t *to)
{
    const size_t n = (size_t)im->w * (size_t)im->h;
    if (im->c == 1) {
        memcpy(to, im->px, n);
        return;
    }
    for (size_t i = n; i-- > 0;) {
        uint8_t grey;
        image_luma(im->px + 3 * i, &grey, 1);
        memset(to + 3 * i, grey, 3);
    }
}

static int mean_grey(const struct image *im, uint8_t *spare)
{
    const size_t n = (size_t)im->w * (size_t)im->h;
    uint64_t sum = 0;
    make_grey(im, spare);
    for (size_t i = 0; i < n; i++)
        sum += spare[i * (size_t)im->c];
    return (int)((double)sum / (double)n + 0.5);
}

/* 3 x 3 pixels, of which the middle weighs 5 of 13; the border stays. */
static void smooth(const struct image *im, uint8_t *to)
{
    const int c = im->c, row = im->w * c;
    memcpy(to, im->px, bytes_of(im));
    for (int y = 1; y < im->h - 1; y++) {
        const uint8_t *p = im->px + (size_t)y * (size_t)row;
        uint8_t *out = to + (size_t)y * (size_t)row;
        for (int i = c; i < row - c; i++) {
            const int sum = p[i - row - c] + p[i - row] + p[i - row + c] + p[i - c] + 5 * p[i] + p[i + c] +
                            p[i + row - c] + p[i + row] + p[i + row + c];
            out[i] = (uint8_t)((2 * sum + 13) / 26);
        }
    }
}

/* --- where pixels come from */

/* Pixel (x, y) of the result is that at (a[0] x + a[1] y + a[2], a[3] x + a[4] y + a[5]), middle to middle. */
struct from {
    double a[6];
};

/* The nearest one, in steps of 2^-16 pixels, as Pillow takes it. */
static void take_nearest(struct image *im, const struct from *f, const uint8_t fill[3], const uint8_t *source)
{
    int64_t fixed[6];
    const double *a = f->a;
    const double begin[6] = {a[0], a[1], a[2] + a[0] * 0.5 + a[1] * 0.5, a[3], a[4], a[5] + a[3] * 0.5 + a[4] * 0.5};
    const size_t c = (size_t)im->c;
    uint8_t *to = im->px;
    for (int i = 0; i < 6; i++)
        fixed[i] = (int64_t)floor(begin[i] * 65536 + 0.5);
    for (int y = 0; y < im->h; y++) {
        int64_t xx = fixed[2] + y * fixed[1], yy = fixed[5] + y * fixed[4];
        for (int x = 0; x < im->w; x++, to += c, xx += fixed[0], yy += fixed[3]) {
            const int64_t sx = xx >> 16, sy = yy >> 16;
            const bool inside = sx >= 0 && sx < im->w && sy >= 0 && sy < im->h;
            const uint8_t *p = inside ? source + ((size_t)sy * (size_t)im->w + (size_t)sx) * c : fill;
            for (size_t k = 0; k < c; k++)
                to[k] = p[k];
        }
    }
}

static int within(int i, int n)
{
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}

/* The pixels around a place: those of the columns and rows left - 1 to left + 2, top - 1 to top + 2; beyond the border
 * the border's. */
struct around {
    const uint8_t *row[4];
    size_t column[4];
    double dx, dy; /* of the place, from the pixel (left, top) */
};

static struct around around(const struct image *im, const uint8_t *source, double x, double y)
{
    const double left = floor(x - 0.5), top = floor(y - 0.5);
    struct around p = {.dx = x - 0.5 - left, .dy = y - 0.5 - top};
    for (int i = 0; i < 4; i++) {
        p.column[i] = (size_t)within((int)left - 1 + i, im->w) * (size_t)im->c;
        p.row[i] = source + (size_t)within((int)top - 1 + i, im->h) * (size_t)im->w * (size_t)im->c;
    }
    return p;
}

static uint8_t of_four(const struct around *p, size_t channel)
{
    const uint8_t *up = p->row[1] + channel, *down = p->row[2] + channel;
    const size_t x0 = p->column[1], x1 = p->column[2];
    const double u = up[x0] + (up[x1] - up[x0]) * p->dx, d = down[x0] + (down[x1] - down[x0]) * p->dx;
    return (uint8_t)(u + (d - u) * p->dy);
}

/* At t of 0 to 1 from v[1] to v[2]: Pillow's polynomial for a moved pixel, which is not that of its resize(). */
static double cubic(const double v[4], double t)
{
    return v[1] + t * (v[2] - v[0] + t * (2 * (v[0] - v[1]) + v[2] - v[3] + t * (v[1] - v[0] - v[2] + v[3])));
}

static uint8_t of_sixteen(const struct around *p, size_t channel)
{
    double down[4], across[4];
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 4; x++)
            across[x] = p->row[y][p->column[x] + channel];
        down[y] = cubic(across, p->dx);
    }
    return clipped(cubic(down, p->dy));
}

static void take_between(struct image *im, const struct from *f, const struct picture_how *how, const uint8_t *source)
{
    const double *a = f->a;
    const size_t c = (size_t)im->c;
    uint8_t *to = im->px;
    for (int y = 0; y < im->h; y++)
        for (int x = 0; x < im->w; x++, to += c) {
            const double sx = a[0] * (x + 0.5) + a[1] * (y + 0.5) + a[2],
                         sy = a[3] * (x + 0.5) + a[4] * (y + 0.5) + a[5];
            if (!(sx >= 0 && sx < im->w && sy >= 0 && sy < im->h)) {
                memcpy(to, how->fill, c);
                continue;
            }
            const struct around p = around(im, source, sx, sy);
            for (size_t k = 0; k < c; k++)
                to[k] = how->between == PICTURE_BICUBIC ? of_sixteen(&p, k) : of_four(&p, k);
        }
}

/* To 15 digits behind the point, as Pillow rounds, so that a right angle is one. */
static double digits15(double v)
{
    return rint(v * 1e15) / 1e15;
}

static struct from rotation(const struct image *im, double degrees)
{
    const double angle = -degrees * (PM_PI / 180), cosine = digits15(pm_cos(angle)), sine = digits15(pm_sin(angle)),
                 cx = im->w / 2.0, cy = im->h / 2.0;
    return (struct from){
        {cosine, sine, cosine * -cx + sine * -cy + cx, -sine, cosine, -sine * -cx + cosine * -cy + cy}};
}

static struct from movement(const struct image *im, enum picture_op op, double value)
{
    struct from f = {{1, 0, 0, 0, 1, 0}};
    switch (op) {
    case PICTURE_SHEAR_X:
        f.a[1] = value;
        break;
    case PICTURE_SHEAR_Y:
        f.a[3] = value;
        break;
    case PICTURE_TRANSLATE_X:
        f.a[2] = -value;
        break;
    case PICTURE_TRANSLATE_Y:
        f.a[5] = -value;
        break;
    default: /* PICTURE_ROTATE */
        f = rotation(im, value);
    }
    return f;
}

static void move(struct image *im, const struct from *f, const struct picture_how *how, uint8_t *spare)
{
    memcpy(spare, im->px, bytes_of(im));
    if (how->between == PICTURE_NEAREST)
        take_nearest(im, f, how->fill, spare);
    else
        take_between(im, f, how, spare);
}

/* --- blur: three boxes in a row are nearly a Gaussian */

/* Half the length of a box, with its fraction, that has a third of the variance. */
static float box_radius(double deviation)
{
    const double third = deviation * deviation / 3, length = sqrt(12 * third + 1), whole = floor((length - 1) / 2);
    const double part = (2 * whole + 1) * (whole * (whole + 1) - 3 * third) / (6 * (third - (whole + 1) * (whole + 1)));
    return (float)(whole + part);
}

/* n pixels of one channel, `by` bytes apart; line: a copy of them, side by side. */
static void box_line(uint8_t *px, uint8_t *line, int n, size_t by, int radius, uint32_t inner, uint32_t outer)
{
    uint32_t sum = 0;
    for (int i = 0; i < n; i++)
        line[i] = px[(size_t)i * by];
    for (int i = -radius; i <= radius; i++)
        sum += line[within(i, n)];
    for (int i = 0; i < n; i++) {
        const uint32_t ends = (uint32_t)line[within(i - radius - 1, n)] + line[within(i + radius + 1, n)];
        px[(size_t)i * by] = (uint8_t)((sum * inner + ends * outer + (1u << 23)) >> 24);
        sum += (uint32_t)line[within(i + radius + 1, n)] - line[within(i - radius, n)];
    }
}

static void blur(struct image *im, double deviation, uint8_t *spare)
{
    const float half = box_radius(deviation);
    const int radius = (int)half;
    const uint32_t inner = (uint32_t)((float)(1 << 24) / (half * 2 + 1)),
                   outer = ((1u << 24) - (uint32_t)(radius * 2 + 1) * inner) / 2;
    const size_t c = (size_t)im->c, row = (size_t)im->w * c;
    for (int pass = 0; pass < 3; pass++)
        for (size_t y = 0; y < (size_t)im->h; y++)
            for (size_t k = 0; k < c; k++)
                box_line(im->px + y * row + k, spare, im->w, c, radius, inner, outer);
    for (int pass = 0; pass < 3; pass++)
        for (size_t k = 0; k < row; k++)
            box_line(im->px + k, spare, im->h, row, radius, inner, outer);
}

/* --- */

void picture_op(struct image *im, enum picture_op op, double value, const struct picture_how *how, uint8_t *spare)
{
    struct from f;
    switch (op) {
    case PICTURE_IDENTITY:
    case PICTURE_OPS_N:
        return;
    case PICTURE_SHEAR_X:
    case PICTURE_SHEAR_Y:
    case PICTURE_TRANSLATE_X:
    case PICTURE_TRANSLATE_Y:
    case PICTURE_ROTATE:
        f = movement(im, op, value);
        move(im, &f, how, spare);
        return;
    case PICTURE_BRIGHTNESS:
        blend_level(im, 0, value);
        return;
    case PICTURE_COLOR:
        make_grey(im, spare);
        blend(im, spare, value);
        return;
    case PICTURE_CONTRAST:
        blend_level(im, mean_grey(im, spare), value);
        return;
    case PICTURE_CONTRAST_AREA:
        blend_level(im, clipped(im->w * im->h / 256.0), value);
        return;
    case PICTURE_SHARPNESS:
        smooth(im, spare);
        blend(im, spare, value);
        return;
    case PICTURE_POSTERIZE:
    case PICTURE_SOLARIZE:
    case PICTURE_SOLARIZE_ADD:
    case PICTURE_INVERT:
        by_level(im, op, value);
        return;
    case PICTURE_AUTOCONTRAST:
        by_histogram(im, spread_levels);
        return;
    case PICTURE_EQUALIZE:
        by_histogram(im, even_levels);
        return;
    case PICTURE_GREY:
        make_grey(im, im->px);
        return;
    case PICTURE_BLUR:
        blur(im, value, spare);
        return;
    }
}

void picture_cut_out(struct image *im, int x, int y, int half, const uint8_t fill[3])
{
    const size_t c = (size_t)im->c;
    for (int i = y - half; i < y + half; i++)
        for (int j = x - half; j < x + half; j++)
            if (i >= 0 && i < im->h && j >= 0 && j < im->w)
                memcpy(im->px + ((size_t)i * (size_t)im->w + (size_t)j) * c, fill, c);
}
