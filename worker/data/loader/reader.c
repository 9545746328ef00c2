/* Reads one sample into a row of a batch, on a loader's thread, and watches for reads that do not end. */
#include "worker/data/loader/reader.h"

#include <errno.h>

#include "common/base/err.h"
#include "worker/data/loader/decoded_cache.h"
#include "worker/data/sets/dataset.h"

enum { ELSEWHERE, READING, LEFT };

/* A read has ended; -ECANCELED: the reader was left behind in it. */
static int end_read(struct reader *r, int rc)
{
    int was = READING;
    return atomic_compare_exchange_strong(&r->state, &was, ELSEWHERE) ? rc : -ECANCELED;
}

static void begin_read(struct reader *r, uint32_t id)
{
    atomic_store(&r->id, id);
    atomic_store(&r->state, READING);
}

static int read_file(struct reader *r, const struct reader_source *s, uint32_t id, int32_t *label, struct err *e)
{
    begin_read(r, id);
    return end_read(r, s->data->ops->read(s->data, id, &r->file, label, e));
}

/* By way of the cache: the whole picture, from there, or decoded for there. */
static int load_whole(struct reader *r, const struct reader_source *s, struct showing at, uint8_t *dst, int32_t *label,
                      struct err *e)
{
    struct image whole;
    if (!decoded_cache_find(s->cache, at.id, &whole, label)) {
        TRY(read_file(r, s, at.id, label, e));
        TRY(input_decode(s->input, r->scratch, r->file.data, r->file.len, &whole, e));
        decoded_cache_add(s->cache, at.id, &whole, *label);
    }
    return input_transform(s->input, r->scratch, &whole, at, dst, e);
}

/* The same pixels either way. */
static int load_picture(struct reader *r, const struct reader_source *s, struct showing at, uint8_t *dst,
                        int32_t *label, struct err *e)
{
    struct image whole;
    *label = 0;
    if (!r->scratch && !(r->scratch = input_scratch_create()))
        return err_errno(e, ENOMEM, "memory for a picture");
    if (r->file.cap > INPUT_KEPT_BYTES)
        buf_free(&r->file);
    buf_clear(&r->file);
    if (s->cache && (decoded_cache_has_room(s->cache) || decoded_cache_find(s->cache, at.id, &whole, label)))
        return load_whole(r, s, at, dst, label, e);
    TRY(read_file(r, s, at.id, label, e));
    return input_load(s->input, r->scratch, r->file.data, r->file.len, at, dst, e);
}

int reader_load(struct reader *r, const struct reader_source *s, struct showing at, void *dst, int32_t *labels,
                struct err *e)
{
    if (!s->input->tokens)
        return load_picture(r, s, at, dst, labels, e);
    begin_read(r, at.id);
    return end_read(r, s->data->ops->read_tokens(s->data, at.id, dst, labels, e));
}

void reader_finish(struct reader *r)
{
    input_scratch_destroy(r->scratch);
    buf_free(&r->file);
}

bool reader_is_left(const struct reader *r)
{
    return atomic_load(&r->state) == LEFT;
}

bool reader_is_reading(const struct reader *r, uint32_t *ret_id)
{
    *ret_id = atomic_load(&r->id);
    return atomic_load(&r->state) == READING;
}

bool reader_leave(struct reader *r)
{
    int was = READING;
    return atomic_compare_exchange_strong(&r->state, &was, LEFT);
}
