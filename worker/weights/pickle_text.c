/* What a pickle writes as text, protocols 0 and 1, and how its values are called in messages. */
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/utf8.h"
#include "worker/weights/pickle_impl.h"

static const char *const kind_names[] = {
#define X(name, text) [name] = text,
    VALUE_KINDS(X)
#undef X
};

/* Appends n bytes of s, at most 60. */
static void put_text(char out[VALUE_TEXT], const char *s, size_t n)
{
    size_t at = strlen(out);
    for (size_t i = 0; i < n && i < 60 && at + 1 < VALUE_TEXT; i++)
        out[at++] = printable_byte(s[i]);
    out[at] = '\0';
}

char *value_name(const struct value *v, char out[VALUE_TEXT])
{
    out[0] = '\0';
    put_text(out, v->str.s, v->str.n);
    return out;
}

char *value_text(const struct value *v, char out[VALUE_TEXT])
{
    if (v->kind == V_OTHER && v->other.module) {
        strcpy(out, "what ");
        put_text(out, v->other.module, v->other.nm);
        put_text(out, ".", 1);
        put_text(out, v->other.name, v->other.nn);
        strcat(out, " makes");
    } else if (v->kind == V_OTHER) {
        snprintf(out, VALUE_TEXT, "%s", v->other.name);
    } else if (v->kind == V_TENSOR) {
        const struct global_info *g = &globals[v->tensor.storage->storage.type];
        snprintf(out, VALUE_TEXT, "a tensor of %s.%s", g->module, g->name);
    } else {
        snprintf(out, VALUE_TEXT, "%s", kind_names[v->kind]);
    }
    return out;
}

/* --- lines of decimal digits and strings */

/* A decimal number of less than 2^63; false: it is none. */
static bool parse_number(const char *s, size_t n, int64_t *ret)
{
    const bool minus = n > 0 && *s == '-';
    *ret = 0;
    for (size_t i = minus; i < n; i++)
        if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(*ret, 10, ret) ||
            __builtin_add_overflow(*ret, s[i] - '0', ret))
            return false;
    *ret = minus ? -*ret : *ret;
    return n > minus;
}

/* INT, LONG: "12", "12L", "01" for True. */
int machine_text_integer(struct machine *m, struct err *e)
{
    const char *s = "";
    size_t n = 0;
    int64_t i;
    TRY(machine_take_line(m, &s, &n, e));
    n -= n > 0 && s[n - 1] == 'L';
    if (n == 2 && s[0] == '0' && (s[1] == '0' || s[1] == '1'))
        return machine_push_new(m, V_BOOL, s[1] == '1', e);
    return parse_number(s, n, &i) ? machine_push_new(m, V_INT, i, e)
                                  : machine_push_plain(m, "an int of more than 64 bits", e);
}

int machine_text_float(struct machine *m, struct err *e)
{
    const char *s;
    size_t n;
    TRY(machine_take_line(m, &s, &n, e));
    return machine_push_new(m, V_FLOAT, 0, e);
}

/* STRING, UNICODE; what is written with backslashes is no name of ours. */
int machine_text_string(struct machine *m, bool quoted, struct err *e)
{
    const char *s = "";
    size_t n = 0;
    struct value *v;
    TRY(machine_take_line(m, &s, &n, e));
    if (n > 0 && memchr(s, '\\', n))
        return machine_push_plain(m, "a string with escapes", e);
    if (quoted && n < 2)
        return machine_bad(e, "a string has no quotes");
    TRY(machine_make(m, V_STR, &v, e));
    v->str.s = s + quoted;
    v->str.n = n - 2 * (size_t)quoted;
    return machine_push(m, v, e);
}

static int text_memo(struct machine *m, uint64_t *ret, struct err *e)
{
    const char *s = "";
    size_t n = 0;
    int64_t at;
    TRY(machine_take_line(m, &s, &n, e));
    if (!parse_number(s, n, &at) || at < 0)
        return machine_bad(e, "it remembers something by what is no number");
    *ret = (uint64_t)at;
    return 0;
}

int machine_put_memo_line(struct machine *m, struct err *e)
{
    uint64_t at = 0;
    TRY(text_memo(m, &at, e));
    return machine_put_memo(m, at, e);
}

int machine_get_memo_line(struct machine *m, struct err *e)
{
    uint64_t at = 0;
    TRY(text_memo(m, &at, e));
    return machine_get_memo(m, at, e);
}
