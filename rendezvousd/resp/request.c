/* Parses RESP2 requests from bytes as they arrive (request.h). */
#include "rendezvousd/resp/request.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX 32 /* "*<number>" or "$<number>" with its line end */

void request_parser_init(struct request_parser *p, const struct request_limits *l)
{
    *p = (struct request_parser){.bulk_len = -1};
    argbuf_init(&p->args, 0);
    request_parser_limit(p, l);
}

void request_parser_limit(struct request_parser *p, const struct request_limits *l)
{
    p->limits = *l;
    p->args.in.max = 2 * l->max_bytes + REQUEST_INLINE_MAX;
}

void request_parser_free(struct request_parser *p)
{
    argbuf_free(&p->args);
    free(p->line);
    p->line = NULL;
}

bool request_i64(const char *p, size_t n, int64_t *ret)
{
    bool negative = n > 0 && p[0] == '-';
    size_t i = negative;
    if (n == i || n > 20 || (p[i] == '0' && n > 1))
        return false;
    size_t safe = n < 18 ? n : 18; /* so many digits cannot overflow */
    uint64_t v = 0, max = negative ? (uint64_t)INT64_MAX + 1 : INT64_MAX;
    unsigned d = 0;
    for (; i < safe && (d = (unsigned char)p[i] - (unsigned)'0') <= 9; i++)
        v = v * 10 + d;
    for (; i < n && d <= 9; i++) {
        d = (unsigned char)p[i] - (unsigned)'0';
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, (uint64_t)d, &v))
            return false;
    }
    if (d > 9 || v > max)
        return false;
    *ret = negative ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

static inline char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

bool request_arg_is(const struct request_arg *a, const char *word)
{
    size_t i = 0;
    for (; i < a->n && word[i] && lower(a->p[i]) == word[i]; i++)
        ;
    return i == a->n && !word[i];
}

size_t request_buffered(const struct request_parser *p)
{
    return argbuf_left(&p->args);
}

bool request_begun(const struct request_parser *p)
{
    return request_buffered(p) > 0;
}

size_t request_memory(const struct request_parser *p)
{
    return argbuf_memory(&p->args);
}

static void retire(struct request_parser *p)
{
    free(p->line);
    p->line = NULL;
    p->multibulk = false;
    p->bulk_len = -1;
    p->args_left = 0;
    argbuf_retire(&p->args);
}

int request_feed(struct request_parser *p, const void *data, size_t n)
{
    if (p->args.complete)
        retire(p);
    return argbuf_feed(&p->args, data, n);
}

static int protocol_error(struct request_parser *p, struct err *e, const char *what)
{
    p->broken = true;
    return err_set(e, -EPROTO, "Protocol error: %s", what);
}

/* Parse a number of at most nine digits and its line end, like most headers; faster than request_i64() by 3 % of a
 * pipelined request. Returns the bytes of both; 0: something else, or more bytes are needed. */
static size_t short_line(const char *line, size_t have, int64_t *ret)
{
    const size_t most = have < 9 ? have : 9;
    size_t n = 0;
    int64_t v = 0;
    for (; n < most && line[n] >= '0' && line[n] <= '9'; n++)
        v = v * 10 + (line[n] - '0');
    if (n == 0 || have < n + 2 || line[n] != '\r' || line[n + 1] != '\n' || (line[0] == '0' && n > 1))
        return 0;
    *ret = v;
    return n + 2;
}

/* Parse the number in the header line at pos. 1: done, pos is behind it; 0: more bytes are needed; or a protocol
 * error. */
static int header(struct request_parser *p, const char *too_big, const char *invalid, int64_t *ret, struct err *e)
{
    const char *line = p->args.in.data + p->args.pos + 1; /* after '*' or '$' */
    const size_t have = p->args.in.len - p->args.pos - 1, taken = short_line(line, have, ret);
    if (taken > 0) {
        p->args.pos += 1 + taken;
        return 1;
    }
    const char *end = memchr(line, '\n', have < HEADER_MAX ? have : HEADER_MAX);
    if (!end)
        return have >= HEADER_MAX ? protocol_error(p, e, too_big) : 0;
    if (end == line || end[-1] != '\r' || !request_i64(line, (size_t)(end - 1 - line), ret))
        return protocol_error(p, e, invalid);
    p->args.pos = (size_t)(end + 1 - p->args.in.data);
    return 1;
}

/* Parse one argument of a multi-bulk request: its header, then its bytes. 1: it is complete. */
static int bulk(struct request_parser *p, struct err *e)
{
    if (p->bulk_len < 0) {
        if (p->args.pos == p->args.in.len)
            return 0;
        char c = p->args.in.data[p->args.pos];
        if (c != '$') {
            char what[] = "expected '$', got '?'";
            what[sizeof what - 3] = isprint((unsigned char)c) ? c : '?';
            return protocol_error(p, e, what);
        }
        int64_t n;
        int rc = header(p, "too big bulk count string", "invalid bulk length", &n, e);
        if (rc <= 0)
            return rc;
        size_t used = p->args.pos - p->args.start;
        if (n < 0 || used > p->limits.max_bytes || (uint64_t)n > p->limits.max_bytes - used)
            return protocol_error(p, e, "invalid bulk length");
        p->bulk_len = n;
    }
    size_t n = (size_t)p->bulk_len;
    if (p->args.in.len - p->args.pos < n + 2)
        return 0;
    if (memcmp(p->args.in.data + p->args.pos + n, "\r\n", 2) != 0)
        return protocol_error(p, e, "expected CRLF after bulk");
    TRY(argbuf_add(&p->args, p->args.pos, n, e));
    p->args.pos += n + 2;
    p->bulk_len = -1;
    p->args_left--;
    return 1;
}

