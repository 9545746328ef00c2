/* The cpu device's kernels for rows of channels, chains, softmax and convolutions in groups, of every instruction set
 * that this processor has, against sums in double. Sums of k products are within c sqrt(k) 2^-24 of the sum of their
 * sizes, c = 4; functions within 8 units of 2^-24; a value that is stored as bf16 loses 2^-8 of itself besides. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/device/cpu/kern/kern.h"
#include "worker/device/drop.h"

enum { THREADS = 2 };
static const double EPS = 0x1p-24;
static const enum store stores[] = {STORE_F32, STORE_BF16, STORE_ROUNDED};

static float draw(uint32_t seed, size_t i)
{
    uint32_t u = (uint32_t)i * 2654435761u + seed * 40503u;
    u ^= u >> 15;
    u *= 2246822519u;
    u ^= u >> 13;
    return (float)(int32_t)u * 0x1p-31f;
}

/* n values as `t` stores them, and in doubles. Room for a vector more. */
struct values {
    void *at;
    double *v;
};

static struct values make(size_t n, uint32_t seed, enum store t, double size)
{
    struct values r = {calloc(n + 16, t == STORE_BF16 ? 2 : 4), calloc(n, sizeof(double))};
    assert_true(r.at && r.v);
    for (size_t i = 0; i < n; i++) {
        const float f = store_value(t, (float)size * draw(seed, i));
        r.v[i] = (double)f;
        if (t == STORE_BF16)
            ((uint16_t *)r.at)[i] = bf16_from_f32(f);
        else
            ((float *)r.at)[i] = f;
    }
    return r;
}

static void give_back(struct values r)
{
    free(r.at);
    free(r.v);
}

static double got(const void *p, size_t i, enum store t)
{
    return (double)(t == STORE_BF16 ? f32_from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i]);
}

static void expect(const struct kern *k, const char *what, enum store t, size_t i, double value, double want,
                   double bound)
{
    const double all = bound + (t == STORE_F32 ? 0 : 0x1p-8 * fabs(want));
    if (!(fabs(value - want) <= all))
        fail_msg("%s of %s, store %d: [%zu] %.9g, expected %.9g +- %.3g", what, k->name, (int)t, i, value, want, all);
}

/* --- norms */

static void check_norm(const struct kern *k, enum store t, size_t rows, int c, bool rms)
{
    const size_t n = rows * (size_t)c, sums = kern_sums(c, 1) / 2;
    struct values x = make(n, 1, t, 1), dy = make(n, 2, t, 1), y = make(n, 3, t, 1), dx = make(n, 4, t, 1),
                  gamma = make((size_t)c, 5, STORE_F32, 1), beta = make((size_t)c, 6, STORE_F32, 1);
    double *partial = calloc(kern_sums(c, THREADS), sizeof(double)), *dgamma = calloc(2 * sums, sizeof(double)),
           *want = calloc(4 * (size_t)c, sizeof(double));
    float *runs = calloc(kern_sums(c, THREADS), sizeof(float));
    k->norm(&(struct norm_job){rows, c, rms, 1e-5f, x.at, y.at, gamma.at, rms ? NULL : beta.at}, t, THREADS);
    k->norm_bwd(
        &(struct norm_bwd_job){rows, c, rms, 1e-5f, x.at, dy.at, dx.at, gamma.at, dgamma, dgamma + sums, partial, runs},
        t, THREADS);
    const double some = 4 * sqrt(c) * EPS;
    for (size_t r = 0; r < rows; r++) {
        const double *xr = x.v + r * (size_t)c, *dr = dy.v + r * (size_t)c;
        double mean = 0, var = 0, plain = 0, projected = 0;
        for (int i = 0; i < c; i++)
            mean += rms ? 0 : xr[i] / c;
        for (int i = 0; i < c; i++)
            var += (xr[i] - mean) * (xr[i] - mean) / c;
        const double inv = 1 / sqrt(var + (double)1e-5f), wrong = 8 * (some + 8 * EPS) * inv;
        for (int i = 0; i < c; i++) {
            plain += rms ? 0 : dr[i] * gamma.v[i] / c;
            projected += dr[i] * gamma.v[i] * (xr[i] - mean) * inv / c;
        }
        for (int i = 0; i < c; i++) {
            const size_t at = r * (size_t)c + (size_t)i;
            const double xhat = (xr[i] - mean) * inv, size = 2 + fabs(xhat);
            expect(k, "norm", t, at, got(y.at, at, t), xhat * gamma.v[i] + (rms ? 0 : beta.v[i]), wrong * size);
            expect(k, "norm_bwd", t, at, got(dx.at, at, t), inv * (dr[i] * gamma.v[i] - plain - xhat * projected),
                   wrong * inv * size * (1 + size));
            want[i] += dr[i] * xhat;
            want[c + i] += dr[i];
            want[2 * c + i] += fabs(dr[i]) * (wrong * size + fabs(xhat) * 16 * EPS);
            want[3 * c + i] += fabs(dr[i]) * 16 * EPS;
        }
    }
    for (int i = 0; i < c; i++) {
        expect(k, "d gamma", STORE_F32, (size_t)i, dgamma[i], want[i], want[2 * c + i]);
        expect(k, "d beta", STORE_F32, (size_t)i, dgamma[sums + (size_t)i], want[c + i], want[3 * c + i]);
    }
    give_back(x), give_back(dy), give_back(y), give_back(dx), give_back(gamma), give_back(beta);
    free(partial), free(dgamma), free(want), free(runs);
}

