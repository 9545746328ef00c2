/* A line of a model's text: its words, and values put into them. */
#include "worker/model/net_reader.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/model/net_number.h"

int net_fail(const struct reader *r, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->e, -EINVAL, "%s, line %d: %s", r->what, r->line + 1, text);
}

int net_fail_at(const struct reader *r)
{
    return err_wrap(r->e, "%s, line %d", r->what, r->line + 1);
}

/* --- words of a line */

bool net_is(struct token t, const char *word)
{
    return strlen(word) == (size_t)t.n && memcmp(t.at, word, (size_t)t.n) == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static int one_token(const struct reader *r, struct token line, int *at, struct token *ret)
{
    const int first = *at;
    int braces = 0, i = first;
    for (; i < line.n && line.at[i] != '#' && (braces || !is_blank(line.at[i])); i++) {
        const unsigned char c = (unsigned char)line.at[i];
        if (c != '\t' && (c < ' ' || c > '~'))
            return net_fail(r, "byte 0x%02x is no printable character of ASCII", c);
        braces += (c == '{') - (c == '}');
        if (braces < 0 || braces > 1)
            break;
    }
    if (braces)
        return net_fail(r, "'%.*s': braces do not match", i - first > 40 ? 40 : i - first, line.at + first);
    *ret = (struct token){line.at + first, i - first};
    *at = i;
    return 0;
}

int net_split(const struct reader *r, struct token t[TOKENS_MAX], int *ret)
{
    const struct token line = r->lines[r->line].text;
    int n = 0;
    for (int i = 0; i < line.n && line.at[i] != '#';) {
        if (is_blank(line.at[i])) {
            i++;
            continue;
        }
        if (n == TOKENS_MAX)
            return net_fail(r, "more than %d words", TOKENS_MAX);
        TRY(one_token(r, line, &i, &t[n++]));
    }
    *ret = n;
    return 0;
}

bool net_is_word(const char *s, int n)
{
    bool ok = n > 0 && n <= WORD_MAX && (isalpha((unsigned char)s[0]) || s[0] == '_');
    for (int i = 0; ok && i < n; i++)
        ok = isalnum((unsigned char)s[i]) || s[i] == '_';
    return ok;
}

bool net_is_name(const char *s)
{
    bool ok = *s && *s != '.';
    for (; ok && *s; s++)
        ok = isalnum((unsigned char)*s) || *s == '_' || *s == '-' || (*s == '.' && s[1] && s[1] != '.');
    return ok;
}

/* --- values */

static const struct value *find_among(const struct value *v, int n_values, const char *name, size_t n)
{
    for (int i = n_values - 1; i >= 0; i--)
        if (strlen(v[i].name) == n && memcmp(v[i].name, name, n) == 0)
            return &v[i];
    return NULL;
}

/* Of the block that is gone through, else of the whole text. */
static const struct value *find_value(const struct reader *r, const char *name, size_t n)
{
    const struct value *own = find_among(r->values + r->base, r->nvalues - r->base, name, n);
    return own || r->base == 0 ? own : find_among(r->values, r->nglobal, name, n);
}

static int value_of(void *ctx, const char *name, size_t n, double *ret, struct err *e)
{
    const struct reader *r = ctx;
    const struct value *v = find_value(r, name, n);
    const int shown = n > 40 ? 40 : (int)n;
    if (!v)
        return err_set(e, -EINVAL, "there is no value '%.*s' here", shown, name);
    if (net_number(v->text, strlen(v->text), NULL, ret, NULL) < 0)
        return err_set(e, -EINVAL, "'%.*s' is '%.60s', no number to count with", shown, name, v->text);
    return 0;
}

/* What stands between braces, as text. */
static int put_in(struct reader *r, const char *at, int n, char out[VALUE_MAX + 1])
{
    const struct net_names names = {value_of, r};
    const struct value *v = find_value(r, at, (size_t)n);
    double x;
    if (v) {
        snprintf(out, VALUE_MAX + 1, "%s", v->text);
        return 0;
    }
    if (net_number(at, (size_t)n, &names, &x, r->e) < 0)
        return net_fail_at(r);
    snprintf(out, VALUE_MAX + 1, fabs(x) < 1e15 && x == floor(x) ? "%.0f" : "%.17g", x + 0.0); /* no "-0" */
    return 0;
}

int net_expand(struct reader *r, struct token t, char out[VALUE_MAX + 1])
{
    char inner[VALUE_MAX + 1];
    size_t used = 0;
    for (int i = 0; i < t.n; i++) {
        int n = 1;
        const char *piece = t.at + i;
        if (*piece == '{') {
            const char *end = memchr(piece, '}', (size_t)(t.n - i)), *first = piece + 1, *last = end;
            while (first < last && is_blank(*first))
                first++;
            while (last > first && is_blank(last[-1]))
                last--;
            TRY(put_in(r, first, (int)(last - first), inner));
            i += (int)(end - piece);
            piece = inner;
            n = (int)strlen(inner);
        }
        if (used + (size_t)n > VALUE_MAX)
            return net_fail(r, "'%.40s...' is longer than %d bytes", t.at, VALUE_MAX);
        memcpy(out + used, piece, (size_t)n);
        used += (size_t)n;
    }
    out[used] = '\0';
    return 0;
}

int net_define(struct reader *r, const char *name, const char *text)
{
    for (int i = r->base; i < r->nvalues; i++)
        if (strcmp(r->values[i].name, name) == 0)
            return net_fail(r, "'%s' has a value already, %.60s", name, r->values[i].text);
    if (r->nvalues == VALUES_MAX)
        return net_fail(r, "more than %d values at a time", VALUES_MAX);
    struct value *v = &r->values[r->nvalues++];
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->text, sizeof v->text, "%s", text);
    return 0;
}

