/* Computes the arithmetic of a model's text. */
#include "worker/model/net_number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

enum { DEPTH_MAX = 32, DIGITS_MAX = 40 };

struct at {
    const char *p, *end, *text;
    const struct net_names *names;
    int depth;
    struct err *e;
};

static int sum(struct at *a, double *ret);

static void pass_blanks(struct at *a)
{
    while (a->p < a->end && (*a->p == ' ' || *a->p == '\t'))
        a->p++;
}

static bool take(struct at *a, char c)
{
    pass_blanks(a);
    if (a->p >= a->end || *a->p != c)
        return false;
    a->p++;
    return true;
}

static int wrong(const struct at *a)
{
    const int n = (int)(a->end - a->text);
    return err_set(a->e, -EINVAL, "'%.*s' is no number: it goes wrong at '%.*s'", n > 60 ? 60 : n, a->text,
                   a->end - a->p > 20 ? 20 : (int)(a->end - a->p), a->p);
}

static bool is_name_part(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static int digits(struct at *a, double *ret)
{
    char text[DIGITS_MAX + 1], *end;
    size_t n = 0;
    while (a->p + n < a->end && n < DIGITS_MAX &&
           (isdigit((unsigned char)a->p[n]) || a->p[n] == '.' || a->p[n] == 'e' ||
            ((a->p[n] == '-' || a->p[n] == '+') && n > 0 && a->p[n - 1] == 'e')))
        n++;
    memcpy(text, a->p, n);
    text[n] = '\0';
    *ret = strtod(text, &end);
    if (end != text + n || n == 0)
        return wrong(a);
    a->p += n;
    return 0;
}

/* sqrt(...), or a name. */
static int word(struct at *a, double *ret)
{
    const char *name = a->p;
    while (a->p < a->end && is_name_part(*a->p))
        a->p++;
    const size_t n = (size_t)(a->p - name);
    if (n == 4 && memcmp(name, "sqrt", 4) == 0) {
        if (!take(a, '('))
            return wrong(a);
        TRY(sum(a, ret));
        *ret = sqrt(*ret);
        return take(a, ')') ? 0 : wrong(a);
    }
    if (a->names)
        return a->names->value(a->names->ctx, name, n, ret, a->e);
    a->p = name;
    return wrong(a);
}

static int factor(struct at *a, double *ret)
{
    pass_blanks(a);
    if (a->p >= a->end || ++a->depth > DEPTH_MAX)
        return wrong(a);
    int rc;
    if (take(a, '-')) {
        rc = factor(a, ret);
        *ret = -*ret;
    } else if (take(a, '(')) {
        rc = sum(a, ret);
        if (rc == 0 && !take(a, ')'))
            rc = wrong(a);
    } else {
        rc = isalpha((unsigned char)*a->p) || *a->p == '_' ? word(a, ret) : digits(a, ret);
    }
    a->depth--;
    return rc;
}

static int product(struct at *a, double *ret)
{
    double by;
    TRY(factor(a, ret));
    for (;;) {
        if (take(a, '*')) {
            TRY(factor(a, &by));
            *ret *= by;
        } else if (take(a, '/')) {
            TRY(factor(a, &by));
            *ret /= by;
        } else {
            return 0;
        }
    }
}

static int sum(struct at *a, double *ret)
{
    double more;
    TRY(product(a, ret));
    for (;;) {
        if (take(a, '+')) {
            TRY(product(a, &more));
            *ret += more;
        } else if (take(a, '-')) {
            TRY(product(a, &more));
            *ret -= more;
        } else {
            return 0;
        }
    }
}

int net_number(const char *text, size_t n, const struct net_names *names, double *ret, struct err *e)
{
    struct at a = {.p = text, .end = text + n, .text = text, .names = names, .e = e};
    double v = 0;
    TRY(sum(&a, &v));
    pass_blanks(&a);
    if (a.p != a.end)
        return wrong(&a);
    if (!isfinite(v))
        return err_set(e, -EINVAL, "'%.*s' is no finite number", n > 60 ? 60 : (int)n, text);
    *ret = v;
    return 0;
}
