/* Writes JSON into a buffer (json_write.h). */
#include "common/json/json_write.h"
#include "common/base/buf.h"
#include "common/base/numbers.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_bytes(struct json_write *w, const char *p, size_t n)
{
    if (w->rc == 0)
        w->rc = buf_add(w->out, p, n);
}

static void put_quoted(struct json_write *w, const char *text)
{
    char escape[8];
    put_bytes(w, "\"", 1);
    for (const char *p = text;;) {
        const char *q = p;
        while ((unsigned char)*q >= 0x20 && *q != '"' && *q != '\\')
            q++;
        put_bytes(w, p, (size_t)(q - p));
        if (!*q)
            break;
        if (*q == '"' || *q == '\\')
            put_bytes(w, (const char[]){'\\', *q}, 2);
        else
            put_bytes(w, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*q));
        p = q + 1;
    }
    put_bytes(w, "\"", 1);
}

static void put_key(struct json_write *w, const char *key)
{
    if (w->comma)
        put_bytes(w, ",", 1);
    w->comma = true;
    if (!key)
        return;
    put_quoted(w, key);
    put_bytes(w, ":", 1);
}

void json_begin(struct json_write *w, const char *key, char bracket)
{
    put_key(w, key);
    put_bytes(w, &bracket, 1);
    w->comma = false;
}

void json_end(struct json_write *w, char end)
{
    put_bytes(w, &end, 1);
    w->comma = true;
}

void json_text(struct json_write *w, const char *key, const char *text)
{
    put_key(w, key);
    put_quoted(w, text);
}

void json_int(struct json_write *w, const char *key, long long v)
{
    char digits[DIGITS_MAX];
    put_key(w, key);
    put_bytes(w, digits, (size_t)(digits_write(digits, v) - digits));
}

void json_number(struct json_write *w, const char *key, double v)
{
    char text[40];
    put_key(w, key);
    put_bytes(w, text, (size_t)snprintf(text, sizeof text, isfinite(v) ? "%.15g" : "null", v));
}

void json_raw(struct json_write *w, const char *key, const char *json)
{
    put_key(w, key);
    put_bytes(w, json, strlen(json));
}

void json_bool(struct json_write *w, const char *key, bool v)
{
    put_key(w, key);
    put_bytes(w, v ? "true" : "false", v ? 4 : 5);
}