/* --- arguments */

static int one_pair(struct reader *r, struct arguments *a, struct token t, const char *equals)
{
    const int n = (int)(equals - t.at);
    struct value *p = &a->pairs[a->n];
    if (!net_is_word(t.at, n))
        return net_fail(r, "'%.*s' is no key: letters, digits and '_', at most %d", n > 40 ? 40 : n, t.at, WORD_MAX);
    snprintf(p->name, sizeof p->name, "%.*s", n, t.at);
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->pairs[i].name, p->name) == 0)
            return net_fail(r, "'%s' is given twice", p->name);
    TRY(net_expand(r, (struct token){equals + 1, t.n - n - 1}, p->text));
    if (!p->text[0])
        return net_fail(r, "'%s=' has no value", p->name);
    a->n++;
    return 0;
}

const char *net_equals(struct token t)
{
    const char *at = memchr(t.at, '=', (size_t)t.n), *brace = memchr(t.at, '{', (size_t)t.n);
    return at && (!brace || at < brace) ? at : NULL;
}

int net_read_arguments(struct reader *r, const struct token *t, int n, struct arguments *a)
{
    a->name[0] = '\0';
    a->n = 0;
    for (int i = 1; i < n; i++) {
        const char *equals = net_equals(t[i]);
        if (equals) {
            TRY(one_pair(r, a, t[i], equals));
            continue;
        }
        if (i > 1)
            return net_fail(r, "'%.*s': KEY=VALUE is expected behind the name", t[i].n > 40 ? 40 : t[i].n, t[i].at);
        TRY(net_expand(r, t[i], a->name));
        if (!net_is_name(a->name))
            return net_fail(r, "'%.60s' is no name: letters, digits, '_', '-', and '.' within", a->name);
    }
    return 0;
}

int net_read_whole(const struct reader *r, const struct arguments *a, const char *key, int otherwise, int max, int *ret)
{
    double v = otherwise;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->pairs[i].name, key) == 0 &&
            (net_number(a->pairs[i].text, strlen(a->pairs[i].text), NULL, &v, NULL) < 0 || v < 0 || v > max ||
             v != floor(v)))
            return net_fail(r, "%s=%.60s (expected a whole number from 0 to %d)", key, a->pairs[i].text, max);
    if (v < 0)
        return net_fail(r, "'%s=' is missing", key);
    *ret = (int)v;
    return 0;
}

int net_check_keys(const struct reader *r, const struct arguments *a, const char *one, const char *two)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->pairs[i].name, one) != 0 && strcmp(a->pairs[i].name, two) != 0)
            return net_fail(r, "unknown key '%s' (expected %s or %s)", a->pairs[i].name, one, two);
    return 0;
}
