/* See keyspace.h. A uthash table; the key is stored in its entry, the value beside it so that it can grow. The table
 * has 2^n buckets and only ever doubles (or starts anew when empty), so a cursor that counts buckets from their highest
 * bit down misses nothing. */
#include "rendezvousd/store/keyspace_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int keyspace_create(struct keyspace **ret, size_t max_bytes)
{
    struct keyspace *k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->max_bytes = max_bytes;
    k->now_ms = 1;
    if (getrandom(&k->seed, sizeof k->seed, GRND_NONBLOCK) != (ssize_t)sizeof k->seed)
        k->seed = (uintptr_t)k;
    *ret = k;
    return 0;
}

void keyspace_observe(struct keyspace *k,
                      void (*changed)(void *arg, enum key_change what, enum key_type type, const char *key,
                                      size_t key_len),
                      void *arg)
{
    k->changed = changed;
    k->changed_arg = arg;
}

/* --- memory */

size_t keyspace_entry_bytes(size_t key_len, size_t value_len)
{
    return sizeof(struct key) + key_len + value_len + 1;
}

bool keyspace_fits(const struct keyspace *k, size_t more)
{
    const struct keyspace_total *t = k->total;
    return k->bytes <= k->max_bytes && more <= k->max_bytes - k->bytes &&
           (!t || (t->bytes <= t->max_bytes && more <= t->max_bytes - t->bytes));
}

void keyspace_share(struct keyspace *k, struct keyspace_total *t)
{
    k->total = t;
}

void keyspace_charge(struct keyspace *k, ptrdiff_t delta)
{
    k->bytes += (size_t)delta;
    if (k->total)
        k->total->bytes += (size_t)delta;
}

size_t keyspace_bytes(const struct keyspace *k)
{
    return k->bytes;
}

void key_charge(struct keyspace *k, struct key *en)
{
    size_t now = keyspace_entry_bytes(en->name_len, en->type == KEY_LIST ? en->list.bytes : en->text.cap);
    keyspace_charge(k, (ptrdiff_t)now - (ptrdiff_t)en->charged);
    en->charged = now;
}

/* --- the table */

static struct key *find_key(struct keyspace *k, const char *key, size_t key_len)
{
    return key_find(k, key, key_len, key_hash(k, key, key_len));
}

struct key *key_add(struct keyspace *k, const char *key, size_t key_len, unsigned hash, enum key_type type)
{
    struct key *en = calloc(1, sizeof *en + key_len);
    if (!en)
        return NULL;
    if (key_len)
        memcpy(en->name, key, key_len);
    en->name_len = key_len;
    en->type = type;
    en->fresh = true;
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, k->table, en->name, key_len, hash, en);
    if (!en->hh.tbl) {
        free(en);
        return NULL;
    }
    key_charge(k, en);
    return en;
}

void key_free_value(struct key *en)
{
    if (en->type == KEY_LIST)
        list_free(&en->list);
    else
        free(en->text.p);
    en->text = (struct text){0};
}

void key_drop(struct keyspace *k, struct key *en)
{
    keyspace_charge(k, -(ptrdiff_t)en->charged);
    expiry_remove(&k->expiry, &en->expiry);
    HASH_DEL(k->table, en);
    if (!en->fresh)
        key_tell(k, KEY_DELETED, en);
    key_free_value(en);
    free(en);
}

bool keyspace_delete(struct keyspace *k, const char *key, size_t key_len)
{
    struct key *en = find_key(k, key, key_len);
    if (en)
        key_drop(k, en);
    return en != NULL;
}

void keyspace_clear(struct keyspace *k)
{
    struct key *en, *next;
    HASH_ITER (hh, k->table, en, next)
        key_drop(k, en);
}

void keyspace_destroy(struct keyspace *k)
{
    if (!k)
        return;
    k->changed = NULL;
    keyspace_clear(k);
    expiry_free(&k->expiry);
    free(k);
}

int keyspace_rename(struct keyspace *k, const char *from, size_t from_len, const char *to, size_t to_len)
{
    struct key *old = find_key(k, from, from_len), *target = find_key(k, to, to_len), *en;
    if (!old)
        return -ENOENT;
    if (old == target)
        return 0;
    if (!(en = key_add(k, to, to_len, key_hash(k, to, to_len), old->type))) /* in front of the one it replaces */
        return -ENOMEM;
    en->list = old->list; /* the larger of both kinds of value */
    if (old->type == KEY_STRING)
        en->text = old->text;
    old->type = KEY_STRING;
    old->text = (struct text){0};
    expiry_replace(&k->expiry, &old->expiry, &en->expiry);
    key_drop(k, old);
    if (target)
        key_drop(k, target);
    key_charge(k, en);
    key_changed(k, en);
    return 0;
}

