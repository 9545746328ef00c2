/* See reply.h. Numbers are written by hand: they are in every reply. */
#include "rendezvousd/reply.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Room for n bytes at the end, NULL if there is none. */
static char *room(struct reply *r, size_t n)
{
    if (r->failed)
        return NULL;
    if (r->out.cap - r->out.len <= n || r->out.len + n > r->out.max) {
        if (buf_reserve(&r->out, n) < 0) {
            r->failed = true;
            return NULL;
        }
    }
    return r->out.data + r->out.len;
}

static void added(struct reply *r, size_t n)
{
    r->out.len += n;
    r->out.data[r->out.len] = 0;
}

static void add(struct reply *r, const void *p, size_t n)
{
    char *at = room(r, n);
    if (!at)
        return;
    if (n)
        memcpy(at, p, n);
    added(r, n);
}

#define NUMBER_BYTES 24

static size_t count_digits(uint64_t u)
{
    size_t n = 1;
    for (; u >= 1000; u /= 1000)
        n += 3;
    return n + (u >= 10) + (u >= 100);
}

/* "<type><number>\r\n" to p, which has room for NUMBER_BYTES. Returns how many. Two digits at a time. */
static size_t write_number(char *p, char type, int64_t v)
{
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
        "49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
        "9899";
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    size_t n = count_digits(u) + (v < 0);
    p[0] = type;
    p[1] = '-';
    char *at = p + 1 + n;
    memcpy(at, "\r\n", 2);
    for (; u >= 10; u /= 100)
        memcpy(at -= 2, pairs + 2 * (u % 100), 2);
    if (u > 0 || at == p + 2 + (v < 0)) /* an odd number of digits */
        at[-1] = (char)('0' + u);
    return n + 3;
}

static void add_number(struct reply *r, char type, int64_t v)
{
    char *p = room(r, NUMBER_BYTES);
    if (p)
        added(r, write_number(p, type, v));
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
    char *at = room(r, n + NUMBER_BYTES + 2);
    if (!at)
        return;
    size_t head = write_number(at, '$', (int64_t)n);
    if (n)
        memcpy(at + head, p, n);
    memcpy(at + head + n, "\r\n", 2);
    added(r, head + n + 2);
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
