/* Writes and parses records of fields "key=value" by a table (rdzv_record.h). */
#include "common/rdzv/wire/rdzv_record.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "common/rdzv/wire/rdzv_wire.h"

/* --- writing */

static bool plain(unsigned char c)
{
    return c >= 0x21 && c <= 0x7e && c != '%' && c != '=';
}

static int add_value(struct buf *out, const char *value)
{
    static const char hex[] = "0123456789ABCDEF";
    for (const unsigned char *p = (const unsigned char *)value; *p;) {
        size_t run = 0;
        while (p[run] && plain(p[run]))
            run++;
        TRY(buf_add(out, p, run));
        p += run;
        if (*p) {
            const char escaped[3] = {'%', hex[*p >> 4], hex[*p & 15]};
            TRY(buf_add(out, escaped, 3));
            p++;
        }
    }
    return 0;
}

int rdzv_field_text(struct buf *out, const char *key, const char *value)
{
    size_t before = out->len;
    bool first = before == 0 || out->data[before - 1] == '\n';
    int rc = first ? 0 : buf_add(out, " ", 1);
    if (rc == 0)
        rc = buf_addstr(out, key);
    if (rc == 0)
        rc = buf_add(out, "=", 1);
    if (rc == 0)
        rc = add_value(out, value);
    if (rc < 0 && out->len > before) { /* write a field whole or not at all */
        out->len = before;
        out->data[before] = 0;
    }
    return rc;
}

int rdzv_field_int(struct buf *out, const char *key, long long value)
{
    char text[DIGITS_MAX + 1];
    *digits_write(text, value) = 0;
    return rdzv_field_text(out, key, text);
}

static long long load(const struct rdzv_field *f, const void *base)
{
    const char *p = (const char *)base + f->offset;
    int32_t v32;
    int64_t v64;
    switch (f->size) {
    case 1:
        return *(const unsigned char *)p;
    case 4:
        memcpy(&v32, p, sizeof v32);
        return v32;
    default:
        memcpy(&v64, p, sizeof v64);
        return v64;
    }
}

static void save(const struct rdzv_field *f, void *base, long long v)
{
    char *p = (char *)base + f->offset;
    int32_t v32 = (int32_t)v;
    int64_t v64 = v;
    switch (f->size) {
    case 1:
        *(bool *)p = v != 0;
        break;
    case 4:
        memcpy(p, &v32, sizeof v32);
        break;
    default:
        memcpy(p, &v64, sizeof v64);
    }
}

int rdzv_record_write(struct buf *out, const struct rdzv_field *fields, size_t count, unsigned kind, const void *base)
{
    for (const struct rdzv_field *f = fields; f < fields + count; f++) {
        if (!(f->only & kind))
            continue;
        const char *text = (const char *)base + f->offset;
        if (f->type == RDZV_FIELD_TEXT) {
            if (*text)
                TRY(rdzv_field_text(out, f->key, text));
            continue;
        }
        long long v = load(f, base);
        if (v == f->otherwise)
            continue;
        if (f->type == RDZV_FIELD_NAME)
            TRY(rdzv_field_text(out, f->key, f->name((int)v)));
        else
            TRY(rdzv_field_int(out, f->key, v));
    }
    return 0;
}

/* --- reading */

/* Copy the value at p[0..n) without escapes into ret[cap]; ret NULL: only check it. 0, -E2BIG, or -EINVAL with *why. */
static int unescape(const char *p, size_t n, char *ret, size_t cap, const char **why)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)p[i];
        if (c == '%') {
            c = hex_byte(p + i + 1, n - i - 1);
            i += 2;
            *why = "a '%' is followed by two hex digits, not 00";
        } else if (!plain((unsigned char)c)) {
            *why = "spaces, '=' and bytes outside printable ASCII are written %XX";
            return -EINVAL;
        }
        if (c <= 0)
            return -EINVAL;
        if (len + 1 >= cap) {
            *why = "it is too long";
            return -E2BIG;
        }
        if (ret)
            ret[len] = (char)c;
        len++;
    }
    if (ret)
        ret[len] = 0;
    return 0;
}

struct token {
    const char *key, *value;
    size_t key_len, value_len;
};

/* Find the next field of p[*at..n). 1: found; 0: end; -EINVAL. */
static int next_token(const char *p, size_t n, size_t *at, struct token *ret)
{
    if (n == 0 || *at == n + 1)
        return 0;
    const char *end = memchr(p + *at, ' ', n - *at);
    size_t len = end ? (size_t)(end - (p + *at)) : n - *at;
    const char *eq = memchr(p + *at, '=', len);
    if (!eq || eq == p + *at)
        return -EINVAL;
    *ret = (struct token){.key = p + *at,
                          .key_len = (size_t)(eq - (p + *at)),
                          .value = eq + 1,
                          .value_len = len - (size_t)(eq - (p + *at)) - 1};
    *at += len + 1;
    return 1;
}

/* A printable, cut copy of bytes that a stranger sent. */
static const char *shown(const char *p, size_t n, char ret[static 41])
{
    size_t len = n < 40 ? n : 40;
    for (size_t i = 0; i < len; i++)
        ret[i] = p[i] >= 0x20 && p[i] <= 0x7e ? p[i] : '?';
    ret[len] = 0;
    return ret;
}

