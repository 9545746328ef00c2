/* Draws the operations of a picture by a published policy; parses and prints policies. */
#include "worker/data/augment/policy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "worker/data/image/portable_math.h"

static const char *const kinds[] = {POLICIES(CHOICE_NAME)};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* --- as text */

static struct policy defaults(enum policy_kind k)
{
    return (struct policy){.kind = k,
                           .ops = k == POLICY_TRIVIAL || k == POLICY_THREE ? 1 : 2,
                           .magnitude = k == POLICY_RAND || k == POLICY_RAND_TIMM ? 9 : 10};
}

static bool is_rand(const struct policy *p)
{
    return p->kind == POLICY_RAND || p->kind == POLICY_RAND_TIMM || p->kind == POLICY_RAND_BIG_VISION;
}

static int set_key(struct policy *p, const char *key, const char *value, struct err *e)
{
    int64_t n;
    const double most = p->kind == POLICY_RAND_TIMM ? 10 : 30;
    if (!value && strcmp(key, "bilinear") == 0 && p->kind != POLICY_THREE)
        p->bilinear = true;
    else if (!value && strcmp(key, "inc") == 0 && p->kind == POLICY_RAND_TIMM)
        p->inc = true;
    else if (value && strcmp(key, "n") == 0 && is_rand(p)) {
        TRY(parse_i64(value, "n", 1, POLICY_OPS_MOST, &n, e));
        p->ops = (int)n;
    } else if (value && strcmp(key, "m") == 0 && is_rand(p)) {
        TRY(parse_f64(value, "m", 0, most, &p->magnitude, e));
        if (p->kind == POLICY_RAND && p->magnitude != floor(p->magnitude))
            return err_set(e, ERR_USAGE, "m %g: rand has whole magnitudes, 0 to 30", p->magnitude);
    } else if (value && strcmp(key, "mstd") == 0 && p->kind == POLICY_RAND_TIMM)
        return parse_f64(value, "mstd", 0, 100, &p->mstd, e);
    else
        return err_set(e, ERR_USAGE,
                       "'%s' is no part of %s: rand and rand-big-vision take n=N and m=M, rand-timm also "
                       "mstd=S and inc; all but three take bilinear",
                       key, kinds[p->kind]);
    return 0;
}

int policy_parse(const char *text, void *policy, struct err *e)
{
    char all[128], *rest = all;
    int kind = 0;
    const bool fits = snprintf(all, sizeof all, "%s", text) < (int)sizeof all;
    const char *name = strsep(&rest, ":");
    while (kind < KINDS && strcmp(name, kinds[kind]) != 0)
        kind++;
    if (kind == KINDS || !fits)
        return err_set(e, ERR_USAGE, "expected none, trivial, rand, rand-timm, rand-big-vision or three, got '%s'",
                       text);
    struct policy p = defaults((enum policy_kind)kind);
    while (rest) {
        char *value = strsep(&rest, ",");
        const char *key = strsep(&value, "=");
        TRY(set_key(&p, key, value, e));
    }
    *(struct policy *)policy = p;
    return 0;
}

void policy_print(const void *policy, char *out, size_t cap)
{
    const struct policy *p = policy;
    char m[ARG_REAL_MAX], s[ARG_REAL_MAX];
    args_real_text(p->magnitude, m);
    args_real_text(p->mstd, s);
    int n = snprintf(out, cap, "%s", kinds[p->kind]);
    if (is_rand(p))
        n += snprintf(out + n, cap - (size_t)n, ":n=%d,m=%s", p->ops, m);
    if (p->kind == POLICY_RAND_TIMM)
        n += snprintf(out + n, cap - (size_t)n, ",mstd=%s%s", s, p->inc ? ",inc" : "");
    if (p->bilinear)
        snprintf(out + n, cap - (size_t)n, "%sbilinear", is_rand(p) ? "," : ":");
}

