/* Parses a value's text into a field of the config struct, by the type of its spec. */
#include "common/args/args_internal.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

int parse_i64(const char *text, const char *what, int64_t min, int64_t max, int64_t *ret, struct err *e)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)text[0]))
        return err_set(e, ERR_USAGE, "%s: '%s' is not a whole number", what, text);
    if (errno == ERANGE || v < min || v > max) {
        if (max == INT64_MAX && min > INT64_MIN)
            return err_set(e, ERR_USAGE, "%s: %s is too small, expected at least %lld", what, text, (long long)min);
        return err_set(e, ERR_USAGE, "%s: %s is out of range, expected %lld to %lld", what, text, (long long)min,
                       (long long)max);
    }
    *ret = v;
    return 0;
}

static int check_range(double v, const char *text, const char *what, double min, double max, struct err *e)
{
    if (v >= min && v <= max)
        return 0;
    if (isinf(max))
        return err_set(e, ERR_USAGE, "%s: %s is too small, expected at least %g", what, text, min);
    return err_set(e, ERR_USAGE, "%s: %s is out of range, expected %g to %g", what, text, min, max);
}

int parse_f64(const char *text, const char *what, double min, double max, double *ret, struct err *e)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)text[0]) || !isfinite(v))
        return err_set(e, ERR_USAGE, "%s: '%s' is not a finite number", what, text);
    TRY(check_range(v, text, what, min, max, e));
    *ret = v;
    return 0;
}

static double unit_seconds(const char *unit)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0)
            return units[i].seconds;
    return -1;
}

/* The text after a decimal number such as "30" or "1.5"; NULL: there is no such number. (strtod(3) would accept
 * hexadecimal and exponents, too.) */
static const char *end_of_decimal(const char *text)
{
    static const char digits[] = "0123456789";
    const size_t whole = strspn(text, digits), point = text[whole] == '.',
                 rest = point ? strspn(text + whole + 1, digits) : 0;
    return whole + rest > 0 ? text + whole + point + rest : NULL;
}

int parse_seconds(const char *text, const char *what, double *ret, struct err *e)
{
    const char *end = end_of_decimal(text);
    const double unit = end ? unit_seconds(end) : -1, v = unit < 0 ? 0 : strtod(text, NULL);
    if (unit < 0 || !isfinite(v * unit))
        return err_set(e, ERR_USAGE, "%s: '%s' is not a duration, expected seconds or a number with ms, s, m, h or d",
                       what, text);
    *ret = v * unit;
    return 0;
}

int parse_bytes(const char *text, int64_t min, int64_t *ret, struct err *e)
{
    static const char units[] = "KMGT";
    const size_t n = strlen(text);
    const char *unit = n > 1 ? strchr(units, text[n - 1]) : NULL;
    const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    char digits[32];
    int64_t v;
    snprintf(digits, sizeof digits, "%.*s", (int)(unit ? n - 1 : n), text);
    if (n >= sizeof digits || parse_i64(digits, "", 0, INT64_MAX >> shift, &v, NULL) < 0 || v << shift < min)
        return err_set(e, ERR_USAGE, "expected bytes such as 65536, 64M or 1G");
    *ret = v << shift;
    return 0;
}

size_t args_next_item(const char **cursor, char separator, const char **item)
{
    const char *p = *cursor;
    if (!p || !*p)
        return 0;
    const char *end = strchrnul(p, separator);
    *item = p;
    *cursor = *end ? end + 1 : end;
    return (size_t)(end - p);
}

const char *args_env_value(const struct arg_spec *s, char *ret_name, size_t cap)
{
    const char *cursor = s->env, *item;
    for (size_t n; (n = args_next_item(&cursor, ',', &item)) > 0;) {
        assert(n < cap);
        memcpy(ret_name, item, n);
        ret_name[n] = 0;
        const char *value = getenv(ret_name);
        if (value && *value)
            return value;
    }
    return NULL;
}

static bool has_range(const struct arg_spec *s)
{
    return s->min != 0 || s->max != 0;
}

