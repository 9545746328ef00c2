/* The shapes data set is no toy: what needs no notion of form fails on it.
 *
 * Softmax regression, trained properly (several passes of SGD with momentum and a falling rate, inputs standardised;
 * the best of several weight decays on the held-out pictures counts, which flatters it), on (a) the pixels, (b) 2 x 2
 * means of them, (c) colour histograms, (d) pixels with shuffled labels. The pictures go through the JPEG files' own
 * path: drawn, compressed, decoded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "worker/data/image/image.h"
#include "worker/data/image/jpeg_write.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/shapes.h"

enum { TRAIN = 4000, TEST = 1000, ALL = TRAIN + TEST, SIZE = 64, PX = SIZE * SIZE * 3, K = 10, LANES = 16 };

static uint8_t *pixels; /* (ALL, PX) */
static int labels[ALL];

static int set_up(void **state)
{
    struct buf b = {0};
    pixels = malloc((size_t)ALL * PX);
    for (int i = 0; i < ALL; i++) {
        struct image im;
        uint8_t *px = pixels + (size_t)i * PX;
        labels[i] = i % K;
        shapes_draw(labels[i], 0, (uint64_t)i, SIZE, px);
        buf_clear(&b);
        assert_int_equal(jpeg_write(px, SIZE, SIZE, 3, 90, &b, NULL), 0);
        assert_int_equal(image_decode(b.data, b.len, 3, &im, NULL), 0);
        memcpy(px, im.px, PX);
        image_free(&im);
    }
    buf_free(&b);
    return 0;
}

static int tear_down(void **state)
{
    free(pixels);
    return 0;
}

/* --- features: (ALL, n) floats */

static float *plain_pixels(int *n)
{
    float *f = malloc(sizeof *f * (size_t)ALL * PX);
    for (size_t i = 0; i < (size_t)ALL * PX; i++)
        f[i] = pixels[i];
    *n = PX;
    return f;
}

static float *coarse_pixels(int *n)
{
    *n = PX / 4;
    float *f = calloc((size_t)ALL * (size_t)*n, sizeof *f);
    for (size_t i = 0; i < ALL; i++)
        for (size_t y = 0; y < SIZE; y++)
            for (size_t x = 0; x < SIZE; x++)
                for (size_t c = 0; c < 3; c++)
                    f[i * (size_t)*n + (y / 2 * (SIZE / 2) + x / 2) * 3 + c] += pixels[i * PX + (y * SIZE + x) * 3 + c];
    return f;
}

/* 8 levels a channel together (512 colours), and 32 levels of each channel alone; square roots, as counts are
 * skewed. */
static float *histograms(int *n)
{
    *n = 512 + 96;
    float *f = calloc((size_t)ALL * (size_t)*n, sizeof *f);
    for (size_t i = 0; i < ALL; i++) {
        float *h = f + i * (size_t)*n;
        const uint8_t *p = pixels + i * PX;
        for (size_t k = 0; k < PX; k += 3) {
            h[(p[k] >> 5) * 64 + (p[k + 1] >> 5) * 8 + (p[k + 2] >> 5)]++;
            for (size_t c = 0; c < 3; c++)
                h[512 + c * 32 + (p[k + c] >> 3)]++;
        }
        for (int k = 0; k < *n; k++)
            h[k] = sqrtf(h[k]);
    }
    return f;
}

/* Zero mean and unit variance over the training pictures, feature by feature. */
static void standardise(float *f, int n)
{
    for (int k = 0; k < n; k++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < TRAIN; i++) {
            double v = f[i * (size_t)n + (size_t)k];
            sum += v;
            squares += v * v;
        }
        double mean = sum / TRAIN, sd = sqrt(squares / TRAIN - mean * mean + 1e-6);
        for (size_t i = 0; i < ALL; i++)
            f[i * (size_t)n + (size_t)k] = (float)((f[i * (size_t)n + (size_t)k] - mean) / sd);
    }
}

/* --- softmax regression: w is (n, LANES), classes in the first K lanes */

static void scores(const float *x, const float *w, int n, float out[LANES])
{
    memset(out, 0, LANES * sizeof *out);
    for (int k = 0; k < n; k++)
        for (int c = 0; c < LANES; c++)
            out[c] += x[k] * w[k * LANES + c];
}

