/* Queues of a key-space: push, pop, length (keyspace.h). */
#include "rendezvousd/store/keyspace_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct key *find_queue(struct keyspace *k, const char *key, size_t key_len)
{
    struct key *en = key_find(k, key, key_len, seeded_hash(key, key_len));
    return en && en->type == KEY_QUEUE ? en : NULL;
}

static struct item *make_item(const void *v, size_t n)
{
    struct item *it = malloc(sizeof *it + n);
    if (!it)
        return NULL;
    it->next = NULL;
    it->n = n;
    if (n)
        memcpy(it->p, v, n);
    return it;
}

static void add_item(struct queue *q, struct item *it)
{
    if (q->last)
        q->last->next = it;
    else
        q->first = it;
    q->last = it;
    q->n++;
    q->bytes += sizeof *it + it->n;
}

int keyspace_push(struct keyspace *k, const char *key, size_t key_len, const void *v, size_t n)
{
    const unsigned hash = seeded_hash(key, key_len);
    struct key *en = key_find(k, key, key_len, hash);
    if (en && en->type != KEY_QUEUE)
        return -EPROTOTYPE;
    if (!keyspace_fits(k, keyspace_entry_bytes(en ? 0 : key_len, sizeof(struct item) + n)))
        return -ENOSPC;
    struct item *it = make_item(v, n);
    if (it && !en)
        en = key_add(k, key, key_len, hash, KEY_QUEUE);
    if (!it || !en) {
        free(it);
        return -ENOMEM;
    }
    add_item(&en->queue, it);
    key_charge(k, en);
    key_created(k, en);
    return 0;
}

struct item *keyspace_pop(struct keyspace *k, const char *key, size_t key_len)
{
    struct key *en = find_queue(k, key, key_len);
    if (!en)
        return NULL;
    struct queue *q = &en->queue;
    struct item *it = q->first;
    q->first = it->next;
    if (!q->first)
        q->last = NULL;
    q->n--;
    q->bytes -= sizeof *it + it->n;
    key_charge(k, en);
    if (q->n == 0)
        key_drop(k, en);
    return it;
}

int keyspace_queue_length(struct keyspace *k, const char *key, size_t key_len, size_t *ret)
{
    struct key *en = key_find(k, key, key_len, seeded_hash(key, key_len));
    if (en && en->type != KEY_QUEUE)
        return -EPROTOTYPE;
    *ret = en ? en->queue.n : 0;
    return 0;
}
