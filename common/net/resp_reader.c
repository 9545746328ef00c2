/* Parses RESP replies with hiredis, within bounds (resp_reader.h). */
#include "common/net/resp_reader.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"

#if HIREDIS_MAJOR < 1
static void *bounded_array(const redisReadTask *task, int elements)
{
    struct resp_bound *b = task->privdata;
    return elements > b->max_elements ? NULL : b->create_array(task, elements);
}
#endif

redisReader *resp_reader_create(struct resp_bound *b, int max_elements)
{
    redisReader *r = redisReaderCreate();
    if (!r)
        return NULL;
    b->bytes = 0;
    b->max_elements = max_elements;
#if HIREDIS_MAJOR >= 1
    r->maxelements = max_elements;
#else
    b->functions = *r->fn;
    b->create_array = r->fn->createArray;
    b->functions.createArray = bounded_array;
    r->fn = &b->functions;
    r->privdata = b;
#endif
    return r;
}

static int malformed(const redisReader *r, struct err *e)
{
    return err_set(e, -EPROTO, "malformed reply: %s", r->errstr[0] ? r->errstr : "it is no RESP");
}

int resp_reader_feed(struct resp_bound *b, redisReader *r, const char *p, size_t n, struct err *e)
{
    if (n > 0 && redisReaderFeed(r, p, n) != REDIS_OK)
        return malformed(r, e);
    b->bytes += n;
    return 0;
}

/* True if the peer sends a line without end. The unread bytes begin with a line, or with a string that follows its
 * length line. */
static bool has_endless_line(const redisReader *r)
{
    const size_t left = r->len - r->pos;
    return left > RESP_LINE_MAX && !memmem(r->buf + r->pos, RESP_LINE_MAX, "\r\n", 2);
}

int resp_reader_take(struct resp_bound *b, redisReader *r, size_t max_bytes, redisReply **ret, struct err *e)
{
    void *reply = NULL;
    if (redisReaderGetReply(r, &reply) != REDIS_OK)
        return malformed(r, e);
    if (reply) {
        b->bytes = r->len - r->pos;
        *ret = reply;
        return 1;
    }
    if (b->bytes > max_bytes)
        return err_set(e, -E2BIG, "a reply exceeds %zu bytes", max_bytes);
    if (has_endless_line(r))
        return err_set(e, -E2BIG, "a reply exceeds %zu bytes in one line", RESP_LINE_MAX);
    return 0;
}
