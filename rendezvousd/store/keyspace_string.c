/* Strings of a key-space: get, set, append, add (keyspace.h). */
#include "common/base/numbers.h"
#include "rendezvousd/store/keyspace_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES 24 /* values up to this size keep their memory when they change */

const char *keyspace_get(struct keyspace *k, const char *key, size_t key_len, size_t *ret_len)
{
    const struct key *en = key_find(k, key, key_len, seeded_hash(key, key_len));
    if (!en || en->type != KEY_STRING)
        return NULL;
    *ret_len = en->text.len;
    return en->text.p;
}

/* Give the value exactly cap bytes of memory (plus a NUL). */
static int resize(struct keyspace *k, struct key *en, size_t cap)
{
    if (cap > en->text.cap && !keyspace_fits(k, cap - en->text.cap))
        return -ENOSPC;
    char *p = realloc(en->text.p, cap + 1);
    if (!p)
        return -ENOMEM;
    en->text.p = p;
    en->text.cap = cap;
    key_charge(k, en);
    return 0;
}

/* Add a key with an empty value that has room for cap bytes; `fresh` until the observer is called. */
static int add_text(struct keyspace *k, const char *key, size_t key_len, unsigned hash, size_t cap, struct key **ret)
{
    if (!keyspace_fits(k, keyspace_entry_bytes(key_len, cap)))
        return -ENOSPC;
    struct key *en = key_add(k, key, key_len, hash, KEY_STRING);
    if (!en)
        return -ENOMEM;
    int rc = resize(k, en, cap);
    if (rc < 0)
        key_drop(k, en);
    else
        *ret = en;
    return rc;
}

static int open_text(struct keyspace *k, const char *key, size_t key_len, size_t cap, struct key **ret)
{
    const unsigned hash = seeded_hash(key, key_len);
    struct key *en = key_find(k, key, key_len, hash);
    if (!en)
        return add_text(k, key, key_len, hash, cap, ret);
    *ret = en;
    return en->type == KEY_STRING ? 0 : -EPROTOTYPE;
}

static int store(struct keyspace *k, struct key *en, const void *v, size_t n)
{
    if (n > en->text.cap || (n < en->text.cap / 2 && en->text.cap > SMALL_BYTES)) {
        int rc = resize(k, en, n);
        if (rc < 0)
            return rc;
    }
    if (n)
        memcpy(en->text.p, v, n);
    en->text.len = n;
    return 0;
}

int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, int64_t at_ms)
{
    const unsigned hash = seeded_hash(key, key_len);
    struct key *en = key_find(k, key, key_len, hash), *queue = NULL;
    int rc = at_ms > 0 ? expiry_reserve(&k->expiry) : 0;
    if (en && en->type == KEY_QUEUE)
        queue = en;
    if (rc == 0 && (!en || queue))
        rc = add_text(k, key, key_len, hash, n, &en); /* in front of the queue that it replaces */
    if (rc == 0)
        rc = store(k, en, v, n); /* cannot fail for a new one */
    if (rc < 0)
        return rc;
    if (queue)
        key_drop(k, queue);
    key_set_expiry(k, en, at_ms);
    key_created(k, en);
    return 0;
}

/* Make room for `need` bytes, and for half as many again if that fits. */
static int grow(struct keyspace *k, struct key *en, size_t need)
{
    if (need <= en->text.cap)
        return 0;
    size_t roomy = need + need / 2;
    return resize(k, en, keyspace_fits(k, roomy - en->text.cap) ? roomy : need);
}

int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len)
{
    struct key *en;
    int rc = open_text(k, key, key_len, n, &en);
    if (rc == 0)
        rc = grow(k, en, en->text.len + n);
    if (rc < 0)
        return rc;
    if (n)
        memcpy(en->text.p + en->text.len, v, n);
    en->text.len += n;
    *ret_len = en->text.len;
    key_created(k, en);
    return 0;
}

int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, keyspace_read_i64 *read,
                 int64_t *ret)
{
    char text[DIGITS_MAX];
    struct key *en;
    int64_t old = 0, sum;
    int rc = open_text(k, key, key_len, DIGITS_MAX, &en);
    if (rc < 0)
        return rc;
    if (!en->fresh && !read(en->text.p, en->text.len, &old))
        return -EINVAL;
    if (__builtin_add_overflow(old, delta, &sum))
        return -ERANGE; /* never of a fresh key */
    rc = store(k, en, text, (size_t)(digits_write(text, sum) - text));
    if (rc < 0)
        return rc; /* nor this */
    *ret = sum;
    key_created(k, en);
    return 0;
}
