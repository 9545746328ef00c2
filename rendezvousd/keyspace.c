/* See keyspace.h. A uthash table; the key is stored in its entry, the value beside it so that it can grow. */
#include "rendezvousd/keyspace.h"
#include "rendezvousd/request.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct entry {
    UT_hash_handle hh;
    char *value;
    size_t value_len, value_cap;
    size_t key_len;
    char key[];
};

struct keyspace {
    struct entry *table;
    size_t bytes, max_bytes;
};

int keyspace_create(struct keyspace **ret, size_t max_bytes)
{
    struct keyspace *k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->max_bytes = max_bytes;
    *ret = k;
    return 0;
}

size_t keyspace_entry_bytes(size_t key_len, size_t value_len)
{
    return sizeof(struct entry) + key_len + value_len + 1;
}

bool keyspace_fits(const struct keyspace *k, size_t more)
{
    return k->bytes <= k->max_bytes && more <= k->max_bytes - k->bytes;
}

void keyspace_charge(struct keyspace *k, ptrdiff_t delta)
{
    k->bytes += (size_t)delta;
}

static struct entry *find(const struct keyspace *k, const char *key, size_t key_len)
{
    struct entry *en;
    HASH_FIND(hh, k->table, key, key_len, en);
    return en;
}

const char *keyspace_get(const struct keyspace *k, const char *key, size_t key_len, size_t *ret_len)
{
    const struct entry *en = find(k, key, key_len);
    if (!en)
        return NULL;
    *ret_len = en->value_len;
    return en->value;
}

/* Give the value room for exactly cap bytes (and a NUL). */
static int resize(struct keyspace *k, struct entry *en, size_t cap)
{
    if (cap > en->value_cap && !keyspace_fits(k, cap - en->value_cap))
        return -ENOSPC;
    char *v = realloc(en->value, cap + 1);
    if (!v)
        return -ENOMEM;
    k->bytes += cap - en->value_cap;
    en->value = v;
    en->value_cap = cap;
    return 0;
}

static int add_entry(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n)
{
    if (!keyspace_fits(k, keyspace_entry_bytes(key_len, n)))
        return -ENOSPC;
    struct entry *en = calloc(1, sizeof *en + key_len);
    char *value = malloc(n + 1);
    if (!en || !value)
        goto no_memory;
    memcpy(en->key, key, key_len);
    en->key_len = key_len;
    if (n > 0)
        memcpy(value, v, n);
    en->value = value;
    en->value_len = en->value_cap = n;
    HASH_ADD_KEYPTR(hh, k->table, en->key, key_len, en);
    if (!en->hh.tbl)
        goto no_memory;
    k->bytes += keyspace_entry_bytes(key_len, n);
    return 0;

no_memory:
    free(value);
    free(en);
    return -ENOMEM;
}

int keyspace_set(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, bool *created)
{
    struct entry *en = find(k, key, key_len);
    if (created)
        *created = !en;
    if (!en)
        return add_entry(k, key, key_len, v, n);
    if (n > en->value_cap || n < en->value_cap / 2) {
        int rc = resize(k, en, n);
        if (rc < 0)
            return rc;
    }
    if (n > 0)
        memmove(en->value, v, n);
    en->value_len = n;
    return 0;
}

int keyspace_append(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, size_t *ret_len,
                    bool *created)
{
    struct entry *en = find(k, key, key_len);
    *created = !en;
    if (!en) {
        *ret_len = n;
        return add_entry(k, key, key_len, v, n);
    }
    size_t need = en->value_len + n;
    if (need > en->value_cap) {
        size_t roomy = need + need / 2;
        int rc = resize(k, en, keyspace_fits(k, roomy - en->value_cap) ? roomy : need);
        if (rc < 0)
            return rc;
    }
    if (n > 0)
        memcpy(en->value + en->value_len, v, n);
    en->value_len = need;
    *ret_len = need;
    return 0;
}

int keyspace_add(struct keyspace *k, const char *key, size_t key_len, int64_t delta, int64_t *ret, bool *created)
{
    const struct entry *en = find(k, key, key_len);
    int64_t old = 0, sum;
    if (en && !request_i64(en->value, en->value_len, &old))
        return -EINVAL;
    if (__builtin_add_overflow(old, delta, &sum))
        return -ERANGE;
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRId64, sum);
    int rc = keyspace_set(k, key, key_len, text, (size_t)n, created);
    if (rc == 0)
        *ret = sum;
    return rc;
}

static void drop(struct keyspace *k, struct entry *en)
{
    k->bytes -= keyspace_entry_bytes(en->key_len, en->value_cap);
    HASH_DEL(k->table, en);
    free(en->value);
    free(en);
}

bool keyspace_delete(struct keyspace *k, const char *key, size_t key_len)
{
    struct entry *en = find(k, key, key_len);
    if (en)
        drop(k, en);
    return en != NULL;
}

void keyspace_clear(struct keyspace *k)
{
    struct entry *en, *next;
    HASH_ITER (hh, k->table, en, next)
        drop(k, en);
}

void keyspace_destroy(struct keyspace *k)
{
    if (!k)
        return;
    keyspace_clear(k);
    free(k);
}

void keyspace_each(const struct keyspace *k, void (*visit)(void *arg, const char *key, size_t key_len), void *arg)
{
    for (const struct entry *en = k->table; en; en = en->hh.next)
        visit(arg, en->key, en->key_len);
}

size_t keyspace_count(const struct keyspace *k)
{
    return HASH_COUNT(k->table);
}

size_t keyspace_bytes(const struct keyspace *k)
{
    return k->bytes;
}
