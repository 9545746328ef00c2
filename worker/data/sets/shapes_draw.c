/* One picture of the shapes data set: a dark cluttered background, one brighter shape on it, noise over all.
 *
 * The ten outlines stay apart under mirroring, 3:4 stretching and the +-30 degrees they are turned by (so: a square but
 * no diamond, a cross but no X, one triangle). All have the same area before scaling, so that neither brightness nor a
 * colour histogram tells the class, and colours are drawn without regard to it. What is left is form, which is what a
 * convolutional network is meant to find. */
#include "worker/data/sets/shapes.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/image/canvas.h"
#include "worker/data/image/portable_math.h"
#include "worker/data/image/rng.h"

static void add_points(struct outline *o, const struct point *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        outline_add(o, p[i].x, p[i].y);
    outline_close(o);
}

#define POLYGON(o, ...)                                                                                                \
    add_points(o, (const struct point[]){__VA_ARGS__},                                                                 \
               sizeof((const struct point[]){__VA_ARGS__}) / sizeof(struct point))

static void draw_circle(struct outline *o)
{
    outline_arc(o, 0, 0, 1, 1, 0, 2 * PM_PI, 49);
    outline_close(o);
}

static void draw_square(struct outline *o)
{
    POLYGON(o, {-1, -1}, {1, -1}, {1, 1}, {-1, 1});
}

static void draw_triangle(struct outline *o)
{
    POLYGON(o, {0, -1.1}, {1, 0.7}, {-1, 0.7});
}

static void draw_star(struct outline *o)
{
    for (int i = 0; i < 10; i++) {
        double r = i % 2 ? 0.4 : 1.0, t = PM_PI * (i / 5.0 - 0.5);
        outline_add(o, r * pm_cos(t), r * pm_sin(t));
    }
    outline_close(o);
}

static void draw_cross(struct outline *o)
{
    POLYGON(o, {-.3, -1}, {.3, -1}, {.3, -.3}, {1, -.3}, {1, .3}, {.3, .3}, {.3, 1}, {-.3, 1}, {-.3, .3}, {-1, .3},
            {-1, -.3}, {-.3, -.3});
}

static void draw_ring(struct outline *o)
{
    draw_circle(o);
    outline_arc(o, 0, 0, 0.55, 0.55, 0, 2 * PM_PI, 49);
    outline_close(o);
}

static void draw_crescent(struct outline *o)
{
    outline_arc(o, 0, 0, 1, 1, 0.28 * PM_PI, 1.72 * PM_PI, 41);
    outline_arc(o, 0.5, 0, 0.78, 0.78, 1.55 * PM_PI, 0.45 * PM_PI, 31);
    outline_close(o);
}

static void draw_heart(struct outline *o)
{
    outline_arc(o, -0.5, -0.35, 0.5, 0.5, 0.8 * PM_PI, 1.9 * PM_PI, 21);
    outline_arc(o, 0.5, -0.35, 0.5, 0.5, 1.1 * PM_PI, 2.2 * PM_PI, 21);
    outline_add(o, 0, 1);
    outline_close(o);
}

static void draw_arrow(struct outline *o)
{
    POLYGON(o, {0, -1}, {.85, -.05}, {.25, -.05}, {.25, 1}, {-.25, 1}, {-.25, -.05}, {-.85, -.05});
}

static void draw_hook(struct outline *o)
{
    POLYGON(o, {-.8, -1}, {-.2, -1}, {-.2, .4}, {.8, .4}, {.8, 1}, {-.8, 1});
}

static const struct {
    const char *name;
    void (*draw)(struct outline *o); /* about the origin, y downwards */
} forms[] = {
    {"circle", draw_circle}, {"square", draw_square}, {"triangle", draw_triangle}, {"star", draw_star},
    {"cross", draw_cross},   {"ring", draw_ring},     {"crescent", draw_crescent}, {"heart", draw_heart},
    {"arrow", draw_arrow},   {"hook", draw_hook},
};
static_assert(sizeof forms / sizeof *forms == SHAPES_MAX_CLASSES, "one row a class");

const char *shapes_class_name(int cls)
{
    assert(cls >= 0 && cls < SHAPES_MAX_CLASSES);
    return forms[cls].name;
}

/* Turn, scale and place an outline. side: length of the side of a square of the same area; stretch: width over
 * height. */
static void place_outline(struct outline *o, double side, double stretch, double angle, double cx, double cy)
{
    double s = side / sqrt(outline_area(o)), w = sqrt(stretch), c = pm_cos(angle), d = pm_sin(angle);
    outline_transform(o, (const double[4]){s * w * c, -s * w * d, s / w * d, s / w * c}, cx, cy);
}

