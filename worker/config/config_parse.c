/* Parses and prints options that are no plain number or word: ranges, windows, sizes, milestones. */
#include "worker/config/config_parse.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "worker/config/config.h"

#define THREADS_MAX 4096

int config_parse_range(const char *text, void *field, struct err *e)
{
    struct range *r = field;
    char first[64];
    const char *comma = strchr(text, ',');
    if (!comma || (size_t)(comma - text) >= sizeof first)
        return err_set(e, ERR_USAGE, "expected MIN,MAX");
    snprintf(first, sizeof first, "%.*s", (int)(comma - text), text);
    TRY(parse_f64(first, "MIN", 1e-6, 1, &r->min, e));
    TRY(parse_f64(comma + 1, "MAX", 1e-6, 1, &r->max, e));
    if (r->min > r->max)
        return err_set(e, ERR_USAGE, "MIN %g is above MAX %g", r->min, r->max);
    return 0;
}

int config_parse_window(const char *text, void *field, struct err *e)
{
    struct window *w = field;
    char first[64];
    const char *comma = strchr(text, ',');
    if (!comma || (size_t)(comma - text) >= sizeof first)
        return err_set(e, ERR_USAGE, "expected FIRST,COUNT");
    snprintf(first, sizeof first, "%.*s", (int)(comma - text), text);
    TRY(parse_i64(first, "FIRST", 1, INT64_MAX / 2, &w->first, e));
    return parse_i64(comma + 1, "COUNT", 1, INT64_MAX / 2, &w->count, e);
}

static const char *const drills[] = {DRILLS(CHOICE_NAME)};

int config_parse_drill(const char *text, void *field, struct err *e)
{
    struct drill *d = field;
    char step[32];
    const char *at = strchr(text, '@'), *colon = at ? strchr(at, ':') : NULL;
    d->what = DRILL_NONE; /* an earlier option may have set it */
    for (int i = DRILL_WEIGHTS; at && i <= DRILL_NAN; i++)
        if (strlen(drills[i]) == (size_t)(at - text) && strncmp(drills[i], text, (size_t)(at - text)) == 0)
            d->what = (enum drill_what)i;
    if (!colon || d->what == DRILL_NONE || (size_t)(colon - at) > sizeof step)
        return err_set(e, ERR_USAGE, "expected WHAT@STEP:RANK, WHAT one of weights, moments, sums and nan");
    snprintf(step, sizeof step, "%.*s", (int)(colon - at - 1), at + 1);
    TRY(parse_i64(step, "STEP", 1, INT64_MAX / 2, &d->step, e));
    return parse_i64(colon + 1, "RANK", 0, INT32_MAX, &d->rank, e);
}

int config_parse_milestones(const char *text, void *field, struct err *e)
{
    struct milestones *m = field;
    char one[32];
    m->n = 0;
    for (const char *at = text, *end; at; at = end ? end + 1 : NULL) {
        end = strchr(at, ',');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (m->n == MILESTONES_MAX)
            return err_set(e, ERR_USAGE, "expected at most %d epochs", MILESTONES_MAX);
        snprintf(one, sizeof one, "%.*s", n < sizeof one ? (int)n : (int)sizeof one - 1, at);
        TRY(parse_f64(one, "epoch", 0, 1e6, &m->epoch[m->n], e));
        if (m->n > 0 && m->epoch[m->n] <= m->epoch[m->n - 1])
            return err_set(e, ERR_USAGE, "expected epochs that rise, got %g after %g", m->epoch[m->n],
                           m->epoch[m->n - 1]);
        m->n++;
    }
    return 0;
}

int config_parse_threads(const char *text, void *field, struct err *e)
{
    char first[32]; /* of OpenMP's list, whose further levels nobody here has */
    const int n = (int)strcspn(text, ",");
    snprintf(first, sizeof first, "%.*s", n, text);
    return parse_i64(first, "threads", 0, THREADS_MAX, field, e);
}

static const char units[] = "KMGT"; /* each 1024 of the one before */

int config_parse_size(const char *text, void *field, struct err *e)
{
    char number[32];
    const size_t n = strlen(text);
    const char *unit = n > 1 ? strchr(units, text[n - 1]) : NULL;
    double scale = 1, value;
    for (const char *u = units; unit && u <= unit; u++)
        scale *= 1024;
    snprintf(number, sizeof number, "%.*s", (int)(n - (unit ? 1 : 0)), text);
    if (n >= sizeof number || parse_f64(number, "size", 0, 1e15, &value, NULL) < 0 || value * scale > 1e18)
        return err_set(e, ERR_USAGE, "expected a size such as 1.5G: 1024-fold K, M, G, T, or bytes");
    *(int64_t *)field = (int64_t)(value * scale);
    return 0;
}

