/* Decoded pictures that the ranks of a node keep in memory together, so that each is read and decoded once for all of
 * them and for all passes.
 *
 *   the first rank: create() -> its record ("pid descriptor"), sent to the others -> join() there
 *   loader threads of any of them: find() -> pixels; else read, decode, add()
 *
 * Memory that has no name: the kernel gives it back when the last process that has it mapped is gone, however it ends.
 * It is filled once. A picture that is in it stays; when there is no room for the next, that one and all later ones
 * are decoded each time, as without a cache: each pass takes all pictures once, so one that made room for another
 * would be gone before it is wanted again. A rank that dies while it adds a picture leaves its place unused, and
 * nothing else.
 *
 * Any thread, without a lock: pictures never move. */
#ifndef CRUN_WORKER_DATA_DECODED_CACHE_H
#define CRUN_WORKER_DATA_DECODED_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/data/image/image.h"

struct decoded_cache;
struct err;

#define DECODED_RECORD 64 /* bytes of a record and its NUL */

/* For n pictures of `channels`, in `bytes` of memory in all, which is taken as it is needed. ERR_USAGE: bytes are not
 * enough for a table of n, or more than this machine has. -ENOMEM, -errno. */
int decoded_cache_create(struct decoded_cache **ret, size_t bytes, size_t n, int channels, struct err *e);
void decoded_cache_record(const struct decoded_cache *c, char out[DECODED_RECORD]);
/* That of another process of this machine, which lives, and made it with the same numbers. -errno: it cannot be
 * reached (-EACCES, -ENOENT in another name-space of processes), -EPROTO: it is something else. */
int decoded_cache_join(struct decoded_cache **ret, const char *record, size_t bytes, size_t n, int channels,
                       struct err *e);
void decoded_cache_close(struct decoded_cache *c); /* NULL allowed. Pictures that were found are gone then */

/* Picture id, 0..n-1, if it is there. ret: px lies in the cache, must not be written nor freed. */
bool decoded_cache_find(const struct decoded_cache *c, size_t id, struct image *ret, int *ret_label);
/* Is there still room, as far as is known? When there is none, whole pictures need not be decoded. */
bool decoded_cache_has_room(const struct decoded_cache *c);
/* Copies it, unless it is there. Where there is no room, or memory is short, nothing happens but that there is no room
 * from now on. */
void decoded_cache_add(struct decoded_cache *c, size_t id, const struct image *im, int label);

struct decoded_stats {
    size_t pictures, bytes, room; /* pictures that are in it; bytes taken, of these */
};
void decoded_cache_stats(const struct decoded_cache *c, struct decoded_stats *ret);

#endif
