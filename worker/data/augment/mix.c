/* Draws which pictures of a step are mixed, and by how much. */
#include "worker/data/augment/mix.h"

#include <math.h>

#include "worker/data/image/portable_math.h"
#include "worker/data/image/rng.h"

#define LEAST_EXPONENT (-16.0) /* of pm_exp(): what is smaller counts as nothing */

static double power_of_e(double x)
{
    return x < LEAST_EXPONENT ? 0 : pm_exp(x);
}

/* Gamma(a), a >= 1 (Marsaglia and Tsang, 2000). */
static double gamma_of(double a, struct rng *r)
{
    const double d = a - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        const double angle = 2 * PM_PI * rng_unit(r) - PM_PI, x = sqrt(-2 * pm_log(1 - rng_unit(r))) * pm_cos(angle),
                     v = (1 + c * x) * (1 + c * x) * (1 + c * x), u = 1 - rng_unit(r);
        if (v > 0 && pm_log(u) < 0.5 * x * x + d - d * v + d * pm_log(v))
            return d * v;
    }
}

/* Below 1 (Joehnk, 1964), by logarithms, since a power of 1/a soon is too small for a number. */
double mix_beta(double a, struct rng *r)
{
    if (a >= 1) {
        const double x = gamma_of(a, r), y = gamma_of(a, r);
        return x / (x + y);
    }
    for (;;) {
        const double x = pm_log(1 - rng_unit(r)) / a, y = pm_log(1 - rng_unit(r)) / a;
        if (power_of_e(x) + power_of_e(y) <= 1)
            return 1 / (1 + (y > x ? 1 / power_of_e(fmax(x - y, LEAST_EXPONENT)) : power_of_e(y - x)));
    }
}

static int16_t limited(int v, int most)
{
    return (int16_t)(v < 0 ? 0 : v > most ? most : v);
}

/* As torchvision's CutMix: around a pixel, cut off at the border, which lambda then allows for. */
static struct mix cut(double lambda, int size, struct rng *r)
{
    const int x = (int)rng_below(r, (uint64_t)size), y = (int)rng_below(r, (uint64_t)size),
              half = (int)(0.5 * sqrt(1 - lambda) * size);
    const struct mix m = {
        .keep = 1,
        .box = {limited(x - half, size), limited(y - half, size), limited(x + half, size), limited(y + half, size)}};
    const double area = (double)(m.box[2] - m.box[0]) * (m.box[3] - m.box[1]);
    struct mix ret = m;
    ret.share = area / ((double)size * size);
    return ret;
}

struct mix mix_draw(const struct mix_options *o, uint64_t seed, int64_t epoch, int64_t step, size_t group, int size)
{
    struct rng r = rng_stream_of(seed, RNG_MIX, (uint64_t)epoch, (uint64_t)step, group);
    const bool cuts = o->mixup <= 0 || (o->cutmix > 0 && rng_below(&r, 2) == 1);
    const double lambda = mix_beta(cuts ? o->cutmix : o->mixup, &r);
    return cuts ? cut(lambda, size, &r) : (struct mix){.keep = lambda, .share = 1 - lambda};
}

size_t mix_partner(size_t group, size_t repetitions, size_t position, size_t length)
{
    const size_t first = position / group * group, n = length - first < group ? length - first : group,
                 back = repetitions % n;
    return first + (position - first + n - back) % n;
}