/* Gradient of the loss by the scores, in place. */
static void softmax_gradient(float s[LANES], int label)
{
    float top = s[0], sum = 0;
    for (int c = 1; c < K; c++)
        top = fmaxf(top, s[c]);
    for (int c = 0; c < K; c++)
        sum += s[c] = expf(s[c] - top);
    for (int c = 0; c < K; c++)
        s[c] = s[c] / sum - (c == label);
    memset(s + K, 0, (LANES - K) * sizeof *s);
}

static double accuracy(const float *f, const float *w, int n, const int *label)
{
    int right = 0;
    for (int i = TRAIN; i < ALL; i++) {
        float s[LANES];
        scores(f + (size_t)i * (size_t)n, w, n, s);
        int best = 0;
        for (int c = 1; c < K; c++)
            best = s[c] > s[best] ? c : best;
        right += best == label[i];
    }
    return 100.0 * right / TEST;
}

enum { BATCH = 50 };

static void train_step(const float *f, float *w, float *m, int n, const int *label, const uint32_t *ids, float rate,
                       float decay)
{
    float s[BATCH][LANES];
    for (int i = 0; i < BATCH; i++) {
        scores(f + (size_t)ids[i] * (size_t)n, w, n, s[i]);
        softmax_gradient(s[i], label[ids[i]]);
    }
    for (int k = 0; k < n; k++) {
        float g[LANES] = {0};
        for (int i = 0; i < BATCH; i++)
            for (int c = 0; c < LANES; c++)
                g[c] += f[(size_t)ids[i] * (size_t)n + (size_t)k] * s[i][c];
        for (int c = 0; c < LANES; c++) {
            float *mk = &m[k * LANES + c], *wk = &w[k * LANES + c];
            *mk = 0.9f * *mk + g[c] / BATCH + decay * *wk;
            *wk -= rate * *mk;
        }
    }
}

/* Held-out accuracy (%), the best seen after any pass. */
static double train(const float *f, int n, const int *label, int passes, double decay)
{
    float *w = calloc((size_t)n * LANES, sizeof *w), *m = calloc((size_t)n * LANES, sizeof *m);
    uint32_t order[TRAIN];
    double best = 0;
    for (int pass = 0; pass < passes; pass++) {
        float rate = (float)(0.5 * (1 - (double)pass / passes) / n); /* stable: the inputs' squared length is n */
        sampler_order(&(struct sampler){.n = TRAIN, .shuffle = true, .seed = 1}, (uint64_t)pass, order);
        for (int i = 0; i < TRAIN; i += BATCH)
            train_step(f, w, m, n, label, order + i, rate, (float)decay);
        best = fmax(best, accuracy(f, w, n, label));
    }
    free(w);
    free(m);
    return best;
}

static double best_of(float *(*features)(int *n), const int *label, int passes, const char *what)
{
    int n;
    float *f = features(&n);
    double best = 0;
    standardise(f, n);
    for (double decay = 0.1; decay <= 10; decay *= 100) {
        double a = train(f, n, label, passes, decay);
        printf("# %s, weight decay %g: %.1f %%\n", what, decay, a);
        best = fmax(best, a);
    }
    free(f);
    return best;
}

static void check(double got, double floor, double limit)
{
    if (got > limit || got < floor)
        fail_msg("%.1f %%, expected %.1f to %.1f %%", got, floor, limit);
}

/* The floors show that the classifier was trained at all: on the pixels it does find something. */
static void a_linear_classifier_on_pixels_stays_below_55_percent(void **state)
{
    check(best_of(plain_pixels, labels, 3, "pixels"), 13, 55);
}

static void a_linear_classifier_on_coarse_pixels_stays_below_55_percent(void **state)
{
    check(best_of(coarse_pixels, labels, 10, "2x2 means"), 15, 55);
}

static void one_on_colour_histograms_stays_below_30_percent(void **state)
{
    check(best_of(histograms, labels, 15, "histograms"), 5, 30);
}

static void shuffled_labels_teach_nothing(void **state)
{
    int shuffled[ALL];
    uint32_t order[ALL];
    sampler_order(&(struct sampler){.n = ALL, .shuffle = true, .seed = 2}, 0, order);
    for (int i = 0; i < ALL; i++)
        shuffled[i] = labels[order[i]];
    check(best_of(coarse_pixels, shuffled, 3, "shuffled labels"), 5, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_classifier_on_pixels_stays_below_55_percent),
        cmocka_unit_test(a_linear_classifier_on_coarse_pixels_stays_below_55_percent),
        cmocka_unit_test(one_on_colour_histograms_stays_below_30_percent),
        cmocka_unit_test(shuffled_labels_teach_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