enum key_type keyspace_type(struct keyspace *k, const char *key, size_t key_len)
{
    const struct key *en = find_key(k, key, key_len);
    return en ? en->type : KEY_NONE;
}

size_t keyspace_key_bytes(struct keyspace *k, const char *key, size_t key_len)
{
    const struct key *en = find_key(k, key, key_len);
    return en ? en->charged : 0;
}

size_t keyspace_count(const struct keyspace *k)
{
    return HASH_COUNT(k->table);
}

/* --- time */

void keyspace_tick(struct keyspace *k, int64_t now_ms)
{
    k->now_ms = now_ms;
}

int64_t keyspace_now(const struct keyspace *k)
{
    return k->now_ms;
}

int key_set_expiry(struct keyspace *k, struct key *en, int64_t at_ms)
{
    if (at_ms == KEYSPACE_KEEP)
        return 0;
    if (at_ms != KEYSPACE_NEVER)
        return expiry_set(&k->expiry, &en->expiry, at_ms);
    expiry_remove(&k->expiry, &en->expiry);
    return 0;
}

int64_t keyspace_expiry(struct keyspace *k, const char *key, size_t key_len)
{
    const struct key *en = find_key(k, key, key_len);
    if (!en)
        return -1;
    return en->expiry.place ? en->expiry.at : KEYSPACE_NEVER;
}

int keyspace_expire(struct keyspace *k, const char *key, size_t key_len, int64_t at_ms)
{
    struct key *en = find_key(k, key, key_len);
    if (!en)
        return -ENOENT;
    int rc = key_set_expiry(k, en, at_ms);
    if (rc == 0)
        key_changed(k, en);
    return rc;
}

size_t keyspace_expiring(const struct keyspace *k)
{
    return k->expiry.n;
}

static struct key *key_of(struct deadline *d)
{
    return container_of(d, struct key, expiry);
}

int64_t keyspace_next_expiry(const struct keyspace *k)
{
    const struct deadline *d = expiry_first(&k->expiry);
    return d ? d->at : INT64_MAX;
}

size_t keyspace_expire_due(struct keyspace *k, size_t at_most)
{
    size_t n = 0;
    for (struct deadline *d; n < at_most && (d = expiry_first(&k->expiry)) && k->now_ms > d->at; n++)
        key_drop(k, key_of(d));
    return n;
}

/* --- walks */

static bool alive(const struct keyspace *k, const struct key *en)
{
    return !en->expiry.place || k->now_ms <= en->expiry.at;
}

void keyspace_walk(const struct keyspace *k, keyspace_visit *visit, void *arg)
{
    for (const struct key *en = k->table; en; en = en->hh.next)
        if (alive(k, en))
            visit(arg, en->type, en->name, en->name_len);
}

static uint64_t reversed(uint64_t v)
{
    uint64_t r = 0;
    for (int i = 0; i < 64; i++, v >>= 1)
        r = r << 1 | (v & 1);
    return r;
}

uint64_t keyspace_scan(const struct keyspace *k, uint64_t cursor, keyspace_visit *visit, void *arg)
{
    if (!k->table)
        return 0;
    const struct UT_hash_table *t = k->table->hh.tbl;
    uint64_t mask = t->num_buckets - 1;
    for (struct UT_hash_handle *h = t->buckets[cursor & mask].hh_head; h; h = h->hh_next) {
        const struct key *en = ELMT_FROM_HH(t, h);
        if (alive(k, en))
            visit(arg, en->type, en->name, en->name_len);
    }
    return reversed(reversed(cursor | ~mask) + 1);
}

const char *keyspace_random(struct keyspace *k, uint64_t draw, size_t *ret_len)
{
    keyspace_expire_due(k, SIZE_MAX);
    if (!k->table)
        return NULL;
    const struct UT_hash_table *t = k->table->hh.tbl;
    uint64_t b = draw & (t->num_buckets - 1);
    while (!t->buckets[b].hh_head)
        b = (b + 1) & (t->num_buckets - 1);
    struct UT_hash_handle *h = t->buckets[b].hh_head;
    for (uint64_t skip = (draw >> 32) % t->buckets[b].count; skip > 0; skip--)
        h = h->hh_next;
    const struct key *en = ELMT_FROM_HH(t, h);
    *ret_len = en->name_len;
    return en->name;
}
