/* The inside of a key-space, shared by keyspace.c (table, life, expiry) and keyspace_string.c (values). */
#ifndef CRUN_RENDEZVOUSD_KEYSPACE_IMPL_H
#define CRUN_RENDEZVOUSD_KEYSPACE_IMPL_H

#include "rendezvousd/expiry.h"
#include "rendezvousd/keyspace.h"
#include "rendezvousd/list.h"

#define HASH_NONFATAL_OOM 1
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
unsigned key_hash(const struct keyspace *k, const char *key, size_t key_len);
struct key *key_find(struct keyspace *k, const char *key, size_t key_len, unsigned hash); /* NULL; expired ones go */
struct key *key_add(struct keyspace *k, const char *key, size_t key_len, unsigned hash, enum key_type type);
void key_drop(struct keyspace *k, struct key *en); /* silently if fresh */
void key_charge(struct keyspace *k, struct key *en);
void key_changed(struct keyspace *k, struct key *en); /* tell the observer: created or changed */
int key_set_expiry(struct keyspace *k, struct key *en, int64_t at_ms);
void key_free_value(struct key *en);

#endif
