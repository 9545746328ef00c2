/* The inside of a key-space, shared by keyspace*.c: table, life and expiry; strings; queues. */
#ifndef CRUN_RENDEZVOUSD_KEYSPACE_IMPL_H
#define CRUN_RENDEZVOUSD_KEYSPACE_IMPL_H

#include "common/base/container_of.h"
#include "rendezvousd/store/expiry.h"
#include "rendezvousd/store/keyspace.h"

#include "common/base/seeded_hash.h"

/* number of tables: one of a million keys would take 90 ms to grow, and nothing else would be served; many small
 * ones grow one at a time. */
#define PART_BITS 5
#define PARTS (1 << PART_BITS)

struct text {
    char *p;
    size_t len, cap; /* a NUL follows cap */
};

struct queue {
    struct item *first, *last;
    size_t n, bytes;
};

struct key {
    UT_hash_handle hh;
    struct deadline expiry;
    enum key_type type;
    bool fresh; /* created, but the observer was not called yet */
    union {
        struct text text;
        struct queue queue;
    };
    size_t charged; /* bytes of it in keyspace.bytes */
    size_t name_len;
    char name[];
};

struct keyspace {
    struct key *parts[PARTS]; /* chosen by the hash's highest bits; uthash uses the lowest */
    size_t count, queues;     /* number of keys; of those, keys that hold a queue */
    size_t bytes, key_bytes;  /* of everything, and of the keys alone */
    size_t max_bytes;
    struct expiry expiry;
    struct keyspace_total *total; /* NULL: this one counts alone */
    int64_t now_ms;
    void (*changed)(void *arg, enum key_change what, const char *key, size_t key_len);
    void *changed_arg;
};

/* keyspace.c */
struct key *key_find(struct keyspace *k, const char *key, size_t key_len,
                     unsigned hash); /* NULL: none; an expired one is deleted */
struct key *key_add(struct keyspace *k, const char *key, size_t key_len, unsigned hash, enum key_type type);
void key_drop(struct keyspace *k, struct key *en); /* without calling the observer, if fresh */
void key_charge(struct keyspace *k, struct key *en);
void key_created(struct keyspace *k, struct key *en); /* tell the observer, if it is fresh */
int key_set_expiry(struct keyspace *k, struct key *en, int64_t at_ms);

#endif