/* What is no share is most likely meant for pixels of 0 to 255. */
static int no_share(const char *text, double v, double min, double most, struct err *e)
{
    const double share = v / 255;
    if (share < min || share > most)
        return err_set(e, ERR_USAGE, "expected shares of 255, %g to %g, got %s", min, most, text);
    return err_set(e, ERR_USAGE, "expected shares of 255, %g to %g: %s of 255 is %.3f", min, most, text, share);
}

static int parse_channels(const char *text, double min, double most, void *field, struct err *e)
{
    struct channels *c = field;
    char one[32];
    c->n = 0;
    for (const char *at = text, *end; at; at = end ? end + 1 : NULL) {
        end = strchr(at, ',');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (c->n == 3)
            return err_set(e, ERR_USAGE, "expected at most 3 channels");
        snprintf(one, sizeof one, "%.*s", n < sizeof one ? (int)n : (int)sizeof one - 1, at);
        TRY(parse_f64(one, "value", -DBL_MAX, DBL_MAX, &c->v[c->n], e));
        if (c->v[c->n] < min || c->v[c->n] > most)
            return no_share(one, c->v[c->n], min, most, e);
        c->n++;
    }
    return 0;
}

int config_parse_mean(const char *text, void *field, struct err *e)
{
    return parse_channels(text, -2, 2, field, e);
}

int config_parse_std(const char *text, void *field, struct err *e)
{
    return parse_channels(text, 1e-6, 10, field, e);
}

/* A,B,... */
static void print_list(const double *v, int n, char *out, size_t cap)
{
    char one[ARG_REAL_MAX];
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < n && at < cap; i++) {
        args_real_text(v[i], one);
        at += (size_t)snprintf(out + at, cap - at, "%s%s", i ? "," : "", one);
    }
}

void config_print_range(const void *field, char *out, size_t cap)
{
    const struct range *r = field;
    print_list((const double[]){r->min, r->max}, 2, out, cap);
}

void config_print_milestones(const void *field, char *out, size_t cap)
{
    const struct milestones *m = field;
    print_list(m->epoch, m->n, out, cap);
}

void config_print_channels(const void *field, char *out, size_t cap)
{
    const struct channels *c = field;
    print_list(c->v, c->n, out, cap);
}

static const char *const shuffles[] = {SHUFFLES(CHOICE_NAME)};

int config_parse_shuffle(const char *text, void *field, struct err *e)
{
    struct shuffle *s = field;
    int64_t n;
    for (int i = 0; i < SHUFFLE_SHARDS; i++)
        if (strcmp(text, shuffles[i]) == 0) {
            *s = (struct shuffle){.how = i};
            return 0;
        }
    if (strncmp(text, "shards:", 7) != 0)
        return err_set(e, ERR_USAGE, "expected auto, on, off, balanced or shards:N, got '%s'", text);
    TRY(parse_i64(text + 7, "shards", 1, 1000000, &n, e));
    *s = (struct shuffle){.how = SHUFFLE_SHARDS, .shards = (int)n};
    return 0;
}

void config_print_shuffle(const void *field, char *out, size_t cap)
{
    const struct shuffle *s = field;
    if (s->how == SHUFFLE_SHARDS)
        snprintf(out, cap, "shards:%d", s->shards);
    else
        snprintf(out, cap, "%s", shuffles[s->how]);
}

void config_print_window(const void *field, char *out, size_t cap)
{
    const struct window *w = field;
    snprintf(out, cap, "%" PRId64 ",%" PRId64, w->first, w->count);
}

void config_print_drill(const void *field, char *out, size_t cap)
{
    const struct drill *d = field;
    out[0] = '\0';
    if (d->what != DRILL_NONE)
        snprintf(out, cap, "%s@%" PRId64 ":%" PRId64, drills[d->what], d->step, d->rank);
}

void config_print_threads(const void *field, char *out, size_t cap)
{
    snprintf(out, cap, "%" PRId64, *(const int64_t *)field);
}

void config_print_size(const void *field, char *out, size_t cap)
{
    int64_t n = *(const int64_t *)field;
    int unit = 0;
    for (; n > 0 && n % 1024 == 0 && units[unit]; unit++)
        n /= 1024;
    snprintf(out, cap, "%" PRId64 "%.1s", n, unit ? &units[unit - 1] : "");
}
