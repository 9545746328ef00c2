/* hiredis' reader with a bound on the arrays it takes memory for: 0.14 allocates whatever number of elements the peer
 * announces. */
#ifndef CRUN_COMMON_RESP_READER_H
#define CRUN_COMMON_RESP_READER_H

#include <hiredis/hiredis.h>

/* Lives as long as the reader and does not move. */
struct resp_bound {
    int max_elements;
#if HIREDIS_MAJOR < 1
    redisReplyObjectFunctions functions; /* hiredis' own, but for arrays */
    void *(*create_array)(const redisReadTask *, int);
#endif
};

/* NULL: no memory. Freed by redisReaderFree(). */
redisReader *resp_reader_create(struct resp_bound *b, int max_elements);

#endif
