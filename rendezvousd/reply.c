/* See reply.h. Numbers are written by hand: they are in every reply. */
#include "rendezvousd/reply.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add(struct reply *r, const void *p, size_t n)
{
    if (!r->failed && buf_add(&r->out, p, n) < 0)
        r->failed = true;
}

static void add_number(struct reply *r, char type, int64_t v)
{
    char text[32], *end = text + sizeof text, *p = end - 2;
    memcpy(p, "\r\n", 2);
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    *--p = type;
    add(r, p, (size_t)(end - p));
}

void reply_status(struct reply *r, const char *text)
{
    add(r, "+", 1);
    add(r, text, strlen(text));
    add(r, "\r\n", 2);
}

void reply_error(struct reply *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++) /* what a client sent may be quoted here: it must not end the line */
        if (*p == '\r' || *p == '\n')
            *p = ' ';
    add(r, "-", 1);
    add(r, text, strlen(text));
    add(r, "\r\n", 2);
}

void reply_int(struct reply *r, int64_t v)
{
    add_number(r, ':', v);
}

void reply_bulk(struct reply *r, const void *p, size_t n)
{
    add_number(r, '$', (int64_t)n);
    add(r, p, n);
    add(r, "\r\n", 2);
}

void reply_text(struct reply *r, const char *s)
{
    reply_bulk(r, s, strlen(s));
}

void reply_nil(struct reply *r)
{
    add(r, "$-1\r\n", 5);
}

void reply_nil_array(struct reply *r)
{
    add(r, "*-1\r\n", 5);
}

void reply_array(struct reply *r, size_t n)
{
    add_number(r, '*', (int64_t)n);
}