static void random_colour(struct rng *r, double lo, double hi, float rgb[3])
{
    for (int k = 0; k < 3; k++)
        rgb[k] = (float)rng_range(r, lo, hi);
}

/* A dark gradient between two colours in a random direction. */
static void draw_ground(struct canvas *c, struct rng *r)
{
    float a[3], b[3];
    random_colour(r, 5, 70, a);
    random_colour(r, 5, 70, b);
    double angle = rng_range(r, -PM_PI, PM_PI), ux = pm_cos(angle), uy = pm_sin(angle);
    for (int y = 0; y < c->size; y++)
        for (int x = 0; x < c->size; x++) {
            double t = 0.5 + (ux * (x + 0.5 - c->size / 2.0) + uy * (y + 0.5 - c->size / 2.0)) / (1.5 * c->size);
            for (int k = 0; k < 3; k++)
                c->rgb[((size_t)y * (size_t)c->size + (size_t)x) * 3 + (size_t)k] = a[k] + (float)t * (b[k] - a[k]);
        }
}

/* One dim blob, bar or corner somewhere, often cut off by the border. */
static void draw_clutter(struct canvas *c, struct rng *r)
{
    struct outline o;
    outline_clear(&o);
    int corners = 3 + (int)rng_below(r, 6);
    double phase = rng_range(r, 0, 2), radius[8];
    for (int i = 0; i < corners; i++)
        radius[i] = rng_range(r, 0.5, 1.0);
    for (int i = 0; i < corners; i++) {
        double t = PM_PI * (2.0 * i / corners + phase - 2.0);
        outline_add(&o, radius[i] * pm_cos(t), radius[i] * pm_sin(t));
    }
    outline_close(&o);
    double side = rng_range(r, 0.08, 0.35) * c->size, stretch = pm_exp(rng_range(r, -1.4, 1.4));
    double angle = rng_range(r, -PM_PI, PM_PI), x = rng_range(r, 0, c->size), y = rng_range(r, 0, c->size);
    place_outline(&o, side, stretch, angle, x, y);
    float colour[3];
    random_colour(r, 0, 95, colour);
    canvas_fill(c, &o, colour, (float)rng_range(r, 0.5, 1.0));
}

/* Any hue, never dim: the darkest channel may be low, the brightest is high and the mean is kept above the clutter. */
static void shape_colour(struct rng *r, float rgb[3])
{
    do
        random_colour(r, 70, 255, rgb);
    while (rgb[0] + rgb[1] + rgb[2] < 3 * 165);
}

static void draw_shape(struct canvas *c, struct rng *r, int cls)
{
    struct outline o;
    outline_clear(&o);
    forms[cls].draw(&o);
    double side = rng_range(r, 0.36, 0.48) * c->size, stretch = pm_exp(rng_range(r, -0.15, 0.15));
    double angle = rng_range(r, -PM_PI / 6, PM_PI / 6), margin = 0.8 * side;
    double x = rng_range(r, margin, c->size - margin), y = rng_range(r, margin, c->size - margin);
    place_outline(&o, side, stretch, angle, x, y);
    float colour[3];
    shape_colour(r, colour);
    canvas_fill(c, &o, colour, 1.0f);
}

static void add_noise(const struct canvas *c, struct rng *r, uint8_t *rgb)
{
    double sigma = rng_range(r, 3, 10);
    size_t n = (size_t)c->size * (size_t)c->size * 3;
    for (size_t i = 0; i < n; i += 2) {
        uint64_t u = rng_u64(r); /* two sums of two uniforms: triangular noise, variance (2^16)^2 / 6 */
        for (size_t k = i; k < n && k < i + 2; k++, u >>= 32) {
            double t = ((double)(u & 0xffff) + (double)(u >> 16 & 0xffff) - 65535.0) / 65536.0;
            double v = (double)c->rgb[k] + sigma * 2.449489742783178 * t + 0.5;
            rgb[k] = v <= 0.0 ? 0 : v >= 255.0 ? 255 : (uint8_t)v;
        }
    }
}

void shapes_draw(int cls, uint64_t seed, uint64_t index, int size, uint8_t *rgb)
{
    assert(cls >= 0 && cls < SHAPES_MAX_CLASSES && size >= 1 && size <= CANVAS_MAX);
    struct canvas c = {.size = size, .rgb = malloc((size_t)size * (size_t)size * 3 * sizeof *c.rgb)};
    assert(c.rgb); /* 3 MiB at most */
    struct rng r = rng_stream(seed, RNG_SHAPES, index, 0);
    draw_ground(&c, &r);
    for (int n = 4 + (int)rng_below(&r, 7); n > 0; n--)
        draw_clutter(&c, &r);
    draw_shape(&c, &r, cls);
    add_noise(&c, &r, rgb);
    free(c.rgb);
}
