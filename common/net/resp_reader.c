#include "common/net/resp_reader.h"

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
