/* Initial values (decision 0005): functions of (seed, name, element), so that a slice needs no whole and every
 * machine gets the same bits.
 *
 * Philox4x32-10 (Random123) makes 128 random bits from the key `seed` and the counter (element / 2, hash of the name):
 * two elements. A normal value is the inverse of the normal distribution function at one uniform value: algorithm AS
 * 241 (PPND16) of M. J. Wichura, Applied Statistics 37 (1988) 477-484, relative error about 1e-16. Only + - * / and
 * sqrt are used, which IEEE 754 rounds in one way, and the folder is compiled with -ffp-contract=off; log, needed in
 * the tails, is therefore written out below. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <Random123/philox.h>

#include "worker/program/program.h"

/* Values come in blocks, of elements [first, first + BLOCK), first being a multiple of it: loops without branches,
 * which the compiler turns into vectors. A lane is rounded as an element alone would be: vectors change no bit. */
enum { BLOCK = 64 };

static void random_block(uint64_t seed, uint64_t name, uint64_t first, uint64_t bits[BLOCK])
{
    const philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    for (uint64_t i = 0; i < BLOCK; i += 2) {
        const uint64_t n = (first + i) / 2;
        philox4x32_ctr_t ctr = {{(uint32_t)n, (uint32_t)(n >> 32), (uint32_t)name, (uint32_t)(name >> 32)}};
        philox4x32_ctr_t r = philox4x32_R(10, ctr, key);
        bits[i] = (uint64_t)r.v[1] << 32 | r.v[0];
        bits[i + 1] = (uint64_t)r.v[3] << 32 | r.v[2];
    }
}

/* v < 2^52. A conversion that vectors have without AVX-512. */
static inline double to_double(uint64_t v)
{
    double x;
    v |= 0x4330000000000000u; /* the bits of 2^52 + v */
    memcpy(&x, &v, 8);
    return x - 0x1p52;
}

/* Natural logarithm of a normal number x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 artanh((m - 1) / (m +
 * 1)). */
static inline double plain_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    const uint64_t fraction = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &fraction, 8);
    const bool big = m > 1.4142135623730951;
    const double e = to_double(bits >> 52) - (big ? 1022 : 1023);
    m = big ? m * 0.5 : m;
    const double z = (m - 1) / (m + 1), z2 = z * z; /* |z| < 0.172: the term z^25 is below 1e-19 */
    double sum = 1.0 / 23;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * z2 + 1.0 / k;
    return 2 * z * sum + e * 0.69314718055994530942;
}

static inline double ratio(const double *num, const double *den, double r)
{
    double a = num[7], b = den[7];
    for (int i = 6; i >= 0; i--) {
        a = a * r + num[i];
        b = b * r + den[i];
    }
    return a / b;
}

/* The coefficients of AS 241, lowest power first. */
static const double centre_num[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                     1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                     3.3430575583588128105e+4, 2.5090809287301226727e+3};
static const double centre_den[8] = {1.0,
                                     4.2313330701600911252e+1,
                                     6.8718700749205790830e+2,
                                     5.3941960214247511077e+3,
                                     2.1213794301586595867e+4,
                                     3.9307895800092710610e+4,
                                     2.8729085735721942674e+4,
                                     5.2264952788528545610e+3};