static void norms_of_any_width_are_those_of_doubles(void **state)
{
    static const int widths[] = {2, 5, 16, 33, 96, 600};
    for (const struct kern *const *k = kern_all(); *k; k++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int t = 0; t < 3; t++)
                for (int rms = 0; rms < 2; rms++)
                    check_norm(*k, stores[t], 301, widths[i], rms);
}

/* --- chains */

static double act_of(enum op_act act, double x, bool slope)
{
    const double u = act == ACT_SILU ? x : 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-u));
    const double du = act == ACT_SILU ? 1 : 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    if (act == ACT_GELU)
        return slope ? 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-x * x / 2) / sqrt(2 * M_PI)
                     : x * 0.5 * erfc(-x * M_SQRT1_2);
    return slope ? s + x * s * (1 - s) * du : x * s;
}

/* Over a range that has all of each function, and where e^x would overflow. */
static void activations_are_those_of_doubles_everywhere(void **state)
{
    enum { N = 20001 };
    static float x[N + 16], ones[N + 16], y[N + 16], dx[N + 16];
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i - N / 2) * (i % 10 ? 0.0015f : 0.02f);
        ones[i] = 1;
    }
    for (const struct kern *const *k = kern_all(); *k; k++)
        for (int act = 0; act < OP_ACTS_N; act++) {
            struct chain_job j = {
                .count = N, .c = 4096, .positions = 1, .x = x, .y = y, .n = 1, .links = {{LINK_ACT, (enum op_act)act}}};
            (*k)->chain(&j, STORE_F32, THREADS);
            j.x = ones, j.y = dx, j.links[0] = (struct link){LINK_ACT_BWD, (enum op_act)act, x};
            (*k)->chain(&j, STORE_F32, THREADS);
            for (int i = 0; i < N; i++) {
                const double v = (double)x[i];
                expect(*k, "activation", STORE_F32, (size_t)i, (double)y[i], act_of((enum op_act)act, v, false),
                       4 * EPS * fabs(v));
                expect(*k, "slope", STORE_F32, (size_t)i, (double)dx[i], act_of((enum op_act)act, v, true), 8 * EPS);
            }
        }
    x[0] = NAN;
    for (const struct kern *const *k = kern_all(); *k; k++) {
        const struct chain_job j = {.count = 1, .c = 16, .positions = 1, .x = x, .y = y, .n = 1, .links = {{LINK_ACT}}};
        (*k)->chain(&j, STORE_F32, 1);
        assert_true(isnan(y[0]));
    }
}

