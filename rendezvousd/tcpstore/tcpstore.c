/* Parses TCPStore requests (tcpstore.h). `pos` moves past whole items only, so that after a cut at most one length
 * is parsed twice. */
#include "rendezvousd/tcpstore/tcpstore.h"
#include "common/base/err.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct op {
    const char *name;
    int code[3]; /* by generation */
    const char *fields;
};

static const struct op ops[TCPSTORE_OP_COUNT] = {
#define X(name, older, newer, fields) {#name, {TCPSTORE_NONE, older, newer}, fields},
    TCPSTORE_OPS(X)
#undef X
};

const char *tcpstore_op_name(enum tcpstore_op op)
{
    return ops[op].name;
}

void tcpstore_parser_init(struct tcpstore_parser *p, const struct tcpstore_limits *l)
{
    *p = (struct tcpstore_parser){.limits = *l, .op = -1};
    argbuf_init(&p->args, 2 * l->max_bytes + ARGBUF_KEEP_BYTES);
}

void tcpstore_parser_free(struct tcpstore_parser *p)
{
    argbuf_free(&p->args);
}

size_t tcpstore_buffered(const struct tcpstore_parser *p)
{
    return argbuf_left(&p->args);
}

size_t tcpstore_memory(const struct tcpstore_parser *p)
{
    return argbuf_memory(&p->args);
}

static void retire(struct tcpstore_parser *p)
{
    p->op = -1;
    argbuf_retire(&p->args);
}

int tcpstore_feed(struct tcpstore_parser *p, const void *data, size_t n)
{
    if (p->args.complete)
        retire(p);
    return argbuf_feed(&p->args, data, n);
}

static uint64_t little_endian(const char *at, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes; i-- > 0;)
        v = v << 8 | (unsigned char)at[i];
    return v;
}

/* Read an integer at pos, without moving pos. */
static bool peek(const struct tcpstore_parser *p, int bytes, uint64_t *ret)
{
    if (p->args.in.len - p->args.pos < (size_t)bytes)
        return false;
    *ret = little_endian(p->args.in.data + p->args.pos, bytes);
    return true;
}

static int refuse_number(struct tcpstore_parser *p, struct err *e, const char *what, uint64_t value, uint64_t max)
{
    p->broken = true;
    return err_set(e, -EPROTO, "%s: %s of %llu, expected up to %llu", ops[p->op].name, what, (unsigned long long)value,
                   (unsigned long long)max);
}

/* Parse a key or a value. 1: it is complete. */
static int item(struct tcpstore_parser *p, bool is_key, struct err *e)
{
    uint64_t n;
    const size_t used = p->args.pos - p->args.start, room = p->limits.max_bytes > used ? p->limits.max_bytes - used : 0;
    if (!peek(p, 8, &n))
        return 0;
    if (is_key && n > p->limits.max_key)
        return refuse_number(p, e, "a key length", n, p->limits.max_key);
    if (room < 8 || n > room - 8)
        return refuse_number(p, e, "a length", n, room < 8 ? 0 : room - 8);
    if (p->args.in.len - p->args.pos - 8 < n)
        return 0;
    TRY(argbuf_add(&p->args, p->args.pos + 8, (size_t)n, e));
    p->args.pos += 8 + (size_t)n;
    return 1;
}

/* How many items the next field has; fields with a count say it themselves. */
static int count(struct tcpstore_parser *p, struct err *e)
{
    uint64_t n;
    p->left = 1;
    if (*p->field == 'K' || *p->field == 'P') {
        if (!peek(p, 8, &n))
            return 0;
        if (n > p->limits.max_keys)
            return refuse_number(p, e, "a count", n, p->limits.max_keys);
        p->left = *p->field == 'P' ? 2 * n : n;
        p->args.pos += 8;
    }
    p->counted = true;
    return 1;
}

static int number(struct tcpstore_parser *p)
{
    uint64_t v;
    const int bytes = *p->field == 'u' ? 4 : 8;
    if (!peek(p, bytes, &v))
        return 0;
    p->number = (int64_t)v;
    p->args.pos += (size_t)bytes;
    return 1;
}

static int one_of_field(struct tcpstore_parser *p, struct err *e)
{
    switch (*p->field) {
    case 'k':
    case 'K':
        return item(p, true, e);
    case 'v':
        return item(p, false, e);
    case 'P':
        return item(p, p->left % 2 == 0, e);
    default:
        return number(p);
    }
}

static int fields(struct tcpstore_parser *p, struct err *e)
{
    for (; *p->field; p->field++, p->counted = false) {
        if (!p->counted) {
            int rc = count(p, e);
            if (rc <= 0)
                return rc;
        }
        for (; p->left > 0; p->left--) {
            int rc = one_of_field(p, e);
            if (rc <= 0)
                return rc;
        }
    }
    return 1;
}

/* Find the generation: five bytes decide; a first byte other than 00, at once. */
static bool tell_generation(struct tcpstore_parser *p)
{
    const char *in = p->args.in.data;
    if (in[0] != 0) {
        p->generation = TCPSTORE_OLDER;
        return true;
    }
    if (p->args.in.len < 5)
        return false;
    p->generation = little_endian(in + 1, 4) == TCPSTORE_MAGIC ? TCPSTORE_NEWER : TCPSTORE_OLDER;
    return true;
}

static int op_of(enum tcpstore_generation g, int code)
{
    for (int i = 0; i < TCPSTORE_OP_COUNT; i++)
        if (ops[i].code[g] == code)
            return i;
    return -1;
}

static int find_op(struct tcpstore_parser *p, struct err *e)
{
    const int code = (unsigned char)p->args.in.data[p->args.start];
    p->op = op_of(p->generation, code);
    if (p->op < 0) {
        p->broken = true;
        return err_set(e, -EPROTO, "byte %02x begins no request of this generation of TCPStore's protocol",
                       (unsigned)code);
    }
    p->args.pos = p->args.start + 1;
    p->field = ops[p->op].fields;
    p->counted = false;
    p->number = 0;
    return 0;
}

int tcpstore_peek(const struct tcpstore_parser *p)
{
    const size_t at = p->args.complete ? p->args.pos : p->args.start;
    if (at == p->args.in.len || p->generation == TCPSTORE_UNKNOWN)
        return -1;
    return op_of(p->generation, (unsigned char)p->args.in.data[at]);
}

int tcpstore_next(struct tcpstore_parser *p, struct tcpstore_request *ret, struct err *e)
{
    if (p->broken)
        return err_set(e, -EPROTO, "the connection is out of step");
    if (p->args.complete)
        retire(p);
    if (p->args.start == p->args.in.len || (p->generation == TCPSTORE_UNKNOWN && !tell_generation(p)))
        return 0;
    if (p->op < 0)
        TRY(find_op(p, e));
    int rc = fields(p, e);
    if (rc <= 0)
        return rc;
    argbuf_point(&p->args);
    p->args.complete = true;
    *ret = (struct tcpstore_request){
        .op = (enum tcpstore_op)p->op, .argv = p->args.argv, .argc = p->args.argc, .number = p->number};
    return 1;
}

bool tcpstore_read_i64(const char *p, size_t n, int64_t *ret)
{
    const char *end = p + n;
    int64_t v = 0;
    while (p < end && isspace((unsigned char)*p))
        p++;
    const bool negative = p < end && *p == '-';
    p += p < end && (*p == '-' || *p == '+');
    if (p == end || !isdigit((unsigned char)*p))
        return false;
    for (; p < end && isdigit((unsigned char)*p); p++) {
        const int digit = *p - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, negative ? -digit : digit, &v))
            return false;
    }
    *ret = v;
    return true;
}
