/* One sample for a loader thread: from the data set or the cache to a row of a batch. A read that does not come to an
 * end (a file server that is gone) can be left behind with its thread. */
#ifndef CRUN_WORKER_READER_H
#define CRUN_WORKER_READER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "worker/data/loader/input.h"

struct dataset;
struct decoded_cache;
struct err;

struct reader { /* of a thread; zeros are a valid one */
    struct buf file;
    struct input_scratch *scratch;
    _Atomic int state;   /* reader.c */
    _Atomic uint32_t id; /* of the sample that is read */
};

struct reader_source { /* borrowed */
    struct dataset *data;
    struct decoded_cache *cache; /* NULL: none */
    const struct input_options *input;
};

/* dst: as input_load(), or a row of tokens. labels: input_labels() of them; of a picture that of the record, also where
 * it is none. The errors of read(), read_tokens() and input_load(); of one that was left behind, any. */
int reader_load(struct reader *r, const struct reader_source *s, struct showing at, void *dst, int32_t *labels,
                struct err *e);
void reader_finish(struct reader *r);

/* Was it left behind? Then what the source names may be gone, and the thread ends. */
bool reader_is_left(const struct reader *r);

/* For other threads. Is it in a read, and of which sample? */
bool reader_is_reading(const struct reader *r, uint32_t *ret_id);
/* Leave it behind in the read that it is in; false: it is in none. It touches nothing of the loader any more; the data
 * set must stay. */
bool reader_leave(struct reader *r);

#endif
