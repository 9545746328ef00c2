/* The inside of a key-space, for keyspace*.c: table, life and expiry; strings; lists. */
#ifndef CRUN_RENDEZVOUSD_KEYSPACE_IMPL_H
#define CRUN_RENDEZVOUSD_KEYSPACE_IMPL_H

#include "common/base/container_of.h"
#include "rendezvousd/store/expiry.h"
#include "rendezvousd/store/keyspace.h"
#include "rendezvousd/store/list.h"

#define HASH_NONFATAL_OOM 1
#include <string.h>
#include <uthash.h>

/* A counter is kept as a number from one addition to the next; its text is written when somebody reads it. */
struct text {
    char *p;
    size_t len, cap; /* a NUL follows cap */
    int64_t number;
    bool is_number; /* p has room for it, and holds anything */
};

struct key {
    UT_hash_handle hh;
    struct deadline expiry;
    enum key_type type;
    bool fresh; /* made, and not yet told to the observer */
    union {
        struct text text;
        struct list list;
    };
    size_t charged; /* bytes of it in keyspace.bytes */
    size_t name_len;
    char name[];
};

struct keyspace {
    struct key *table;
    struct expiry expiry;
    size_t bytes, max_bytes;
    struct keyspace_total *total; /* NULL: this one counts alone */
    int64_t now_ms;
    uint64_t seed; /* of the hash: whoever chooses keys does not choose buckets */
    void (*changed)(void *arg, enum key_change what, enum key_type type, const char *key, size_t key_len);
    void *changed_arg;
};

/* keyspace.c */
struct key *key_add(struct keyspace *k, const char *key, size_t key_len, unsigned hash, enum key_type type);
void key_drop(struct keyspace *k, struct key *en); /* silently if fresh */
void key_charge(struct keyspace *k, struct key *en);
int key_set_expiry(struct keyspace *k, struct key *en, int64_t at_ms);
void key_free_value(struct key *en);

/* --- what every request needs: in line */

__extension__ typedef unsigned __int128 u128;

static inline uint64_t key_fold(uint64_t a, uint64_t b)
{
    u128 r = (u128)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

static inline uint64_t key_word(const char *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* The last one to eight bytes: loads that overlap where there are enough. */
static inline uint64_t key_tail(const char *p, size_t n)
{
    uint32_t a, b;
    if (n == 8)
        return key_word(p);
    if (n >= 4) {
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        return (uint64_t)a << 32 | b;
    }
    if (n == 0)
        return 0;
    return (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 | (unsigned char)p[n - 1];
}

/* Eight bytes at a time, multiplied into each other. */
static inline unsigned key_hash(const struct keyspace *k, const char *key, size_t key_len)
{
    uint64_t h = k->seed ^ key_len;
    for (; key_len > 8; key += 8, key_len -= 8)
        h = key_fold(h ^ key_word(key), 0x9e3779b97f4a7c15u);
    h = key_fold(h ^ key_tail(key, key_len), 0xd6e8feb86659fd93u);
    return (unsigned)(h ^ h >> 32);
}

static inline bool key_is(const struct key *en, const char *key, size_t key_len)
{
    if (en->name_len != key_len || key_len < 8)
        return en->name_len == key_len && memcmp(en->name, key, key_len) == 0;
    for (size_t at = 0; at + 8 < key_len; at += 8)
        if (key_word(en->name + at) != key_word(key + at))
            return false;
    return key_word(en->name + key_len - 8) == key_word(key + key_len - 8);
}

/* NULL: there is none; an expired one goes. As HASH_FIND_BYHASHVALUE() does, without its detours. */
static inline struct key *key_find(struct keyspace *k, const char *key, size_t key_len, unsigned hash)
{
    if (!k->table)
        return NULL;
    const UT_hash_table *t = k->table->hh.tbl;
    struct UT_hash_handle *h = t->buckets[hash & (t->num_buckets - 1)].hh_head;
    for (; h; h = h->hh_next) {
        struct key *en = container_of(h, struct key, hh);
        if (h->hashv != hash || !key_is(en, key, key_len))
            continue;
        if (!en->expiry.place || k->now_ms <= en->expiry.at)
            return en;
        key_drop(k, en);
        return NULL;
    }
    return NULL;
}

static inline void key_tell(struct keyspace *k, enum key_change what, const struct key *en)
{
    if (k->changed)
        k->changed(k->changed_arg, what, en->type, en->name, en->name_len);
}

/* Tell the observer: created or changed. */
static inline void key_changed(struct keyspace *k, struct key *en)
{
    enum key_change what = en->fresh ? KEY_CREATED : KEY_CHANGED;
    en->fresh = false;
    key_tell(k, what, en);
}

#endif
