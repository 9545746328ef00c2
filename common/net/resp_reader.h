/* hiredis' reader with bounds, so that a peer cannot make it take any amount of memory or time. hiredis 0.14
 * allocates as many elements as the peer announces, searches a line from its start again with every piece that
 * arrives, and does not count the bytes of a reply's first elements. With the bounds the work is linear in the bytes
 * received. */
#ifndef CRUN_COMMON_RESP_READER_H
#define CRUN_COMMON_RESP_READER_H

#include <hiredis/hiredis.h>
#include <stddef.h>

struct err;

#define RESP_LINE_MAX ((size_t)65536) /* bytes of a status, an error, a number or a length */

/* Lives as long as the reader, and does not move. */
struct resp_bound {
    size_t bytes; /* bytes since the last complete reply */
    int max_elements;
#if HIREDIS_MAJOR < 1
    redisReplyObjectFunctions functions; /* hiredis' own, except for arrays */
    void *(*create_array)(const redisReadTask *, int);
#endif
};

/* NULL: no memory. Freed by redisReaderFree(). */
redisReader *resp_reader_create(struct resp_bound *b, int max_elements);

/* Add received bytes. -EPROTO. */
int resp_reader_feed(struct resp_bound *b, redisReader *r, const char *p, size_t n, struct err *e);

/* 1: the next reply, for freeReplyObject(); 0: it is not complete yet. -EPROTO: malformed; -E2BIG: longer than
 * max_bytes, or a line longer than RESP_LINE_MAX. After an error the reader cannot be used. */
int resp_reader_take(struct resp_bound *b, redisReader *r, size_t max_bytes, redisReply **ret, struct err *e);

#endif