/* Scale, dropout, a sum, and the gradient of a scale, of `samples` of positions of c channels. */
static void check_chain(const struct kern *k, enum store t, size_t samples, size_t positions, size_t c)
{
    static const uint32_t numbers[] = {7, 4000000000};
    const struct drop_key key = drop_key(1, 2, 3);
    const size_t n = samples * positions * c, sums = kern_sums((int)c, 1);
    struct values x = make(n, 1, t, 1), add = make(n, 2, t, 1), y = make(n, 3, t, 1), by = make(c, 4, STORE_F32, 1);
    double *partial = calloc(kern_sums((int)c, THREADS), sizeof(double)), *ds = calloc(sums, sizeof(double)),
           *want = calloc(2 * c, sizeof(double));
    float *runs = calloc(kern_sums((int)c, THREADS), sizeof(float));
    const struct link drop = {
        .kind = LINK_DROP, .sample = numbers, .key = key, .bound = drop_bound(0.3f), .kept = 1.5f};
    struct chain_job j = {.count = n,
                          .c = c,
                          .positions = positions,
                          .x = x.at,
                          .y = y.at,
                          .n = 3,
                          .links = {{.kind = LINK_SCALE, .by = by.at}, drop, {.kind = LINK_ADD, .with = add.at}}};
    k->chain(&j, t, THREADS);
    for (size_t i = 0; i < n; i++) {
        const bool stays = drop_word(key, numbers[i / c / positions], i % (positions * c)) >= drop.bound;
        const float scaled = store_value(t, (float)x.v[i] * ((float *)by.at)[i % c]),
                    kept = stays ? store_value(t, scaled * 1.5f) : 0;
        assert_true(got(y.at, i, t) == (double)store_value(t, kept + (float)add.v[i]));
    }
    j.n = 2, j.links[0] = drop;
    j.links[1] = (struct link){.kind = LINK_SCALE_BWD, .by = by.at, .with = add.at};
    j.sums = ds, j.partial = partial, j.runs = runs;
    k->chain(&j, t, THREADS);
    for (size_t i = 0; i < n; i++) {
        const bool stays = drop_word(key, numbers[i / c / positions], i % (positions * c)) >= drop.bound;
        const float d = stays ? store_value(t, (float)x.v[i] * 1.5f) : 0;
        assert_true(got(y.at, i, t) == (double)store_value(t, d * ((float *)by.at)[i % c]));
        want[i % c] += (double)d * add.v[i];
        want[c + i % c] += fabs((double)d * add.v[i]);
    }
    for (size_t i = 0; i < c; i++)
        expect(k, "d scale", STORE_F32, i, ds[i], want[i], 4 * 12 * EPS * want[c + i]);
    give_back(x), give_back(add), give_back(y), give_back(by);
    free(partial), free(ds), free(want), free(runs);
}

static void a_chain_rounds_each_value_as_its_operations_would(void **state)
{
    for (const struct kern *const *k = kern_all(); *k; k++)
        for (int t = 0; t < 3; t++) {
            check_chain(*k, stores[t], 2, 67, 24);
            check_chain(*k, stores[t], 2, 5, 7);
            check_chain(*k, stores[t], 1, 3, 1030);
        }
}

/* --- softmax */

static void check_softmax(const struct kern *k, enum store t, int n, bool causal)
{
    enum { ROWS = 5 };
    const size_t stride = (size_t)n + 3, all = ROWS * stride;
    struct values s = make(all, 1, STORE_F32, 6), dp = make(all, 2, STORE_F32, 1), p = make(all, 3, t, 1),
                  ds = make(all, 4, t, 1);
    float lse[ROWS], *again = malloc(all * sizeof(float));
    memcpy(again, s.at, all * sizeof(float));
    struct softmax_job j = {ROWS, n, 2, causal, stride, 0.5f, s.at, p.at, lse, dp.at, ds.at};
    for (int back = 0; back < 2; back++) {
        if (back)
            k->softmax_bwd(&j, t);
        else
            k->softmax(&j, t);
        j.scores = again;
        for (int r = 0; r < ROWS; r++) {
            const int there = causal && 2 + r + 1 < n ? 2 + r + 1 : n;
            double sum = 0, mean = 0;
            for (int i = 0; i < there; i++)
                sum += exp(0.5 * s.v[(size_t)r * stride + (size_t)i]);
            for (int i = 0; i < there; i++)
                mean += exp(0.5 * s.v[(size_t)r * stride + (size_t)i]) / sum * dp.v[(size_t)r * stride + (size_t)i];
            for (int i = 0; i < n; i++) {
                const size_t at = (size_t)r * stride + (size_t)i;
                const double weight = i < there ? exp(0.5 * s.v[at]) / sum : 0, d = weight * (dp.v[at] - mean) / 2;
                expect(k, "softmax", t, at, got(p.at, at, t), weight, 32 * EPS * weight);
                if (back)
                    expect(k, "softmax_bwd", t, at, got(ds.at, at, t), d, 64 * EPS * weight);
            }
            expect(k, "log of the sum", STORE_F32, (size_t)r, (double)lse[r], log(sum),
                   16 * EPS * (1 + fabs(log(sum))));
        }
    }
    give_back(s), give_back(dp), give_back(p), give_back(ds);
    free(again);
}

