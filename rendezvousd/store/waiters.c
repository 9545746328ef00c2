/* See waiters.h. Each awaited key has a list of links, one per waiter that names it; a waiter counts its missing keys
 * up and down, so that a key deleted again before the last one came is missed once more. */
#include "rendezvousd/store/waiters.h"
#include "rendezvousd/resp/request.h"
#include "rendezvousd/store/keyspace.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include "common/base/seeded_hash.h"
#include <utlist.h>

struct awaited {
    UT_hash_handle hh;
    struct link *links;
    size_t key_len;
    char key[];
};

struct link {
    struct waiter *owner;
    struct awaited *key;
    bool missing;             /* counted in owner->missing */
    struct link *prev, *next; /* in key->links */
};

struct waiter {
    void (*done)(void *arg);
    void *arg;
    struct waiter *next_done;
    size_t missing, n;
    struct link links[];
};

struct waiters {
    struct keyspace *keys;
    struct awaited *table;
    size_t count;
};

int waiters_create(struct waiters **ret, struct keyspace *k)
{
    struct waiters *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->keys = k;
    *ret = w;
    return 0;
}

static size_t waiter_bytes(size_t n)
{
    return sizeof(struct waiter) + n * sizeof(struct link);
}

static struct awaited *await(struct waiters *w, const char *key, size_t key_len)
{
    struct awaited *a;
    HASH_FIND(hh, w->table, key, key_len, a);
    if (a)
        return a;
    a = calloc(1, sizeof *a + key_len);
    if (!a)
        return NULL;
    memcpy(a->key, key, key_len);
    a->key_len = key_len;
    HASH_ADD_KEYPTR(hh, w->table, a->key, key_len, a);
    if (!a->hh.tbl) {
        free(a);
        return NULL;
    }
    keyspace_charge(w->keys, (ptrdiff_t)(sizeof *a + key_len));
    return a;
}

static void unlink_key(struct waiters *w, struct link *l)
{
    struct awaited *a = l->key;
    DL_DELETE(a->links, l);
    if (a->links)
        return;
    keyspace_charge(w->keys, -(ptrdiff_t)(sizeof *a + a->key_len));
    HASH_DEL(w->table, a);
    free(a);
}

static void detach(struct waiters *w, struct waiter *one)
{
    for (size_t i = 0; i < one->n; i++)
        unlink_key(w, &one->links[i]);
    one->n = 0;
}

static void release(struct waiters *w, struct waiter *one, size_t n)
{
    keyspace_charge(w->keys, -(ptrdiff_t)waiter_bytes(n));
    w->count--;
    free(one);
}

void waiters_remove(struct waiters *w, struct waiter *one)
{
    size_t n = one->n;
    detach(w, one);
    release(w, one, n);
}

int waiters_add(struct waiters *w, const struct request_arg *keys, size_t n, void (*done)(void *arg), void *arg,
                struct waiter **ret)
{
    size_t need = waiter_bytes(n);
    for (size_t i = 0; i < n; i++)
        need += sizeof(struct awaited) + keys[i].n;
    if (!keyspace_fits(w->keys, need))
        return -ENOSPC;
    struct waiter *one = calloc(1, waiter_bytes(n));
    if (!one)
        return -ENOMEM;
    keyspace_charge(w->keys, (ptrdiff_t)waiter_bytes(n));
    w->count++;
    one->done = done;
    one->arg = arg;
    for (; one->n < n; one->n++) {
        const struct request_arg *key = &keys[one->n];
        struct link *l = &one->links[one->n];
        if (!(l->key = await(w, key->p, key->n))) {
            detach(w, one);
            release(w, one, n);
            return -ENOMEM;
        }
        l->owner = one;
        DL_APPEND(l->key->links, l);
        l->missing = keyspace_type(w->keys, key->p, key->n) == KEY_NONE;
        one->missing += l->missing;
    }
    *ret = one;
    return 0;
}

size_t waiters_count(const struct waiters *w)
{
    return w->count;
}

static struct awaited *find_awaited(struct waiters *w, const char *key, size_t key_len)
{
    struct awaited *a = NULL;
    if (w->table)
        HASH_FIND(hh, w->table, key, key_len, a);
    return a;
}

static void tell_all(struct waiters *w, struct waiter *first)
{
    while (first) {
        struct waiter *one = first;
        void (*done)(void *) = one->done;
        void *arg = one->arg;
        first = one->next_done;
        waiters_remove(w, one);
        done(arg);
    }
}

/* The first at_most links that miss the key. In the order they came; removing a waiter may free `a`, so those that are
 * done are collected first. */
static void created(struct waiters *w, struct awaited *a, size_t at_most)
{
    struct waiter *first = NULL, **last = &first;
    for (struct link *l = a->links; l && at_most > 0; l = l->next) {
        if (!l->missing)
            continue;
        l->missing = false;
        at_most--;
        if (--l->owner->missing == 0) {
            *last = l->owner;
            last = &l->owner->next_done;
        }
    }
    tell_all(w, first);
}

void waiters_created(struct waiters *w, const char *key, size_t key_len)
{
    struct awaited *a = find_awaited(w, key, key_len);
    if (a)
        created(w, a, SIZE_MAX);
}

void waiters_created_one(struct waiters *w, const char *key, size_t key_len)
{
    struct awaited *a = find_awaited(w, key, key_len);
    if (a)
        created(w, a, 1);
}

static void missed(struct awaited *a)
{
    for (struct link *l = a->links; l; l = l->next) {
        l->owner->missing += !l->missing;
        l->missing = true;
    }
}

void waiters_deleted(struct waiters *w, const char *key, size_t key_len)
{
    struct awaited *a = find_awaited(w, key, key_len);
    if (a)
        missed(a);
}

void waiters_cleared(struct waiters *w)
{
    for (struct awaited *a = w->table; a; a = a->hh.next)
        missed(a);
}

void waiters_destroy(struct waiters *w)
{
    if (!w)
        return;
    while (w->table)
        waiters_remove(w, w->table->links->owner);
    free(w);
}