int rdzv_record_each(const char *p, size_t n, int (*take)(void *arg, const char *key, const char *value, struct err *e),
                     void *arg, struct err *e)
{
    size_t at = 0;
    struct token t;
    int rc;
    while ((rc = next_token(p, n, &at, &t)) > 0) {
        char key[RDZV_KEY_MAX + 1], value[RDZV_VALUE_MAX + 1], text[41];
        const char *why = NULL;
        if (t.key_len > RDZV_KEY_MAX)
            continue; /* not one of ours */
        memcpy(key, t.key, t.key_len);
        key[t.key_len] = 0;
        int bad = unescape(t.value, t.value_len, value, sizeof value, &why);
        if (bad == -EINVAL)
            return err_set(e, -EINVAL, "field %s=%s: %s", key, shown(t.value, t.value_len, text), why);
        TRY(take(arg, key, bad ? NULL : value, e));
    }
    char text[41];
    if (rc < 0)
        return err_set(e, rc, "'%s' at byte %zu: expected fields key=value with single spaces between",
                       shown(p + at, n - at, text), at);
    return 0;
}

int rdzv_field_find(const char *p, size_t n, const char *key, char *ret, size_t cap)
{
    size_t at = 0, len = strlen(key);
    struct token t, found = {0};
    const char *why;
    int rc;
    while ((rc = next_token(p, n, &at, &t)) > 0) {
        if (t.key_len != len || memcmp(t.key, key, len) != 0)
            continue;
        if (found.key)
            return -EINVAL;
        found = t;
    }
    if (rc < 0 || !found.key)
        return rc;
    if (unescape(found.value, found.value_len, NULL, cap, &why) < 0) /* ret stays untouched on failure */
        return -EINVAL;
    unescape(found.value, found.value_len, ret, cap, &why);
    return 1;
}

int rdzv_record_number(const char *text, long long *ret)
{
    const char *p = text + (*text == '-');
    long long v = 0;
    if (!*p)
        return -EINVAL;
    for (; *p; p++)
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, *p - '0', &v))
            return -EINVAL;
    if (*text != '-' && v == LLONG_MIN)
        return -EINVAL;
    *ret = *text == '-' ? v : -v;
    return 0;
}

long long rdzv_field_number(const char *p, size_t n, const char *key, long long otherwise)
{
    char text[24];
    long long v;
    return rdzv_field_find(p, n, key, text, sizeof text) == 1 && rdzv_record_number(text, &v) == 0 ? v : otherwise;
}

struct reading {
    const struct rdzv_field *fields;
    size_t count;
    void *base;
    uint64_t seen; /* a bit for each field */
};

static int take_name(const struct rdzv_field *f, void *base, const char *value, struct err *e)
{
    for (long long v = f->min; v <= f->max; v++)
        if (strcmp(f->name((int)v), value) == 0) {
            save(f, base, v);
            return 0;
        }
    return err_set(e, -EINVAL, "%s=%.40s: expected a word from '%s' to '%s'", f->key, value, f->name((int)f->min),
                   f->name((int)f->max));
}

static int take_field(void *arg, const char *key, const char *value, struct err *e)
{
    struct reading *r = arg;
    const struct rdzv_field *f = r->fields, *end = r->fields + r->count;
    const size_t len = strlen(key);
    while (f < end && (f->key_len != len || memcmp(f->key, key, len) != 0))
        f++;
    if (f == end)
        return 0;
    if (!value)
        return err_set(e, -EINVAL, "field '%s' has more than %d bytes", key, RDZV_VALUE_MAX);
    uint64_t bit = (uint64_t)1 << (f - r->fields);
    if (r->seen & bit)
        return err_set(e, -EINVAL, "field '%s' stands twice", key);
    r->seen |= bit;
    if (f->type == RDZV_FIELD_NAME)
        return take_name(f, r->base, value, e);
    if (f->type == RDZV_FIELD_TEXT) {
        if (strlen(value) >= f->size)
            return err_set(e, -EINVAL, "%s=%.40s...: expected at most %zu bytes", key, value, f->size - 1);
        memcpy((char *)r->base + f->offset, value, strlen(value) + 1);
        return 0;
    }
    long long v;
    if (rdzv_record_number(value, &v) < 0 || v < f->min || v > f->max)
        return err_set(e, -EINVAL, "%s=%.40s: expected a number from %lld to %lld", key, value, f->min, f->max);
    save(f, r->base, v);
    return 0;
}

int rdzv_record_read(const char *p, size_t n, const struct rdzv_field *fields, size_t count, void *base, struct err *e)
{
    struct reading r = {.fields = fields, .count = count, .base = base};
    for (const struct rdzv_field *f = fields; f < fields + count; f++)
        if (f->type == RDZV_FIELD_TEXT)
            memset((char *)base + f->offset, 0, f->size);
        else if (f->otherwise != LLONG_MIN)
            save(f, base, f->otherwise);
    return rdzv_record_each(p, n, take_field, &r, e);
}
