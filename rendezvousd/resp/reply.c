/* Writes RESP2 replies into a bounded buffer (reply.h). */
#include "rendezvousd/resp/reply.h"
#include "common/base/numbers.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char *make_room(struct reply *r, size_t n)
{
    if (r->failed || buf_reserve(&r->out, n) < 0) {
        r->failed = true;
        return NULL;
    }
    return r->out.data + r->out.len;
}

/* Room for n bytes at the end; NULL if there is none. */
static inline char *room(struct reply *r, size_t n)
{
    bool there = !r->failed && r->out.cap - r->out.len > n && r->out.len + n <= r->out.max;
    return there ? r->out.data + r->out.len : make_room(r, n);
}

static inline void added(struct reply *r, const char *end)
{
    r->out.len = (size_t)(end - r->out.data);
    r->out.data[r->out.len] = 0;
}

void reply_raw(struct reply *r, const void *p, size_t n)
{
    char *at = room(r, n);
    if (!at)
        return;
    if (n)
        memcpy(at, p, n);
    added(r, at + n);
}

#define NUMBER_BYTES (1 + DIGITS_MAX + 2)

/* Write "<type><number>\r\n" to p, which has room for NUMBER_BYTES. */
static inline char *write_number(char *p, char type, int64_t v)
{
    *p++ = type;
    p = digits_write(p, v);
    memcpy(p, "\r\n", 2);
    return p + 2;
}

static void add_number(struct reply *r, char type, int64_t v)
{
    char *p = room(r, NUMBER_BYTES);
    if (p)
        added(r, write_number(p, type, v));
}

void reply_status(struct reply *r, const char *text)
{
    reply_raw(r, "+", 1);
    reply_raw(r, text, strlen(text));
    reply_raw(r, "\r\n", 2);
}

void reply_error(struct reply *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++) /* text that a client sent may be quoted here: it must not end the line */
        if (*p == '\r' || *p == '\n')
            *p = ' ';
    reply_raw(r, "-", 1);
    reply_raw(r, text, strlen(text));
    reply_raw(r, "\r\n", 2);
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
    at = write_number(at, '$', (int64_t)n);
    if (n)
        memcpy(at, p, n);
    memcpy(at + n, "\r\n", 2);
    added(r, at + n + 2);
}

void reply_text(struct reply *r, const char *s)
{
    reply_bulk(r, s, strlen(s));
}

void reply_nil(struct reply *r)
{
    reply_raw(r, "$-1\r\n", 5);
}

void reply_array(struct reply *r, size_t n)
{
    add_number(r, '*', (int64_t)n);
}
