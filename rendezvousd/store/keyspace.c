/* The keys of a key-space in hash tables (keyspace.h). Tables of uthash; the key is stored in its entry, the value
 * beside it so that it can grow. A table has 2^n buckets and only doubles (or starts anew when empty), so a cursor
 * that counts buckets from their highest bit down misses nothing. */
#include "rendezvousd/store/keyspace_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FREED_AT_ONCE 64 /* items of a queue freed at once; the rest is freed later */
#define FREED_BYTES 8192 /* bytes of a large value that take as long to free as a small key */

int keyspace_create(struct keyspace **ret, size_t max_bytes)
{
    struct keyspace *k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->max_bytes = max_bytes;
    k->now_ms = 1;
    *ret = k;
    return 0;
}

void keyspace_observe(struct keyspace *k,
                      void (*changed)(void *arg, enum key_change what, const char *key, size_t key_len), void *arg)
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
    bool fits = k->bytes <= k->max_bytes && more <= k->max_bytes - k->bytes;
    for (const struct keyspace_total *t = k->total; t && fits; t = t->above)
        fits = t->bytes <= t->max_bytes && more <= t->max_bytes - t->bytes;
    return fits;
}

void keyspace_share(struct keyspace *k, struct keyspace_total *t)
{
    k->total = t;
}

struct keyspace_total *keyspace_shared(const struct keyspace *k)
{
    return k->total;
}

void keyspace_charge(struct keyspace *k, ptrdiff_t delta)
{
    k->bytes += (size_t)delta;
    keyspace_charge_total(k->total, delta);
}

void keyspace_charge_total(struct keyspace_total *t, ptrdiff_t delta)
{
    for (; t; t = t->above)
        t->bytes += (size_t)delta;
}

size_t keyspace_bytes(const struct keyspace *k)
{
    return k->bytes;
}

void key_charge(struct keyspace *k, struct key *en)
{
    const size_t value = en->type == KEY_QUEUE ? en->queue.bytes : en->text.cap;
    const size_t now = keyspace_entry_bytes(en->name_len, value);
    keyspace_charge(k, (ptrdiff_t)now - (ptrdiff_t)en->charged);
    k->key_bytes += now - en->charged;
    en->charged = now;
}

/* --- what is freed later: chains of entries linked by hh.next; hh.prev of a chain's first entry is the next chain */

static void free_entry(struct key *en)
{
    if (en->type == KEY_STRING)
        free(en->text.p);
    while (en->type == KEY_QUEUE && en->queue.first) {
        struct item *it = en->queue.first;
        en->queue.first = it->next;
        free(it);
    }
    free(en);
}

static void leave_chain(struct keyspace_total *t, struct key *first)
{
    while (t->above)
        t = t->above;
    first->hh.prev = t->remains;
    t->remains = first;
}

/* Bytes of a chain that is freed later count only in the topmost total. */
static void count_as_left(struct keyspace_total *t, size_t bytes)
{
    for (; t && t->above; t = t->above)
        t->bytes -= bytes;
}

/* Part of a long queue. */
static void shorten(struct key *en, size_t items)
{
    for (; items > 0 && en->queue.first; items--) {
        struct item *it = en->queue.first;
        en->queue.first = it->next;
        en->queue.n--;
        free(it);
    }
}

/* The cost of freeing this key, in small keys. */
static size_t weight(const struct key *en)
{
    return 1 + en->charged / FREED_BYTES;
}

static void free_first(struct keyspace_total *t)
{
    struct key *en = t->remains, *next = en->hh.next, *other_chain = en->hh.prev;
    if (next)
        next->hh.prev = other_chain;
    t->remains = next ? next : other_chain;
    t->bytes -= en->charged;
    free_entry(en);
}

bool keyspace_sweep(struct keyspace_total *t, size_t at_most)
{
    while (at_most > 0 && t->remains) {
        struct key *en = t->remains;
        const size_t took = weight(en);
        if (en->type == KEY_QUEUE && en->queue.n > at_most) {
            shorten(en, at_most);
            return false;
        }
        free_first(t);
        at_most -= took < at_most ? took : at_most;
    }
    return !t->remains;
}

/* --- the tables */

static struct key **part_of(struct keyspace *k, unsigned hash)
{
    return &k->parts[hash >> (32 - PART_BITS)];
}

struct key *key_find(struct keyspace *k, const char *key, size_t key_len, unsigned hash)
{
    struct key *part = *part_of(k, hash), *en;
    HASH_FIND_BYHASHVALUE(hh, part, key, key_len, hash, en);
    if (!en || !en->expiry.place || k->now_ms <= en->expiry.at)
        return en;
    key_drop(k, en);
    return NULL;
}

static struct key *find_key(struct keyspace *k, const char *key, size_t key_len)
{
    return key_find(k, key, key_len, seeded_hash(key, key_len));
}

