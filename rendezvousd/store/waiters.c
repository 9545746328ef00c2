/* Clients that wait for keys (waiters.h). Each awaited key has a list of links, one per waiter that names it. A waiter
 * counts its missing keys up and down, so that a key that is deleted before the last one came is missing again.
 *
 * A waiter gets its keys one by one, is then settled, and at last removed, when it is done or its client goes. A
 * removed waiter with many links stays in those lists without effect until waiters_sweep() has unlinked it.
 *
 * Clearing all keys takes no time: a new age begins (waiters.age, from 1). A link's state and a waiter's count are
 * valid only for the age stored with them. In any later age the link's key is missing (is_there()), and so are all
 * keys of the waiter (catch_up()). */
#include "rendezvousd/store/waiters.h"
#include "rendezvousd/resp/request.h"
#include "rendezvousd/store/keyspace.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/seeded_hash.h"
#include <utlist.h>

#define UNLINKED_AT_ONCE 64 /* names of a waiter unlinked at once; the rest later */

/* number of tables, as in keyspace_impl.h: many small ones, each of which grows alone */
#define PART_BITS 5
#define PARTS (1 << PART_BITS)

struct awaited {
    UT_hash_handle hh;
    struct link *links;
    size_t key_len;
    char key[];
};

struct link {
    struct waiter *owner;
    struct awaited *key;
    uint64_t there_in;        /* the age in which the key exists; 0: none */
    struct link *prev, *next; /* in key->links */
};

struct waiter {
    struct waiters *of;
    void (*done)(void *arg);
    void *arg;
    bool removed;
    struct waiter *next;  /* in the list of waiters that are done, or to be freed */
    uint64_t age;         /* of `missing` */
    size_t missing;       /* keys */
    bool settled;         /* all its keys are linked: it is done when none is missing */
    size_t names;         /* of all, twice the same counted twice */
    size_t unnamed_bytes; /* bytes charged in advance for keys that are not named yet */
    size_t n;             /* links */
    struct link links[];
};

struct waiters {
    struct keyspace *keys;        /* NULL: it was destroyed */
    struct keyspace_total *total; /* where memory is charged then; NULL: nowhere */
    struct waiter **remains;
    struct awaited *parts[PARTS]; /* chosen by the hash's highest bits; uthash uses the lowest */
    uint64_t age;
    size_t count, left; /* number of waiters; number of those not freed yet */
};

int waiters_create(struct waiters **ret, struct keyspace *k, struct waiter **remains)
{
    struct waiters *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->keys = k;
    w->remains = remains;
    w->age = 1;
    *ret = w;
    return 0;
}

/* --- memory */

static void charge(struct waiters *w, ptrdiff_t delta)
{
    if (w->keys)
        keyspace_charge(w->keys, delta);
    else
        keyspace_charge_total(w->total, delta);
}

static size_t waiter_bytes(size_t names)
{
    return sizeof(struct waiter) + names * sizeof(struct link);
}

static size_t awaited_bytes(size_t key_len)
{
    return sizeof(struct awaited) + key_len;
}

/* --- the table */

static struct awaited **part_of(struct waiters *w, unsigned hash)
{
    return &w->parts[hash >> (32 - PART_BITS)];
}

static struct awaited *find_awaited(struct waiters *w, const char *key, size_t key_len, unsigned hash)
{
    struct awaited *part = *part_of(w, hash), *a = NULL;
    if (part)
        HASH_FIND_BYHASHVALUE(hh, part, key, key_len, hash, a);
    return a;
}

static struct awaited *await(struct waiters *w, const char *key, size_t key_len)
{
    const unsigned hash = seeded_hash(key, key_len);
    struct awaited *a = find_awaited(w, key, key_len, hash), **part = part_of(w, hash);
    if (a)
        return a;
    a = calloc(1, awaited_bytes(key_len));
    if (!a)
        return NULL;
    if (key_len)
        memcpy(a->key, key, key_len);
    a->key_len = key_len;
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, *part, a->key, key_len, hash, a);
    if (!a->hh.tbl) {
        free(a);
        return NULL;
    }
    charge(w, (ptrdiff_t)awaited_bytes(key_len));
    return a;
}

static void unlink_key(struct waiters *w, struct link *l)
{
    struct awaited *a = l->key;
    DL_DELETE(a->links, l);
    if (a->links)
        return;
    charge(w, -(ptrdiff_t)awaited_bytes(a->key_len));
    HASH_DEL(*part_of(w, a->hh.hashv), a);
    free(a);
}

/* --- ages */

static bool is_there(const struct link *l)
{
    return l->there_in == l->owner->of->age;
}

static void catch_up(struct waiter *one)
{
    if (one->age == one->of->age)
        return;
    one->age = one->of->age;
    one->missing = one->n;
}

static void note(struct link *l, bool there)
{
    struct waiter *one = l->owner;
    catch_up(one);
    one->missing += is_there(l);
    l->there_in = there ? one->age : 0;
    one->missing -= there;
}

/* --- a waiter goes */

static void release(struct waiter *one)
{
    struct waiters *w = one->of;
    charge(w, -(ptrdiff_t)(waiter_bytes(one->names) + one->unnamed_bytes));
    free(one);
    if (--w->left == 0 && !w->keys)
        free(w);
}

