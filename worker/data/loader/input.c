/* Decodes a sample and makes a model's input of it: crop, size, flip, numbers. */
#include "worker/data/loader/input.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/image/image_impl.h"
#include "worker/data/image/resample.h"
#include "worker/data/image/rng.h"

#define CIFAR_PADDING 4

static int check_augment(const struct augment *a, struct err *e)
{
    if (a->scale_min > 0 && a->scale_min <= a->scale_max && a->scale_max <= 1 && a->ratio_min >= 1e-3 &&
        a->ratio_min <= a->ratio_max && a->ratio_max <= 1e3 && a->flip >= 0 && a->flip <= 1)
        return 0;
    return err_set(e, -EINVAL, "crops of scale %g to %g and ratio %g to %g cannot be drawn", a->scale_min, a->scale_max,
                   a->ratio_min, a->ratio_max);
}

size_t input_bytes(const struct input_options *o)
{
    return o->tokens ? (size_t)o->tokens * sizeof(int32_t) : (size_t)o->size * (size_t)o->size * (size_t)o->channels;
}

size_t input_labels(const struct input_options *o)
{
    return o->tokens ? (size_t)o->tokens : 1;
}

int input_check(struct input_options *o, struct err *e)
{
    if (o->tokens > 0)
        return 0;
    if (o->size < 1)
        return err_set(e, -EINVAL, "images of %d pixels", o->size);
    if (o->channels != 1 && o->channels != 3)
        return err_set(e, -EINVAL, "images have 1 or 3 channels, not %d", o->channels);
    if (o->kind == INPUT_TORCH && o->training)
        TRY(check_augment(&o->augment, e));
    if (o->scale == 0)
        o->scale = o->kind == INPUT_CAFFE2 ? 256 : (o->size * 256 + 112) / 224;
    const bool cut = o->kind == INPUT_CAFFE2 || (o->kind == INPUT_TORCH && !o->training);
    if (cut && o->size > o->scale)
        return err_set(e, ERR_USAGE,
                       "--image-size %d is above --scale %d: the crop is cut from a picture whose short side is that",
                       o->size, o->scale);
    return 0;
}

void input_normalization(enum input_kind kind, int channels, float mean[4], float std[4])
{
    static const float means[][4] = {[INPUT_TORCH] = {0.485F, 0.456F, 0.406F, 0},
                                     [INPUT_CAFFE2] = {128 / 255.0F, 128 / 255.0F, 128 / 255.0F, 0},
                                     [INPUT_PLAIN] = {0, 0, 0, 0},
                                     [INPUT_CIFAR] = {0.4914F, 0.4822F, 0.4465F, 0}};
    static const float stds[][4] = {[INPUT_TORCH] = {0.229F, 0.224F, 0.225F, 1},
                                    [INPUT_CAFFE2] = {128 / 255.0F, 128 / 255.0F, 128 / 255.0F, 1},
                                    [INPUT_PLAIN] = {1, 1, 1, 1},
                                    [INPUT_CIFAR] = {0.2470F, 0.2435F, 0.2616F, 1}};
    const bool grey = channels == 1 && (kind == INPUT_TORCH || kind == INPUT_CIFAR); /* theirs are means of colours */
    for (int i = 0; i < 4; i++) {
        mean[i] = grey ? 0.5F : means[kind][i];
        std[i] = grey ? 0.5F : stds[kind][i];
    }
}

/* --- one sample */

struct job {
    const struct input_options *o;
    struct showing at;
    struct resampler s; /* once the size of the picture is known */
};

static struct rng numbers_of(const struct input_options *o, enum rng_purpose purpose, struct showing at)
{
    return rng_stream_of(o->seed, purpose, at.pass, at.id, at.repetition);
}