struct key *key_add(struct keyspace *k, const char *key, size_t key_len, unsigned hash, enum key_type type)
{
    struct key *en = calloc(1, sizeof *en + key_len), **part = part_of(k, hash);
    if (!en)
        return NULL;
    if (key_len)
        memcpy(en->name, key, key_len);
    en->name_len = key_len;
    en->type = type;
    en->fresh = true;
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, *part, en->name, key_len, hash, en);
    if (!en->hh.tbl) {
        free(en);
        return NULL;
    }
    k->count++;
    k->queues += type == KEY_QUEUE;
    key_charge(k, en);
    return en;
}

static void tell(struct keyspace *k, enum key_change what, const struct key *en)
{
    if (k->changed)
        k->changed(k->changed_arg, what, en->name, en->name_len);
}

void key_created(struct keyspace *k, struct key *en)
{
    if (!en->fresh)
        return;
    en->fresh = false;
    tell(k, KEY_CREATED, en);
}

void key_drop(struct keyspace *k, struct key *en)
{
    expiry_remove(&k->expiry, &en->expiry);
    HASH_DEL(*part_of(k, en->hh.hashv), en);
    k->count--;
    k->queues -= en->type == KEY_QUEUE;
    k->key_bytes -= en->charged;
    if (!en->fresh)
        tell(k, KEY_DELETED, en);
    if (k->total && en->type == KEY_QUEUE && en->queue.n > FREED_AT_ONCE) {
        k->bytes -= en->charged;
        count_as_left(k->total, en->charged);
        en->hh.next = NULL;
        leave_chain(k->total, en);
        return;
    }
    keyspace_charge(k, -(ptrdiff_t)en->charged);
    free_entry(en);
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
    struct keyspace_total own = {0}, *t = k->total ? k->total : &own;
    for (int i = 0; i < PARTS; i++) {
        struct key *first = k->parts[i];
        if (!first)
            continue;
        HASH_CLEAR(hh, k->parts[i]); /* the table only */
        leave_chain(t, first);
    }
    expiry_free(&k->expiry);
    k->bytes -= k->key_bytes;
    count_as_left(k->total, k->key_bytes);
    k->key_bytes = k->count = k->queues = 0;
    if (!k->total)
        keyspace_sweep(&own, SIZE_MAX);
    if (k->changed)
        k->changed(k->changed_arg, KEYS_CLEARED, "", 0);
}

void keyspace_destroy(struct keyspace *k)
{
    if (!k)
        return;
    k->changed = NULL;
    keyspace_clear(k);
    free(k);
}

enum key_type keyspace_type(struct keyspace *k, const char *key, size_t key_len)
{
    const struct key *en = find_key(k, key, key_len);
    return en ? en->type : KEY_NONE;
}

size_t keyspace_count(const struct keyspace *k)
{
    return k->count;
}

size_t keyspace_queues(const struct keyspace *k)
{
    return k->queues;
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
    return en ? key_set_expiry(k, en, at_ms) : -ENOENT;
}

size_t keyspace_expiring(const struct keyspace *k)
{
    return k->expiry.n;
}

int64_t keyspace_next_expiry(const struct keyspace *k)
{
    const struct deadline *d = expiry_first(&k->expiry);
    return d ? d->at : INT64_MAX;
}

size_t keyspace_expire_due(struct keyspace *k, size_t at_most)
{
    size_t n = 0, took = 0;
    for (struct deadline *d; took < at_most && (d = expiry_first(&k->expiry)) && k->now_ms > d->at; n++) {
        struct key *en = container_of(d, struct key, expiry);
        took += weight(en);
        key_drop(k, en);
    }
    return n;
}

/* --- walks: a cursor is a bucket number with the number of the part in its low bits */

static uint64_t reversed(uint64_t v)
{
    uint64_t r = 0;
    for (int i = 0; i < 64; i++, v >>= 1)
        r = r << 1 | (v & 1);
    return r;
}

/* Visit a bucket and return the next one; 0: it was the last. */
static uint64_t scan_part(const struct keyspace *k, const struct key *part, uint64_t bucket, keyspace_visit *visit,
                          void *arg)
{
    if (!part)
        return 0;
    const struct UT_hash_table *t = part->hh.tbl;
    const uint64_t mask = t->num_buckets - 1;
    for (struct UT_hash_handle *h = t->buckets[bucket & mask].hh_head; h; h = h->hh_next) {
        const struct key *en = ELMT_FROM_HH(t, h);
        if (!en->expiry.place || k->now_ms <= en->expiry.at)
            visit(arg, en->type, en->name, en->name_len);
    }
    return reversed(reversed(bucket | ~mask) + 1);
}

uint64_t keyspace_scan(const struct keyspace *k, uint64_t cursor, keyspace_visit *visit, void *arg)
{
    const uint64_t part = cursor % PARTS;
    const uint64_t bucket = scan_part(k, k->parts[part], cursor >> PART_BITS, visit, arg);
    if (bucket > 0)
        return bucket << PART_BITS | part;
    return (part + 1) % PARTS;
}