/* How many were unlinked, of at_most. */
static size_t unlink_some(struct waiter *one, size_t at_most)
{
    size_t n = one->n < at_most ? one->n : at_most;
    for (size_t i = 0; i < n; i++)
        unlink_key(one->of, &one->links[--one->n]);
    return n;
}

void waiters_remove(struct waiters *w, struct waiter *one)
{
    w->count--;
    one->removed = true;
    if (w->remains && one->n > UNLINKED_AT_ONCE) {
        one->next = *w->remains;
        *w->remains = one;
        return;
    }
    unlink_some(one, SIZE_MAX);
    release(one);
}

bool waiters_sweep(struct waiter **remains, size_t at_most)
{
    while (*remains && at_most > 0) {
        struct waiter *one = *remains;
        at_most -= unlink_some(one, at_most);
        if (one->n > 0)
            break;
        *remains = one->next;
        release(one);
    }
    return !*remains;
}

static struct waiter *any(struct waiters *w)
{
    for (int i = 0; i < PARTS; i++)
        for (struct awaited *a = w->parts[i]; a; a = a->hh.next)
            for (struct link *l = a->links; l; l = l->next)
                if (!l->owner->removed)
                    return l->owner;
    return NULL;
}

void waiters_destroy(struct waiters *w)
{
    if (!w)
        return;
    for (struct waiter *one; w->count > 0 && (one = any(w));)
        waiters_remove(w, one);
    w->total = keyspace_shared(w->keys);
    w->keys = NULL;
    if (w->left == 0)
        free(w);
}

/* --- a waiter comes */

int waiters_begin(struct waiters *w, const struct request_arg *keys, size_t n, void (*done)(void *arg), void *arg,
                  struct waiter **ret)
{
    size_t name_bytes = 0;
    for (size_t i = 0; i < n; i++)
        name_bytes += awaited_bytes(keys[i].n);
    if (!keyspace_fits(w->keys, waiter_bytes(n) + name_bytes))
        return -ENOSPC;
    struct waiter *one = calloc(1, waiter_bytes(n));
    if (!one)
        return -ENOMEM;
    *one = (struct waiter){.of = w, .done = done, .arg = arg, .age = w->age, .names = n, .unnamed_bytes = name_bytes};
    charge(w, (ptrdiff_t)(waiter_bytes(n) + name_bytes));
    w->count++;
    w->left++;
    *ret = one;
    return 0;
}

int waiters_name(struct waiter *one, const struct request_arg *key)
{
    struct waiters *w = one->of;
    const bool there = keyspace_type(w->keys, key->p, key->n) != KEY_NONE;
    charge(w, -(ptrdiff_t)awaited_bytes(key->n));
    one->unnamed_bytes -= awaited_bytes(key->n);
    struct awaited *a = await(w, key->p, key->n);
    if (!a)
        return -ENOMEM;
    if (a->links && a->links->prev->owner == one) /* named before */
        return 0;
    catch_up(one);
    struct link *l = &one->links[one->n++];
    *l = (struct link){.owner = one, .key = a};
    DL_APPEND(a->links, l);
    one->missing++;
    note(l, there);
    return 0;
}

bool waiters_settle(struct waiter *one)
{
    one->settled = true;
    catch_up(one);
    return one->missing == 0;
}

size_t waiters_count(const struct waiters *w)
{
    return w->count;
}

/* --- keys come and go */

static void tell_all(struct waiters *w, struct waiter *first)
{
    while (first) {
        struct waiter *one = first;
        void (*done)(void *) = one->done;
        void *arg = one->arg;
        first = one->next;
        waiters_remove(w, one);
        done(arg);
    }
}

/* A key was created: at most at_most waiters are done, in their order; for the others the key counts as missing,
 * because it belongs to another. Removing a waiter may free `a`, so waiters that are done are collected first. */
static void created(struct waiters *w, struct awaited *a, size_t at_most)
{
    struct waiter *first = NULL, **last = &first;
    for (struct link *l = a->links; l; l = l->next) {
        struct waiter *one = l->owner;
        if (one->removed || is_there(l))
            continue;
        catch_up(one);
        const bool is_last = one->settled && one->missing == 1;
        if (is_last && at_most == 0)
            continue;
        note(l, true);
        if (is_last) {
            at_most--;
            *last = one;
            last = &one->next;
        }
    }
    *last = NULL;
    tell_all(w, first);
}

static void tell_created(struct waiters *w, const char *key, size_t key_len, size_t at_most)
{
    if (w->count == 0)
        return;
    struct awaited *a = find_awaited(w, key, key_len, seeded_hash(key, key_len));
    if (a)
        created(w, a, at_most);
}

void waiters_created(struct waiters *w, const char *key, size_t key_len)
{
    tell_created(w, key, key_len, SIZE_MAX);
}

void waiters_created_one(struct waiters *w, const char *key, size_t key_len)
{
    tell_created(w, key, key_len, 1);
}

void waiters_deleted(struct waiters *w, const char *key, size_t key_len)
{
    if (w->count == 0)
        return;
    const struct awaited *a = find_awaited(w, key, key_len, seeded_hash(key, key_len));
    for (struct link *l = a ? a->links : NULL; l; l = l->next)
        if (!l->owner->removed)
            note(l, false);
}

void waiters_cleared(struct waiters *w)
{
    w->age++;
}
