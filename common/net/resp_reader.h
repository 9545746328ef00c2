/* hiredis' reader with bounds on what a peer may make it take: 0.14 allocates whatever number of elements the peer
 * announces, looks for the end of a line from its beginning with every piece that comes, and forgets how long a reply
 * was whose first elements are read. With them the work is linear in what came. */
#ifndef CRUN_COMMON_RESP_READER_H
#define CRUN_COMMON_RESP_READER_H

#include <hiredis/hiredis.h>
#include <stddef.h>

struct err;

#define RESP_LINE_MAX ((size_t)65536) /* bytes of a status, an error, a number or a length */

/* Lives as long as the reader and does not move. */
struct resp_bound {
    size_t bytes; /* that came since the last whole reply */
    int max_elements;
#if HIREDIS_MAJOR < 1
    redisReplyObjectFunctions functions; /* hiredis' own, but for arrays */
    void *(*create_array)(const redisReadTask *, int);
#endif
};

/* NULL: no memory. Freed by redisReaderFree(). */
redisReader *resp_reader_create(struct resp_bound *b, int max_elements);

/* What has come. -EPROTO. */
int resp_reader_feed(struct resp_bound *b, redisReader *r, const char *p, size_t n, struct err *e);

/* 1: the next reply, for freeReplyObject(); 0: it is not whole yet. -EPROTO: malformed; -E2BIG: it has more than
 * max_bytes, or a line of more than RESP_LINE_MAX. After an error the reader is of no use. */
int resp_reader_take(struct resp_bound *b, redisReader *r, size_t max_bytes, redisReply **ret, struct err *e);

#endif
