/* Strings of a key-space: see keyspace.h. */
#include "common/base/numbers.h"
#include "rendezvousd/resp/request.h"
#include "rendezvousd/store/keyspace_impl.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_CAP 24 /* a counter never moves */
static_assert(NUMBER_CAP >= DIGITS_MAX, "room for any number");

/* From here on it is text. */
static void write_out(struct key *en)
{
    if (!en->text.is_number)
        return;
    en->text.len = (size_t)(digits_write(en->text.p, en->text.number) - en->text.p);
    en->text.is_number = false;
}

const char *keyspace_get(struct keyspace *k, const char *key, size_t key_len, size_t *ret_len)
{
    struct key *en = key_find(k, key, key_len, key_hash(k, key, key_len));
    if (!en || en->type != KEY_STRING)
        return NULL;
    write_out(en);
    *ret_len = en->text.len;
    return en->text.p;
}

/* Give the value room for exactly cap bytes (and a NUL). */
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

/* The key, new if need be with an empty value of cap bytes; a new one is fresh until told. */
static int open_text(struct keyspace *k, const char *key, size_t key_len, size_t cap, struct key **ret)
{
    unsigned hash = key_hash(k, key, key_len);
    struct key *en = key_find(k, key, key_len, hash);
    if (en && en->type != KEY_STRING)
        return -EPROTOTYPE;
    *ret = en;
    if (en)
        return 0;
    if (!keyspace_fits(k, keyspace_entry_bytes(key_len, cap)))
        return -ENOSPC;
    if (!(en = key_add(k, key, key_len, hash, KEY_STRING)))
        return -ENOMEM;
    int rc = resize(k, en, cap);
    if (rc < 0) {
        key_drop(k, en);
        return rc;
    }
    *ret = en;
    return 0;
}

/* Turn what is there into an empty string; nothing changes on failure. */
static int become_text(struct keyspace *k, struct key *en, size_t n)
{
    if (n > en->list.bytes && !keyspace_fits(k, n - en->list.bytes))
        return -ENOSPC;
    char *p = malloc(n + 1);
    if (!p)
        return -ENOMEM;
    key_free_value(en);
    en->type = KEY_STRING;
    en->text = (struct text){.p = p, .cap = n};
    key_charge(k, en);
    return 0;
}

static int store(struct keyspace *k, struct key *en, const void *v, size_t n)
{
    int rc = 0;
    if (en->type != KEY_STRING)
        rc = become_text(k, en, n);
    else if (n > en->text.cap || (n < en->text.cap / 2 && en->text.cap > NUMBER_CAP))
        rc = resize(k, en, n);
    if (rc < 0)
        return rc;
    if (n)
        memcpy(en->text.p, v, n);
    en->text.len = n;
    en->text.is_number = false;
    return 0;
}

static int set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, int64_t at_ms,
               bool *created)
{
    unsigned hash = key_hash(k, key, key_len);
    struct key *en = key_find(k, key, key_len, hash);
    bool made = !en;
    if (made && !keyspace_fits(k, keyspace_entry_bytes(key_len, n)))
        return -ENOSPC;
    if (made && !(en = key_add(k, key, key_len, hash, KEY_STRING)))
        return -ENOMEM;
    int rc = at_ms > 0 ? expiry_reserve(&k->expiry) : 0;
    if (rc == 0 && made)
        rc = resize(k, en, n);
    if (rc == 0)
        rc = store(k, en, v, n);
    if (rc < 0) {
        if (made)
            key_drop(k, en);
        return rc;
    }
    key_set_expiry(k, en, at_ms);
    key_changed(k, en);
    if (created)
        *created = made;
    return 0;
}

int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, bool *created)
{
    return set(k, key, key_len, v, n, KEYSPACE_NEVER, created);
}

int keyspace_set_expiring(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, int64_t at_ms)
{
    return set(k, key, key_len, v, n, at_ms, NULL);
}

/* Room for need bytes, and half as many again where that fits. */
static int grow(struct keyspace *k, struct key *en, size_t need)
{
    if (need <= en->text.cap)
        return 0;
    size_t roomy = need + need / 2;
    return resize(k, en, keyspace_fits(k, roomy - en->text.cap) ? roomy : need);
}

int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len,
                    bool *created)
{
    struct key *en;
    int rc = open_text(k, key, key_len, n, &en);
    if (rc == 0)
        write_out(en);
    if (rc == 0 && (rc = grow(k, en, en->text.len + n)) < 0 && en->fresh)
        key_drop(k, en);
    if (rc < 0)
        return rc;
    if (n)
        memcpy(en->text.p + en->text.len, v, n);
    en->text.len += n;
    *ret_len = en->text.len;
    if (created)
        *created = en->fresh;
    key_changed(k, en);
    return 0;
}

int keyspace_set_range(struct keyspace *k, const char *key, size_t key_len, size_t offset, const void *v, size_t n,
                       size_t *ret_len)
{
    struct key *en;
    int rc = open_text(k, key, key_len, offset + n, &en);
    if (rc == 0)
        write_out(en);
    if (rc == 0 && (rc = grow(k, en, offset + n)) < 0 && en->fresh)
        key_drop(k, en);
    if (rc < 0)
        return rc;
    if (offset > en->text.len)
        memset(en->text.p + en->text.len, 0, offset - en->text.len);
    if (n)
        memcpy(en->text.p + offset, v, n);
    if (en->text.len < offset + n)
        en->text.len = offset + n;
    *ret_len = en->text.len;
    key_changed(k, en);
    return 0;
}

/* The first addition to what was text or not there. */
__attribute__((noinline)) static int add_first(struct keyspace *k, const char *key, size_t key_len, int64_t delta,
                                               int64_t *ret, struct key **ret_en)
{
    struct key *en;
    int64_t old = 0;
    int rc = open_text(k, key, key_len, NUMBER_CAP, &en);
    if (rc < 0)
        return rc;
    if (!en->fresh && !request_i64(en->text.p, en->text.len, &old))
        return -EINVAL;
    if (__builtin_add_overflow(old, delta, ret))
        return -ERANGE; /* never of a fresh key */
    *ret_en = en;
    return en->text.cap < NUMBER_CAP ? resize(k, en, NUMBER_CAP) : 0;
}

int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, int64_t *ret, bool *created)
{
    struct key *en = key_find(k, key, key_len, key_hash(k, key, key_len));
    int64_t sum;
    if (!en || en->type != KEY_STRING || !en->text.is_number) {
        int rc = add_first(k, key, key_len, delta, &sum, &en);
        if (rc < 0)
            return rc;
    } else if (__builtin_add_overflow(en->text.number, delta, &sum)) {
        return -ERANGE;
    }
    en->text.number = sum;
    en->text.is_number = true;
    *ret = sum;
    if (created)
        *created = en->fresh;
    key_changed(k, en);
    return 0;
}
