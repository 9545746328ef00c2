/* Lists of a key-space: see keyspace.h. */
#include "rendezvousd/store/keyspace_impl.h"
#include <errno.h>

int keyspace_list(struct keyspace *k, const char *key, size_t key_len, bool create, struct key **ret)
{
    unsigned hash = key_hash(k, key, key_len);
    struct key *en = key_find(k, key, key_len, hash);
    if (!en && !create)
        return -ENOENT;
    if (!en && !(en = key_add(k, key, key_len, hash, KEY_LIST)))
        return -ENOMEM;
    if (en->type != KEY_LIST)
        return -EPROTOTYPE;
    *ret = en;
    return 0;
}

struct list *key_list(struct key *en)
{
    return &en->list;
}

void keyspace_settle(struct keyspace *k, struct key *en)
{
    if (en->list.n == 0) {
        key_drop(k, en);
        return;
    }
    key_charge(k, en);
    key_changed(k, en);
}

int keyspace_push(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n, bool front,
                  size_t *ret_len, bool *created)
{
    struct key *en;
    if (!keyspace_fits(k, keyspace_entry_bytes(key_len, sizeof(struct item) + n)))
        return -ENOSPC;
    int rc = keyspace_list(k, key, key_len, true, &en);
    if (rc < 0)
        return rc;
    rc = list_push(&en->list, front, v, n);
    if (rc == 0) {
        *ret_len = en->list.n;
        if (created)
            *created = en->fresh;
    }
    keyspace_settle(k, en);
    return rc;
}

struct item *keyspace_pop(struct keyspace *k, const char *key, size_t key_len, bool front)
{
    struct key *en;
    if (keyspace_list(k, key, key_len, false, &en) < 0)
        return NULL;
    struct item *it = list_pop(&en->list, front);
    keyspace_settle(k, en);
    return it;
}