static void softmax_and_its_gradient_are_those_of_doubles(void **state)
{
    static const int widths[] = {1, 7, 16, 197};
    for (const struct kern *const *k = kern_all(); *k; k++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int t = 0; t < 3; t++)
                for (int causal = 0; causal < 2; causal++)
                    check_softmax(*k, stores[t], widths[i], causal);
}

/* --- convolutions in groups */

struct conv {
    int n, h, w, groups, read, made, kernel, step, pad;
};

static void check_groups(const struct kern *k, enum store t, const struct conv *s)
{
    const int c = s->groups * s->read, m = s->groups * s->made, window = s->kernel * s->kernel,
              oh = (s->h + 2 * s->pad - s->kernel) / s->step + 1, ow = (s->w + 2 * s->pad - s->kernel) / s->step + 1;
    const size_t nx = (size_t)(s->n * s->h * s->w * c), ny = (size_t)(s->n * oh * ow * m),
                 nw = (size_t)(m * s->read * window);
    struct values x = make(nx, 1, t, 1), y = make(ny, 2, t, 1), dy = make(ny, 3, t, 1), dx = make(nx, 4, t, 1),
                  weight = make(nw, 5, STORE_F32, 1), bias = make((size_t)m, 6, STORE_F32, 1),
                  dw = make(nw, 7, STORE_F32, 1), db = make((size_t)m, 8, STORE_F32, 1);
    struct groups_job f = {.n = s->n,
                           .h = s->h,
                           .w = s->w,
                           .c = c,
                           .oh = oh,
                           .ow = ow,
                           .k = m,
                           .read = s->read,
                           .made = s->made,
                           .kh = s->kernel,
                           .kw = s->kernel,
                           .step = s->step,
                           .spread = 1,
                           .top = s->pad,
                           .left = s->pad,
                           .x = x.at,
                           .y = y.at,
                           .from = weight.at,
                           .rounds = t,
                           .bias = bias.at};
    struct groups_job b = f;
    b.h = oh, b.w = ow, b.c = m, b.oh = s->h, b.ow = s->w, b.k = c, b.read = s->made, b.made = s->read;
    b.step = 1, b.spread = s->step, b.top = b.left = s->kernel - 1 - s->pad;
    b.turned = true, b.x = dy.at, b.y = dx.at, b.bias = NULL;
    struct groups_job *const both[] = {&f, &b};
    for (int i = 0; i < 2; i++) {
        both[i]->weights = malloc(groups_weights(both[i]) * sizeof(float));
        both[i]->scratch = malloc(groups_scratch(both[i], THREADS) * sizeof(float));
        k->groups(both[i], t, THREADS);
    }
    struct groups_param_job p = {.of = f, .dy = dy.at, .dw = dw.at, .db = db.at, .add = true};
    p.partial = malloc(groups_partial(&f, THREADS) * sizeof(double));
    k->groups_param(&p, t, THREADS);
    double *wy = calloc(2 * ny, sizeof(double)), *wx = calloc(2 * nx, sizeof(double)),
           *ww = calloc(2 * nw, sizeof(double));
    for (size_t i = 0; i < ny; i++) {
        const int o = (int)(i % (size_t)m), px = (int)(i / (size_t)m % (size_t)ow),
                  py = (int)(i / (size_t)(m * ow) % (size_t)oh), n = (int)(i / (size_t)(m * ow * oh));
        wy[i] = bias.v[o];
        wy[ny + i] = fabs(bias.v[o]);
        for (int r = 0; r < s->read * window; r++) {
            const int ky = r % window / s->kernel, kx = r % s->kernel, iy = py * s->step + ky - s->pad,
                      ix = px * s->step + kx - s->pad;
            if (iy < 0 || ix < 0 || iy >= s->h || ix >= s->w)
                continue;
            const size_t at = (size_t)(((n * s->h + iy) * s->w + ix) * c + o / s->made * s->read + r / window),
                         w = (size_t)(o * s->read * window + r);
            const double by = (double)store_value(t, (float)weight.v[w]);
            wy[i] += x.v[at] * by, wy[ny + i] += fabs(x.v[at] * by);
            wx[at] += dy.v[i] * by, wx[nx + at] += fabs(dy.v[i] * by);
            ww[w] += dy.v[i] * x.v[at], ww[nw + w] += fabs(dy.v[i] * x.v[at]);
        }
    }
    for (size_t i = 0; i < ny; i++)
        expect(k, "conv", t, i, got(y.at, i, t), wy[i], 4 * sqrt(s->read * window) * EPS * wy[ny + i]);
    for (size_t i = 0; i < nx; i++)
        expect(k, "conv by data", t, i, got(dx.at, i, t), wx[i], 4 * sqrt(s->made * window) * EPS * wx[nx + i]);
    for (size_t i = 0; i < nw; i++) /* added to what was there */
        expect(k, "conv by weights", STORE_F32, i, got(dw.at, i, STORE_F32), ww[i] + dw.v[i],
               4 * sqrt(s->n * oh * ow) * EPS * ww[nw + i] + 2 * EPS);
    for (int o = 0; o < m; o++) {
        double sum = db.v[o], size = 1;
        for (size_t i = (size_t)o; i < ny; i += (size_t)m)
            sum += dy.v[i], size += fabs(dy.v[i]);
        expect(k, "gradient of a bias", STORE_F32, (size_t)o, got(db.at, (size_t)o, STORE_F32), sum,
               4 * sqrt(s->n * oh * ow) * EPS * size);
    }
    for (int i = 0; i < 2; i++)
        free(both[i]->weights), free(both[i]->scratch);
    give_back(x), give_back(y), give_back(dy), give_back(dx), give_back(weight), give_back(bias), give_back(dw);
    give_back(db), free(p.partial), free(wy), free(wx), free(ww);
}