static int plan_caffe2(const struct job *j, int w, int h, struct resample *r, struct err *e)
{
    const struct input_options *o = j->o;
    TRY(resample_short_side(r, FILTER_AREA, w, h, o->scale, o->size, e));
    r->window.x = (r->w - o->size) / 2;
    r->window.y = (r->h - o->size) / 2;
    if (o->training) {
        struct rng rng = numbers_of(o, RNG_AUGMENT, j->at);
        r->flip = rng_unit(&rng) < 0.5 && !o->unflipped;
        r->window.y = (int)rng_below(&rng, (uint64_t)(r->h - o->size + 1));
        r->window.x = (int)rng_below(&rng, (uint64_t)(r->w - o->size + 1));
    }
    return 0;
}

static enum filter filter_of(const struct input_options *o, struct rng *r)
{
    const bool either = o->interpolation == INTERPOLATION_RANDOM && o->training && rng_below(r, 2) == 0;
    return o->interpolation == INTERPOLATION_BILINEAR || either ? FILTER_BILINEAR : FILTER_BICUBIC;
}

/* What to cut out of a picture of this size and how to scale it. */
static int plan(const struct job *j, int w, int h, struct resample *r, struct err *e)
{
    const struct input_options *o = j->o;
    if (o->kind == INPUT_CAFFE2)
        return plan_caffe2(j, w, h, r, e);
    struct rng rng = numbers_of(o, RNG_AUGMENT, j->at);
    if (o->kind == INPUT_TORCH && o->training) {
        const struct crop c = augment_crop(&o->augment, &rng, w, h);
        *r = resample_crop(filter_of(o, &rng), &c, o->size, o->size);
        return 0;
    }
    const int resize = o->kind == INPUT_TORCH ? o->scale : o->size;
    TRY(resample_short_side(r, filter_of(o, &rng), w, h, resize, o->size, e));
    resample_centre(r);
    return 0;
}

static int choose(void *arg, int w, int h, struct rect *ret, struct err *e)
{
    struct job *j = arg;
    struct resample r;
    TRY(plan(j, w, h, &r, e));
    TRY(resampler_init(&j->s, &r, e));
    *ret = resampler_needs(&j->s);
    return 0;
}

static int padding_of(const struct input_options *o)
{
    return o->padding < 0 ? 0 : o->padding == 0 && o->kind == INPUT_CIFAR ? CIFAR_PADDING : o->padding;
}

/* A random window of the picture with a border of zeros, perhaps mirrored. */
static int shift_and_flip(const struct job *j, uint8_t *px, struct err *e)
{
    const struct input_options *o = j->o;
    const int size = o->size, c = o->channels, padding = padding_of(o);
    const size_t bytes = (size_t)size * (size_t)size * (size_t)c;
    struct rng rng = numbers_of(o, RNG_AUGMENT, j->at);
    const bool flip = rng_unit(&rng) < 0.5 && o->kind == INPUT_CIFAR && !o->unflipped;
    const int dy = (int)rng_below(&rng, 2 * (uint64_t)padding + 1) - padding;
    const int dx = (int)rng_below(&rng, 2 * (uint64_t)padding + 1) - padding;
    uint8_t *from = malloc(bytes);
    if (!from)
        return err_set(e, -ENOMEM, "no memory for %zu pixels", bytes);
    memcpy(from, px, bytes);
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++, px += c) {
            const int sy = y + dy, sx = (flip ? size - 1 - x : x) + dx;
            if (sy < 0 || sy >= size || sx < 0 || sx >= size)
                memset(px, 0, (size_t)c);
            else
                memcpy(px, from + ((size_t)sy * (size_t)size + (size_t)sx) * (size_t)c, (size_t)c);
        }
    free(from);
    return 0;
}

static void swap_red_and_blue(uint8_t *px, size_t n)
{
    for (size_t i = 0; i < n; i++, px += 3) {
        const uint8_t red = px[0];
        px[0] = px[2];
        px[2] = red;
    }
}

struct input_scratch {
    struct region part;
    struct resample_rows rows;
    uint8_t *spare; /* a sample */
};