int jitter_parse(const char *text, void *jitter, struct err *e)
{
    struct jitter j = {{0}};
    char all[128], *rest = all;
    int n = 0;
    snprintf(all, sizeof all, "%s", text);
    for (; rest && n < 3; n++)
        TRY(parse_f64(strsep(&rest, ","), "factor", 0, 10, &j.by[n], e));
    if (rest || n == 2)
        return err_set(e, ERR_USAGE, "expected one number, or three: BRIGHTNESS,CONTRAST,SATURATION");
    if (n == 1)
        j.by[1] = j.by[2] = j.by[0];
    *(struct jitter *)jitter = j;
    return 0;
}

void jitter_print(const void *jitter, char *out, size_t cap)
{
    const struct jitter *j = jitter;
    char of[3][ARG_REAL_MAX];
    for (int i = 0; i < 3; i++)
        args_real_text(j->by[i], of[i]);
    out[0] = 0;
    if (j->by[0] > 0 || j->by[1] > 0 || j->by[2] > 0)
        snprintf(out, cap, "%s,%s,%s", of[0], of[1], of[2]);
}

/* --- magnitudes */

static double sign(struct rng *r)
{
    return rng_below(r, 2) ? -1 : 1;
}

/* torch.linspace(first, last, 31)[i], in single precision: from both ends, each product and sum rounded once. */
static double of_31(float first, float last, int i)
{
    const double step = (double)((last - first) / 30);
    return (double)(float)(i < 15 ? (double)first + step * i : (double)last - step * (30 - i));
}

/* The operations of trivial and rand, in torchvision's order: the last magnitude of each; 0: it has none. */
struct torch_op {
    enum picture_op op;
    float wide, rand;
    enum { ALONE, SIGNED, FACTOR, BITS, LEVEL } what;
};
static const struct torch_op torch_ops[] = {
    {PICTURE_IDENTITY, 0, 0, ALONE},
    {PICTURE_SHEAR_X, 0.99F, 0.3F, SIGNED},
    {PICTURE_SHEAR_Y, 0.99F, 0.3F, SIGNED},
    {PICTURE_TRANSLATE_X, 32, (float)(150.0 / 331.0), SIGNED}, /* rand: a share of the size */
    {PICTURE_TRANSLATE_Y, 32, (float)(150.0 / 331.0), SIGNED},
    {PICTURE_ROTATE, 135, 30, SIGNED},
    {PICTURE_BRIGHTNESS, 0.99F, 0.9F, FACTOR},
    {PICTURE_COLOR, 0.99F, 0.9F, FACTOR},
    {PICTURE_CONTRAST, 0.99F, 0.9F, FACTOR},
    {PICTURE_SHARPNESS, 0.99F, 0.9F, FACTOR},
    {PICTURE_POSTERIZE, 6, 4, BITS},
    {PICTURE_SOLARIZE, 255, 255, LEVEL},
    {PICTURE_AUTOCONTRAST, 0, 0, ALONE},
    {PICTURE_EQUALIZE, 0, 0, ALONE}};
enum { TORCH_OPS = sizeof torch_ops / sizeof *torch_ops, TORCH_BINS = 31 };

static struct drawn draw_torch(bool wide, int bin, int size, struct rng *r)
{
    const struct torch_op *o = &torch_ops[rng_below(r, TORCH_OPS)];
    struct drawn d = {.op = o->op};
    const bool moves = o->op == PICTURE_TRANSLATE_X || o->op == PICTURE_TRANSLATE_Y;
    const float last = wide ? o->wide : moves ? (float)(150.0 / 331.0 * size) : o->rand;
    if (o->what == ALONE)
        return d;
    bin = bin < 0 ? (int)rng_below(r, TORCH_BINS) : bin;
    if (o->what == BITS)
        d.value = 8 - rint((double)((float)bin / (float)(30 / (double)last)));
    else if (o->what == LEVEL)
        d.value = of_31(last, 0, bin);
    else
        d.value = of_31(0, last, bin) * sign(r);
    if (o->what == FACTOR)
        d.value += 1;
    if (moves)
        d.value = trunc(d.value);
    return d;
}