char *args_range_text(const struct arg_spec *s, char *out, size_t cap)
{
    bool ranged = s->type == ARG_INT || s->type == ARG_REAL || s->type == ARG_SECONDS;
    if (!ranged || !has_range(s))
        snprintf(out, cap, "%s", "");
    else if (isinf(s->max) || s->max >= 9e18)
        snprintf(out, cap, "at least %.12g", s->min);
    else
        snprintf(out, cap, "%.12g to %.12g", s->min, s->max);
    return out;
}

static int set_flag(const char *what, const char *text, bool *field, struct err *e)
{
    static const char *const words[][2] = {{"off", "on"}, {"false", "true"}, {"0", "1"}, {"no", "yes"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int v = 0; v < 2; v++)
            if (strcasecmp(text, words[i][v]) == 0) {
                *field = v;
                return 0;
            }
    return err_set(e, ERR_USAGE, "%s: '%s' is neither on nor off (true, false, yes, no, 1, 0)", what, text);
}

static int set_choice(const struct arg_spec *s, const char *what, const char *text, int *field, struct err *e)
{
    const char *cursor = s->choices, *item;
    int index = 0;
    for (size_t n; (n = args_next_item(&cursor, '|', &item)) > 0; index++)
        if (strlen(text) == n && memcmp(text, item, n) == 0) {
            *field = index;
            return 0;
        }
    return err_set(e, ERR_USAGE, "%s: '%s' is not one of %s", what, text, s->choices);
}

static int set_int(const struct arg_spec *s, const char *what, const char *text, int64_t *field, struct err *e)
{
    int64_t min = INT64_MIN, max = INT64_MAX;
    if (has_range(s)) { /* 2^63 and beyond do not fit the cast */
        min = s->min <= -0x1p63 ? INT64_MIN : (int64_t)s->min;
        max = s->max >= 0x1p63 ? INT64_MAX : (int64_t)s->max;
    }
    return parse_i64(text, what, min, max, field, e);
}

static int set_custom(const struct arg_spec *s, const char *what, const char *text, void *field, struct err *e)
{
    struct err why = {0};
    if (s->parse(text, field, &why) == 0)
        return 0;
    return err_set(e, ERR_USAGE, "%s: '%s': %.400s", what, text, why.text);
}

const char *args_without_blanks(const char *text, char out[ARG_NUMBER_MAX])
{
    const char *first = text;
    while (isspace((unsigned char)*first))
        first++;
    size_t n = strlen(first);
    while (n > 0 && isspace((unsigned char)first[n - 1]))
        n--;
    if (n == strlen(text) || n == 0 || n >= ARG_NUMBER_MAX)
        return text;
    memcpy(out, first, n);
    out[n] = 0;
    return out;
}

int args_set_value(const struct arg_spec *s, const char *what, const char *text, void *config, struct err *e)
{
    void *field = args_field(s, config);
    char number[ARG_NUMBER_MAX];
    if (s->type == ARG_INT || s->type == ARG_REAL || s->type == ARG_SECONDS)
        text = args_without_blanks(text, number);
    switch (s->type) {
    case ARG_FLAG:
        return set_flag(what, text, field, e);
    case ARG_INT:
        return set_int(s, what, text, field, e);
    case ARG_REAL:
        return parse_f64(text, what, has_range(s) ? s->min : -HUGE_VAL, has_range(s) ? s->max : HUGE_VAL, field, e);
    case ARG_SECONDS: {
        double v;
        TRY(parse_seconds(text, what, &v, e));
        if (has_range(s))
            TRY(check_range(v, text, what, s->min, s->max, e));
        memcpy(field, &v, sizeof v);
        return 0;
    }
    case ARG_STRING:
        memcpy(field, &text, sizeof text);
        return 0;
    case ARG_CHOICE:
        return set_choice(s, what, text, field, e);
    case ARG_CUSTOM:
        return set_custom(s, what, text, field, e);
    case ARG_HEADING:
    case ARG_END_:
        break;
    }
    assert(!"a heading has no value");
    return -EINVAL;
}