struct input_scratch *input_scratch_create(void)
{
    return calloc(1, sizeof(struct input_scratch));
}

void input_scratch_destroy(struct input_scratch *s)
{
    if (!s)
        return;
    image_free(&s->part.im);
    free(s->rows.at);
    free(s->spare);
    free(s);
}

/* A set has a few pictures that are a hundred times as large as the others, and each thread comes to all of them. */
static void trim(struct input_scratch *s)
{
    const struct image *im = &s->part.im;
    const size_t bytes = (size_t)im->w * (size_t)im->h * (size_t)im->c;
    if (bytes <= INPUT_KEPT_BYTES && s->part.room <= INPUT_KEPT_BYTES)
        return;
    image_free(&s->part.im);
    s->part = (struct region){0};
}

static bool is_drawn(const struct input_options *o)
{
    const double *by = o->jitter.by;
    return o->policy.kind != POLICY_NONE || by[0] > 0 || by[1] > 0 || by[2] > 0;
}

static int draw_and_apply(const struct job *j, struct input_scratch *s, uint8_t *dst, struct err *e)
{
    const struct input_options *o = j->o;
    struct image im = {.px = dst, .w = o->size, .h = o->size, .c = o->channels};
    struct drawn drawn[POLICY_DRAWN_MOST];
    struct rng rng = numbers_of(o, RNG_POLICY, j->at);
    const int n = policy_draw(&o->policy, &o->jitter, o->size, &rng, drawn);
    if (!s->spare && !(s->spare = malloc(input_bytes(o))))
        return err_set(e, -ENOMEM, "no memory for %zu pixels", input_bytes(o));
    policy_apply(&o->policy, drawn, n, &im, s->spare);
    return 0;
}

/* What was decoded of a picture, as the plan of the job wants it. */
static int finish(struct job *j, struct input_scratch *s, const struct region *part, uint8_t *dst, struct err *e)
{
    const struct input_options *o = j->o;
    int rc = resampler_run(&j->s, part, &s->rows, dst, e);
    if (rc == 0 && o->training && (o->kind == INPUT_CIFAR || padding_of(o) > 0))
        rc = shift_and_flip(j, dst, e);
    if (rc == 0 && o->training && is_drawn(o))
        rc = draw_and_apply(j, s, dst, e);
    if (rc == 0 && o->kind == INPUT_CAFFE2 && o->channels == 3)
        swap_red_and_blue(dst, (size_t)o->size * (size_t)o->size);
    return rc;
}

int input_load(const struct input_options *o, struct input_scratch *s, const void *data, size_t n, struct showing at,
               uint8_t *dst, struct err *e)
{
    struct job j = {.o = o, .at = at};
    const struct want want = {.choose = choose, .arg = &j};
    int rc = image_decode_part(data, n, o->channels, &want, &s->part, e);
    if (rc == 0)
        rc = finish(&j, s, &s->part, dst, e);
    resampler_free(&j.s);
    trim(s);
    return rc;
}

int input_decode(const struct input_options *o, struct input_scratch *s, const void *data, size_t n, struct image *ret,
                 struct err *e)
{
    TRY(image_decode_part(data, n, o->channels, NULL, &s->part, e));
    *ret = s->part.im;
    return 0;
}

int input_transform(const struct input_options *o, struct input_scratch *s, const struct image *whole,
                    struct showing at, uint8_t *dst, struct err *e)
{
    struct job j = {.o = o, .at = at};
    const struct region all = {.im = *whole};
    struct rect unused;
    int rc = choose(&j, whole->w, whole->h, &unused, e);
    if (rc == 0)
        rc = finish(&j, s, &all, dst, e);
    resampler_free(&j.s);
    trim(s);
    return rc;
}

bool input_erased(const struct input_options *o, struct showing at, int16_t box[4])
{
    struct rng rng = numbers_of(o, RNG_ERASE, at);
    return o->training && o->erase > 0 && erase_draw(o->erase, o->size, &rng, box);
}