/* Of 10, as in the tables of TensorFlow's first RandAugment, which timm and big_vision share. */
static double of_10(enum picture_op op, double level, double move, struct rng *r)
{
    const double share = level / 10;
    switch (op) {
    case PICTURE_ROTATE:
        return share * 30 * sign(r);
    case PICTURE_SHEAR_X:
    case PICTURE_SHEAR_Y:
        return share * 0.3 * sign(r);
    case PICTURE_TRANSLATE_X:
    case PICTURE_TRANSLATE_Y:
        return share * move * sign(r);
    case PICTURE_POSTERIZE:
        return trunc(share * 4);
    case PICTURE_SOLARIZE:
        return trunc(share * 256);
    case PICTURE_SOLARIZE_ADD:
        return trunc(share * 110);
    case PICTURE_AUTOCONTRAST:
    case PICTURE_EQUALIZE:
    case PICTURE_INVERT:
        return 0;
    default:
        return share * 1.8 + 0.1;
    }
}

static const enum picture_op ops_of_10[] = {
    PICTURE_AUTOCONTRAST, PICTURE_EQUALIZE, PICTURE_INVERT,      PICTURE_ROTATE,      PICTURE_POSTERIZE,
    PICTURE_SOLARIZE,     PICTURE_COLOR,    PICTURE_CONTRAST,    PICTURE_BRIGHTNESS,  PICTURE_SHARPNESS,
    PICTURE_SHEAR_X,      PICTURE_SHEAR_Y,  PICTURE_TRANSLATE_X, PICTURE_TRANSLATE_Y, PICTURE_SOLARIZE_ADD};
enum { OPS_OF_10 = sizeof ops_of_10 / sizeof *ops_of_10 };

/* Normal with deviation 1, from two uniform numbers. */
static double normal(struct rng *r)
{
    const double u = 1 - rng_unit(r), angle = 2 * PM_PI * rng_unit(r) - PM_PI;
    return sqrt(-2 * pm_log(u)) * pm_cos(angle);
}

/* What gets stronger with the level does so away from where it changes nothing. */
static double increasing(enum picture_op op, double level, double value, struct rng *r)
{
    switch (op) {
    case PICTURE_POSTERIZE:
        return 4 - value;
    case PICTURE_SOLARIZE:
        return 256 - value;
    case PICTURE_COLOR:
    case PICTURE_CONTRAST:
    case PICTURE_BRIGHTNESS:
    case PICTURE_SHARPNESS:
        return fmax(0.1, 1 + level / 10 * 0.9 * sign(r));
    default:
        return value;
    }
}

static struct drawn draw_timm(const struct policy *p, int size, struct rng *r)
{
    const enum picture_op op = ops_of_10[rng_below(r, OPS_OF_10)];
    const bool happens = rng_unit(r) < 0.5;
    double level = p->magnitude + (p->mstd > 0 ? p->mstd * normal(r) : 0);
    level = level < 0 ? 0 : level > 10 ? 10 : level;
    const double value = of_10(op, level, 0.45 * size, r);
    const bool bicubic = rng_below(r, 2) && !p->bilinear;
    return happens
               ? (struct drawn){.op = op, .value = p->inc ? increasing(op, level, value, r) : value, .bicubic = bicubic}
               : (struct drawn){.op = PICTURE_IDENTITY};
}

enum { CUT_OUT = 40, MOVES = 100 }; /* pixels of big_vision's at magnitude 10 */

static struct drawn draw_big_vision(const struct policy *p, int size, struct rng *r)
{
    const int i = (int)rng_below(r, OPS_OF_10 + 1);
    if (i == OPS_OF_10)
        return (struct drawn){.cut_out = true,
                              .y = (int)rng_below(r, (uint64_t)size),
                              .x = (int)rng_below(r, (uint64_t)size),
                              .half = (int)(p->magnitude / 10 * CUT_OUT)};
    const enum picture_op op = ops_of_10[i];
    return (struct drawn){.op = op == PICTURE_CONTRAST ? PICTURE_CONTRAST_AREA : op,
                          .value = of_10(op, p->magnitude, MOVES, r)};
}