static int multibulk(struct request_parser *p, struct err *e)
{
    if (!p->multibulk) {
        int64_t n;
        int rc = header(p, "too big mbulk count string", "invalid multibulk length", &n, e);
        if (rc <= 0)
            return rc;
        if (n > 0 && (uint64_t)n > p->limits.max_args)
            return protocol_error(p, e, "invalid multibulk length");
        p->multibulk = true;
        p->args_left = n > 0 ? n : 0;
    }
    while (p->args_left > 0) {
        int rc = bulk(p, e);
        if (rc <= 0)
            return rc;
    }
    argbuf_point(&p->args);
    p->multibulk = false;
    return 1;
}

/* Parse an escape in double quotes; *s points at the backslash, and at the last byte used afterwards. */
static char unescape(const char **s, const char *end)
{
    const char *c = *s + 1;
    const int byte = *c == 'x' ? hex_byte(c + 1, (size_t)(end - c - 1)) : -1;
    if (byte >= 0) {
        *s = c + 2;
        return (char)byte;
    }
    *s = c;
    static const char from[] = "nrtba", to[] = "\n\r\t\b\a";
    const char *at = *c ? strchr(from, *c) : NULL;
    return at ? to[at - from] : *c;
}

/* Parse one word of an inline request, unquoted into *out. Returns its end; NULL if quotes do not balance. */
static const char *word(const char *s, const char *end, char **out)
{
    char quote = 0;
    for (; s < end; s++) {
        if (!quote && isspace((unsigned char)*s))
            return s;
        if (!quote && (*s == '"' || *s == '\''))
            quote = *s;
        else if (quote == '"' && *s == '\\' && s + 1 < end)
            *(*out)++ = unescape(&s, end);
        else if (quote == '\'' && *s == '\\' && s + 1 < end && s[1] == '\'')
            *(*out)++ = *++s;
        else if (quote && *s == quote) {
            if (s + 1 < end && !isspace((unsigned char)s[1]))
                return NULL; /* a closing quote ends the word */
            return s + 1;
        } else
            *(*out)++ = *s;
    }
    return quote ? NULL : s;
}

static int inline_request(struct request_parser *p, struct err *e)
{
    const char *s = p->args.in.data + p->args.start;
    size_t have = p->args.in.len - p->args.start;
    const char *nl = memchr(p->args.in.data + p->args.pos, '\n', p->args.in.len - p->args.pos);
    size_t max = p->limits.max_bytes < REQUEST_INLINE_MAX ? p->limits.max_bytes : REQUEST_INLINE_MAX;
    if ((nl ? (size_t)(nl - s) : have) > max)
        return protocol_error(p, e, "too big inline request");
    if (!nl) {
        p->args.pos = p->args.in.len; /* looked at already */
        return 0;
    }
    p->args.pos = (size_t)(nl + 1 - p->args.in.data);
    const char *end = nl > s && nl[-1] == '\r' ? nl - 1 : nl;
    char *out = malloc((size_t)(end - s) + 1);
    if (!out)
        return err_set(e, -ENOMEM, "no memory for an inline request");
    p->line = out;
    while (s < end) {
        if (isspace((unsigned char)*s)) {
            s++;
            continue;
        }
        char *from = out;
        if (!(s = word(s, end, &out)))
            return protocol_error(p, e, "unbalanced quotes in request");
        if (p->args.argc == p->limits.max_args)
            return protocol_error(p, e, "too big inline request");
        TRY(argbuf_add(&p->args, 0, (size_t)(out - from), e));
        p->args.argv[p->args.argc - 1].p = from;
    }
    return 1;
}

/* The request that begins at start. */
static int next_request(struct request_parser *p, struct err *e)
{
    if (p->broken)
        return err_set(e, -EPROTO, "Protocol error: the connection is out of step");
    for (;;) {
        if (p->args.complete)
            retire(p);
        if (p->args.start == p->args.in.len)
            return 0;
        if (p->args.in.data[p->args.start] == '\0')
            return protocol_error(p, e, "byte 00 begins no RESP request (is this a client of PyTorch's TCPStore?)");
        int rc = p->args.in.data[p->args.start] == '*' ? multibulk(p, e) : inline_request(p, e);
        if (rc <= 0)
            return rc;
        p->args.complete = true;
        if (p->args.argc > 0)
            return 1; /* "*0", an empty line: no request, no answer */
    }
}

int request_next(struct request_parser *p, struct request *ret, struct err *e)
{
    int rc = next_request(p, e);
    if (rc > 0)
        *ret = (struct request){.argv = p->args.argv, .argc = p->args.argc};
    return rc;
}