static void convolutions_in_groups_are_those_of_doubles(void **state)
{
    static const struct conv convs[] = {
        {2, 9, 11, 24, 1, 1, 7, 1, 3}, {1, 20, 17, 16, 1, 1, 3, 2, 1}, {3, 7, 7, 33, 1, 1, 5, 1, 2},
        {2, 6, 10, 8, 4, 4, 3, 1, 1},  {2, 7, 9, 4, 8, 8, 3, 2, 1},    {2, 5, 5, 2, 16, 16, 3, 1, 1},
        {1, 6, 6, 2, 32, 32, 3, 1, 1}, {2, 5, 6, 3, 5, 7, 3, 2, 0},    {2, 8, 8, 6, 1, 4, 3, 1, 1},
        {2, 4, 5, 5, 3, 2, 1, 1, 0},   {1, 12, 12, 4, 2, 2, 2, 2, 0},  {1, 9, 8, 3, 1, 1, 9, 1, 4},
    };
    for (const struct kern *const *k = kern_all(); *k; k++)
        for (int t = 0; t < 3; t++)
            for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
                check_groups(*k, stores[t], &convs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_any_width_are_those_of_doubles),
        cmocka_unit_test(activations_are_those_of_doubles_everywhere),
        cmocka_unit_test(a_chain_rounds_each_value_as_its_operations_would),
        cmocka_unit_test(softmax_and_its_gradient_are_those_of_doubles),
        cmocka_unit_test(convolutions_in_groups_are_those_of_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