static struct drawn draw_three(struct rng *r)
{
    const uint64_t i = rng_below(r, 3);
    return i == 0   ? (struct drawn){.op = PICTURE_GREY}
           : i == 1 ? (struct drawn){.op = PICTURE_SOLARIZE, .value = 128}
                    : (struct drawn){.op = PICTURE_BLUR, .value = rng_range(r, 0.1, 2)};
}

static struct drawn draw_one(const struct policy *p, int size, struct rng *r)
{
    return p->kind == POLICY_TRIVIAL           ? draw_torch(true, -1, size, r)
           : p->kind == POLICY_RAND            ? draw_torch(false, (int)p->magnitude, size, r)
           : p->kind == POLICY_RAND_TIMM       ? draw_timm(p, size, r)
           : p->kind == POLICY_RAND_BIG_VISION ? draw_big_vision(p, size, r)
                                               : draw_three(r);
}

/* In an order of its own. */
static int draw_jitter(const struct jitter *j, struct rng *r, struct drawn *out)
{
    static const enum picture_op ops[] = {PICTURE_BRIGHTNESS, PICTURE_CONTRAST, PICTURE_COLOR};
    int order[3] = {0, 1, 2}, n = 0;
    for (int i = 2; i > 0; i--) {
        const int k = (int)rng_below(r, (uint64_t)i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    for (int i = 0; i < 3; i++) {
        const double by = j->by[order[i]], least = by < 1 ? 1 - by : 0;
        if (by > 0)
            out[n++] = (struct drawn){.op = ops[order[i]], .value = rng_range(r, least, 1 + by)};
    }
    return n;
}

int policy_draw(const struct policy *p, const struct jitter *j, int size, struct rng *r,
                struct drawn out[POLICY_DRAWN_MOST])
{
    int n = 0;
    for (; p->kind != POLICY_NONE && n < p->ops; n++)
        out[n] = draw_one(p, size, r);
    return n + draw_jitter(j, r, out + n);
}

void policy_apply(const struct policy *p, const struct drawn *d, int n, struct image *im, uint8_t *spare)
{
    struct picture_how how = {.between = PICTURE_NEAREST};
    static const uint8_t grey[] = {128, 128, 128}, mean[] = {124, 116, 104};
    if (p->bilinear || p->kind == POLICY_RAND_TIMM)
        how.between = PICTURE_BILINEAR;
    if (p->kind == POLICY_RAND_TIMM || p->kind == POLICY_RAND_BIG_VISION)
        memcpy(how.fill, p->kind == POLICY_RAND_TIMM ? mean : grey, sizeof how.fill);
    for (int i = 0; i < n; i++)
        if (d[i].cut_out)
            picture_cut_out(im, d[i].x, d[i].y, d[i].half, how.fill);
        else {
            const struct picture_how cubic = {PICTURE_BICUBIC, {how.fill[0], how.fill[1], how.fill[2]}};
            picture_op(im, d[i].op, d[i].value, d[i].bicubic ? &cubic : &how, spare);
        }
}

bool erase_draw(double share, int size, struct rng *r, int16_t box[4])
{
    const double area = (double)size * size, log_min = pm_log(0.3), log_max = pm_log(3.3);
    if (!(rng_unit(r) < share))
        return false;
    for (int attempt = 0; attempt < 10; attempt++) {
        const double part = area * rng_range(r, 0.02, 0.33), aspect = pm_exp(rng_range(r, log_min, log_max));
        const int h = (int)rint(sqrt(part * aspect)), w = (int)rint(sqrt(part / aspect));
        if (h >= size || w >= size)
            continue;
        const int y = (int)rng_below(r, (uint64_t)(size - h + 1)), x = (int)rng_below(r, (uint64_t)(size - w + 1));
        box[0] = (int16_t)x;
        box[1] = (int16_t)y;
        box[2] = (int16_t)(x + w);
        box[3] = (int16_t)(y + h);
        return true;
    }
    return false;
}