static const double near_num[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                   3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
static const double near_den[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
static const double far_num[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                  2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                  2.71155556874348757815e-5, 2.01033439929228813265e-7};
static const double far_den[8] = {1.0,
                                  5.99832206555887937690e-1,
                                  1.36929880922735805310e-1,
                                  1.48753612908506148525e-2,
                                  7.86869131145613259100e-4,
                                  1.84631831751005468180e-5,
                                  1.42151175831644588870e-7,
                                  2.04426310338993978564e-15};

/* The values x with P(N(0,1) < x) = u, 0 < u < 1: near the middle, |q| <= CENTRE with q = u - 1/2, and beyond. */
#define CENTRE 0.425

static void normal_centres(const double u[BLOCK], double x[BLOCK])
{
    for (int i = 0; i < BLOCK; i++) {
        const double q = u[i] - 0.5;
        x[i] = q * ratio(centre_num, centre_den, 0.180625 - q * q); /* CENTRE squared */
    }
}

/* In place, |q| > CENTRE: x is u on entry. */
static void normal_tails(int n, double x[BLOCK])
{
    double r[BLOCK], q[BLOCK];
    for (int i = 0; i < n; i++) {
        q[i] = x[i] - 0.5;
        r[i] = sqrt(-plain_log(q[i] < 0 ? x[i] : 1 - x[i]));
        x[i] = ratio(near_num, near_den, r[i] - 1.6);
    }
    for (int i = 0; i < n; i++) /* 3 of 10^11 */
        if (r[i] > 5)
            x[i] = ratio(far_num, far_den, r[i] - 5);
    for (int i = 0; i < n; i++)
        x[i] = q[i] < 0 ? -x[i] : x[i];
}

/* Share of a normal distribution that lies beyond -2 standard deviations. */
#define BEYOND_TWO 0.022750131948179209

/* cut: share of each tail that is left out. */
static void normal_block(double scale, double cut, const uint64_t bits[BLOCK], double x[BLOCK])
{
    double u[BLOCK], tail[BLOCK];
    int at[BLOCK], n = 0;
    for (int i = 0; i < BLOCK; i++) /* 52 bits + 0.5: never 0 nor 1 */
        u[i] = cut + (to_double(bits[i] >> 12) + 0.5) * 0x1p-52 * (1 - 2 * cut);
    normal_centres(u, x);
    for (int i = 0; i < BLOCK; i++) { /* 15 of 100 */
        tail[n] = u[i];
        at[n] = i;
        n += fabs(u[i] - 0.5) > CENTRE;
    }
    normal_tails(n, tail);
    for (int i = 0; i < n; i++)
        x[at[i]] = tail[i];
    for (int i = 0; i < BLOCK; i++)
        x[i] *= scale;
}

static void uniform_block(double scale, const uint64_t bits[BLOCK], double x[BLOCK])
{
    for (int i = 0; i < BLOCK; i++)
        x[i] = scale * ((double)(int64_t)(bits[i] >> 11) * 0x1p-52 - 1);
}

/* --- tables of positions */

/* e^x for -10 < x <= 0: a sum of powers of what is left of a multiple of log 2. */
static double plain_exp(double x)
{
    const int k = (int)(x * 1.4426950408889634 - 0.5);
    const double r = x - k * 0.693147180369123816490 - k * 1.90821492927058770002e-10;
    const uint64_t bits = (uint64_t)(1023 + k) << 52;
    double sum = 1, power;
    for (int i = 16; i > 0; i--)
        sum = sum * r / i + 1;
    memcpy(&power, &bits, 8);
    return sum * power;
}

/* sin x, or (quarters 1) cos x, for 0 <= x < 2^16: of what is left of a multiple of pi / 2. */
static double plain_sin(double x, int quarters)
{
    const int k = (int)(x * 0.63661977236758134 + 0.5), quarter = (k + quarters) % 4;
    const double r = x - k * 1.57079632673412561417 - k * 6.07710050650619224932e-11, r2 = r * r;
    double odd = 1, even = 1;
    for (int i = 18; i > 0; i -= 2) {
        even = 1 - even * r2 / (i * (i - 1));
        odd = 1 - odd * r2 / (i * (i + 1));
    }
    const double v = quarter % 2 ? even : odd * r;
    return quarter < 2 ? v : -v;
}

/* As MAE's get_2d_sincos_pos_embed(): sines, then cosines, of the column at channels / 4 frequencies from 1 to almost
 * 1 / 10000, and the same of the row; positions before the picture are zeros. */
static void fill_table(const struct param *p, size_t first, size_t n, double *out)
{
    const size_t channels = (size_t)p->shape[2], some = channels / 4, extra = (size_t)p->grid.extra,
                 w = (size_t)p->grid.w;
    for (size_t i = 0; i < n; i++) {
        const size_t position = (first + i) / channels, c = (first + i) % channels, place = position - extra;
        const double rate = plain_exp(-9.2103403719761836 * (double)(c % some) / (double)some); /* log 10000 */
        const double at = (double)(c / some < 2 ? place % w : place / w);
        out[i] = position < extra ? 0 : plain_sin(at * rate, (int)(c / some % 2));
    }
}

/* Elements [first, first + n) of the whole parameter. */
static inline void fill_run(const struct param *p, uint64_t seed, size_t first, size_t n, double *out)
{
    const uint64_t name = program_hash(p->name);
    const bool table = p->init == INIT_SINCOS2D,
               drawn = !table && p->init != INIT_ZEROS && p->init != INIT_ONES && p->init != INIT_CONSTANT;
    uint64_t bits[BLOCK];
    double x[BLOCK];
    if (table)
        fill_table(p, first, n, out);
    for (size_t i = 0; !table && !drawn && i < n; i++)
        out[i] = p->init == INIT_CONSTANT ? p->init_scale : p->init == INIT_ONES;
    for (size_t i = 0, k = first % BLOCK; drawn && i < n; i += BLOCK - k, k = 0) {
        random_block(seed, name, first + i - k, bits);
        if (p->init == INIT_UNIFORM)
            uniform_block(p->init_scale, bits, x);
        else
            normal_block(p->init_scale, p->init == INIT_TRUNCATED ? BEYOND_TWO : 0, bits, x);
        memcpy(out + i, x + k, (n - i < BLOCK - k ? n - i : BLOCK - k) * sizeof *x);
    }
}

typedef void fill(const struct param *p, uint64_t seed, size_t first, size_t n, double *out);

/* The loops once per instruction set: flattened, all that they call is compiled for it. */
__attribute__((flatten)) static void fill_plain(const struct param *p, uint64_t seed, size_t first, size_t n,
                                                double *out)
{
    fill_run(p, seed, first, n, out);
}

#ifdef __x86_64__
__attribute__((flatten, target("avx2"))) static void fill_avx2(const struct param *p, uint64_t seed, size_t first,
                                                               size_t n, double *out)
{
    fill_run(p, seed, first, n, out);
}
#endif

static fill *fastest(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return fill_avx2;
#endif
    return fill_plain;
}

void param_initial_fill(const struct param *p, uint64_t seed, size_t first, size_t n, double *out)
{
    fill *const run = fastest();
    for (size_t done = 0; done < n;) {
        const struct param_run r = p->sharded ? param_run_at(p, first + done) : (struct param_run){first + done, n};
        const size_t some = r.n < n - done ? r.n : n - done;
        run(p, seed, r.whole, some, out + done);
        done += some;
    }
}

double param_initial(const struct param *p, uint64_t seed, size_t i)
{
    double x;
    param_initial_fill(p, seed, i, 1, &x);
    return x;
}
