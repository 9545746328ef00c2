/* See watch.h. */
#include "rendezvousd/store/watch.h"
#include "rendezvousd/resp/request.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include "common/base/seeded_hash.h"
#include <utlist.h>

struct watched {
    UT_hash_handle hh;
    struct watch *watches;
    size_t key_len;
    char key[];
};

struct watch {
    struct watcher *owner;
    struct watched *key;
    struct watch *prev, *next;     /* in key->watches */
    struct watch *o_prev, *o_next; /* in owner->watches */
};

struct watches {
    struct watched *table;
};

int watches_create(struct watches **ret)
{
    *ret = calloc(1, sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

void watches_destroy(struct watches *w)
{
    free(w);
}

static struct watched *make(struct watches *w, const struct request_arg *key)
{
    struct watched *k = calloc(1, sizeof *k + key->n);
    if (!k)
        return NULL;
    memcpy(k->key, key->p, key->n);
    k->key_len = key->n;
    HASH_ADD_KEYPTR(hh, w->table, k->key, key->n, k);
    if (k->hh.tbl)
        return k;
    free(k);
    return NULL;
}

static void drop_unwatched(struct watches *w, struct watched *k)
{
    if (k->watches)
        return;
    HASH_DEL(w->table, k);
    free(k);
}

int watches_add(struct watches *w, struct watcher *one, const struct request_arg *key)
{
    struct watched *k;
    struct watch *x;
    HASH_FIND(hh, w->table, key->p, key->n, k);
    if (k) {
        DL_FOREACH (k->watches, x)
            if (x->owner == one)
                return 0;
    }
    if (!k && !(k = make(w, key)))
        return -ENOMEM;
    if (!(x = calloc(1, sizeof *x))) {
        drop_unwatched(w, k);
        return -ENOMEM;
    }
    x->owner = one;
    x->key = k;
    DL_APPEND(k->watches, x);
    DL_APPEND2(one->watches, x, o_prev, o_next);
    one->bytes += sizeof *x + sizeof *k + key->n;
    return 0;
}

void watches_forget(struct watches *w, struct watcher *one)
{
    while (one->watches) {
        struct watch *x = one->watches;
        struct watched *k = x->key;
        DL_DELETE2(one->watches, x, o_prev, o_next);
        DL_DELETE(k->watches, x);
        drop_unwatched(w, k);
        free(x);
    }
    one->bytes = 0;
    one->broken = false;
}

void watches_changed(struct watches *w, const char *key, size_t key_len)
{
    struct watched *k = NULL;
    if (!w->table)
        return;
    HASH_FIND(hh, w->table, key, key_len, k);
    if (!k)
        return;
    struct watch *x;
    DL_FOREACH (k->watches, x)
        x->owner->broken = true;
}
