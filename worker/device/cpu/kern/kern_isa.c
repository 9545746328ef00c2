/* The table of an instruction set, and the kernels that know one storage type: input, updates, loss. */
#include "worker/device/cpu/kern/kern_exp.h"
#include "worker/device/cpu/kern/kern_set.h"
#include "worker/device/mix.h"
#include "worker/program/program.h"

#define REAL float
#include "worker/device/rules.h"

/* What each byte becomes in channel c. */
static void input_values(const struct input_job *j, int c, float value[256])
{
    for (int byte = 0; byte < 256; byte++)
        value[byte] = c < j->l.c ? (float)((byte / 255.0 - (double)j->mean[c]) / (double)j->std[c]) : 0;
}

static void put_value(const struct input_job *j, enum store t, size_t at, float v)
{
    if (t == STORE_BF16)
        ((uint16_t *)j->y)[at] = bf16_from_f32(v);
    else
        ((float *)j->y)[at] = v;
}

/* A channel of a picture that is erased or mixed, from element `at` on; rounded once. */
static void input_mixed(const struct input_job *j, enum store t, int n, const uint8_t *image, const float value[256],
                        size_t at)
{
    const struct layout *l = &j->l;
    const struct batch_mix *m = &j->mix[n];
    const uint8_t *other = image + (int64_t)m->partner * l->h * l->w * l->c;
    for (int y = 0; y < l->h; y++)
        for (int x = 0; x < l->w; x++, image += l->c, other += l->c, at += (size_t)l->b)
            put_value(j, t, at,
                      store_value(t, (float)mix_value(m, x, y, (double)value[*image], (double)value[*other])));
}

static void input_plain(const struct input_job *j, enum store t, const uint8_t *image, float value[256], size_t at)
{
    const int hw = j->l.h * j->l.w;
    for (int byte = 0; byte < 256; byte++)
        value[byte] = store_value(t, value[byte]);
    for (int p = 0; p < hw; p++)
        put_value(j, t, at + (size_t)p * j->l.b, value[image[(size_t)p * j->l.c]]);
}

static void input(const struct input_job *j, enum store t, int threads)
{
    const struct layout *l = &j->l;
    const int hw = l->h * l->w, channels = layout_blocks(l) * l->b;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int n = 0; n < l->n; n++) {
        const bool mixed = j->mix && mix_changes(&j->mix[n]);
        for (int c = 0; c < channels; c++) {
            float value[256];
            const uint8_t *image = j->images + (size_t)n * hw * l->c + (c < l->c ? c : 0);
            const size_t at = layout_offset(l, n, c, 0);
            input_values(j, c, value);
            if (mixed)
                input_mixed(j, t, n, image, value, at);
            else
                input_plain(j, t, image, value, at);
        }
    }
}

static void round_all(float *x, size_t n, enum store t, int threads)
{
    KERN_OF_SET(add)(x, NULL, x, false, n, t, threads);
}

static void accumulate(float *sum, const float *x, size_t n, int threads)
{
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static double squares(const float *x, size_t n, int threads)
{
    return rule_squares(x, n, threads);
}

static void blend(float *stats, const float *sums, size_t n, float keep, float mul, int threads)
{
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < n; i++)
        stats[i] = keep * stats[i] + mul * sums[i];
}

static float largest(const float *x, int n)
{
    float most = x[0];
#pragma omp simd reduction(max : most)
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* How many beat the label's, which is z[label] if it is there (xent_beats()). */
static int better_of_run(const float *z, int n, float target, int label)
{
    int better = 0;
#pragma omp simd reduction(+ : better)
    for (int j = 0; j < n; j++)
        better += z[j] < target || (z[j] == target && j >= label) ? 0 : 1;
    return better - (label >= 0 && label < n && !(z[label] <= target));
}

#define X float
#define EXP exp_of_float
#define NAME(x) x##_in_floats
#include "worker/device/cpu/kern/kern_xent.h"

#define X double
#define EXP exp_of_double
#define NAME(x) x##_in_doubles
#include "worker/device/cpu/kern/kern_xent.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

extern const struct kern KERN_TABLE;
const struct kern KERN_TABLE = {
    .name = STRING(KERN_TABLE),
    .bn_stats = KERN_OF_SET(bn_stats),
    .bn_apply = KERN_OF_SET(bn_apply),
    .bn_bwd_sums = KERN_OF_SET(bn_bwd_sums),
    .bn_bwd_apply = KERN_OF_SET(bn_bwd_apply),
    .maxpool = KERN_OF_SET(maxpool),
    .maxpool_bwd = KERN_OF_SET(maxpool_bwd),
    .avgpool = KERN_OF_SET(avgpool),
    .avgpool_bwd = KERN_OF_SET(avgpool_bwd),
    .input = input,
    .add = KERN_OF_SET(add),
    .groups = KERN_OF_SET(groups),
    .groups_param = KERN_OF_SET(groups_param),
    .norm = KERN_OF_SET(norm),
    .norm_bwd = KERN_OF_SET(norm_bwd),
    .chain = KERN_OF_SET(chain),
    .softmax = KERN_OF_SET(softmax),
    .softmax_bwd = KERN_OF_SET(softmax_bwd),
    .give_rows = KERN_OF_SET(give_rows),
    .columns = KERN_OF_SET(columns),
    .relu_bwd = KERN_OF_SET(relu_bwd),
    .give = KERN_OF_SET(give),
    .round = round_all,
    .accumulate = accumulate,
    .update = rule_update,
    .squares = squares,
    .blend = blend,
    .largest = largest,
    .xent_sums = xent_sums_in_doubles,
    .xent_gradient = xent_gradient_in_doubles,
    .xent_sums_of_part = xent_sums_in_floats,
    .xent_gradient_of_part = xent_gradient_in_floats,
};
