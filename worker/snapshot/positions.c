/* Resamples tables of positions to another picture size. */
#include "worker/snapshot/positions.h"

#include <math.h>
#include <string.h>

#include "worker/program/program.h"

enum { TAPS = 4 };

/* Of averages and moments, too (slices.c). */
static bool is_of(const char *tensor, const char *param)
{
    static const char *const prefixes[] = {"", "momentum.", "second.", "ema."};
    bool is = false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const size_t n = strlen(prefixes[i]);
        is |= strncmp(tensor, prefixes[i], n) == 0 && strcmp(tensor + n, param) == 0;
    }
    return is;
}

bool positions_fit(const struct program *p, const struct ckpt_tensor *want, const struct ckpt_tensor *have,
                   struct positions *ret)
{
    if (want->ndim != 3 || have->ndim != 3 || have->shape[0] != 1 || want->shape[2] != have->shape[2])
        return false;
    for (int i = 0; i < p->nfwd; i++) {
        const struct op *op = &p->ops[i];
        const struct program_grid to =
            op->kind == OP_POSITION ? p->params[op->param[0]].grid : (struct program_grid){0};
        struct positions g = {.extra = to.extra, .to_h = to.h, .to_w = to.w, .channels = want->shape[2]};
        if (op->kind != OP_POSITION || !is_of(want->name, p->params[op->param[0]].name))
            continue;
        const int64_t places = have->shape[1] - g.extra;
        g.from_h = g.from_w = (int)lround(sqrt(places > 0 ? (double)places : 0));
        if (places < 1 || (int64_t)g.from_h * g.from_w != places ||
            want->shape[1] != g.extra + (int64_t)g.to_h * g.to_w || want->shape[1] == have->shape[1])
            return false;
        *ret = g;
        return true;
    }
    return false;
}

struct taps {
    int at[TAPS];
    double by[TAPS];
};

/* Of position i of `to`: those of `from` that it is made of. Keys' cubic convolution with a = -3/4; beyond an edge its
 * last value stays. */
static struct taps taps_of(int i, int from, int to, bool cubic)
{
    const double a = -0.75, x = to > 1 ? (double)i * (from - 1) / (to - 1) : 0, t = x - floor(x), u = 1 - t;
    struct taps v = {.by = {0, u, t, 0}};
    if (cubic) {
        v.by[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
        v.by[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
        v.by[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
        v.by[3] = ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a;
    }
    for (int k = 0; k < TAPS; k++) {
        const int at = (int)floor(x) + k - 1;
        v.at[k] = at < 0 ? 0 : at >= from ? from - 1 : at;
    }
    return v;
}

static double get(enum dtype real, const void *v, int64_t i)
{
    return real == DT_F64 ? ((const double *)v)[i] : (double)((const float *)v)[i];
}

static void put(enum dtype real, void *v, int64_t i, double x)
{
    if (real == DT_F64)
        ((double *)v)[i] = x;
    else
        ((float *)v)[i] = (float)x;
}

static void resample_place(const struct positions *g, bool cubic, enum dtype real, const void *from, void *to, int h,
                           int w)
{
    const struct taps row = taps_of(h, g->from_h, g->to_h, cubic), col = taps_of(w, g->from_w, g->to_w, cubic);
    const int64_t out = (g->extra + (int64_t)h * g->to_w + w) * g->channels;
    for (int64_t c = 0; c < g->channels; c++) {
        double sum = 0;
        for (int i = 0; i < TAPS; i++)
            for (int j = 0; j < TAPS; j++)
                sum += row.by[i] * col.by[j] *
                       get(real, from, (g->extra + (int64_t)row.at[i] * g->from_w + col.at[j]) * g->channels + c);
        put(real, to, out + c, sum);
    }
}

void positions_resample(const struct positions *g, bool cubic, enum dtype real, const void *from, void *to)
{
    memcpy(to, from, (size_t)(g->extra * g->channels) * dtype_size(real));
    for (int h = 0; h < g->to_h; h++)
        for (int w = 0; w < g->to_w; w++)
            resample_place(g, cubic, real, from, to, h, w);
}
