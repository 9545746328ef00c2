/* See list.h. */
#include "rendezvousd/store/list.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 4 /* a power of two, as every capacity */

static struct item **slot(const struct list *l, size_t i)
{
    return &l->ring[(l->head + i) & (l->cap - 1)];
}

static size_t item_bytes(const struct item *it)
{
    return sizeof *it + it->n;
}

void list_free(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(*slot(l, i));
    free(l->ring);
    *l = (struct list){0};
}

/* Move everything into a ring of cap places. */
static int resize(struct list *l, size_t cap)
{
    struct item **ring = malloc(cap * sizeof *ring);
    if (!ring)
        return -ENOMEM;
    for (size_t i = 0; i < l->n; i++)
        ring[i] = *slot(l, i);
    free(l->ring);
    l->bytes += (cap - l->cap) * sizeof *ring;
    l->ring = ring;
    l->cap = cap;
    l->head = 0;
    return 0;
}

static void shrink(struct list *l)
{
    if (l->cap > 64 && l->n < l->cap / 4)
        resize(l, l->cap / 2); /* without memory for it, it stays large */
}

static struct item *make(const void *p, size_t n)
{
    struct item *it = malloc(sizeof *it + n);
    if (!it)
        return NULL;
    it->n = n;
    if (n)
        memcpy(it->p, p, n);
    return it;
}

int list_push(struct list *l, bool front, const void *p, size_t n)
{
    if (l->n == l->cap && resize(l, l->cap ? 2 * l->cap : FIRST_CAP) < 0)
        return -ENOMEM;
    struct item *it = make(p, n);
    if (!it)
        return -ENOMEM;
    if (front)
        l->head = (l->head - 1) & (l->cap - 1);
    l->n++;
    *slot(l, front ? 0 : l->n - 1) = it;
    l->bytes += item_bytes(it);
    return 0;
}

struct item *list_pop(struct list *l, bool front)
{
    if (!l->n)
        return NULL;
    struct item *it = *slot(l, front ? 0 : l->n - 1);
    if (front)
        l->head = (l->head + 1) & (l->cap - 1);
    l->n--;
    l->bytes -= item_bytes(it);
    shrink(l);
    return it;
}

const struct item *list_at(const struct list *l, size_t i)
{
    return *slot(l, i);
}

int list_set(struct list *l, size_t i, const void *p, size_t n)
{
    struct item *it = make(p, n), **at = slot(l, i);
    if (!it)
        return -ENOMEM;
    l->bytes = l->bytes - item_bytes(*at) + item_bytes(it);
    free(*at);
    *at = it;
    return 0;
}

int list_insert(struct list *l, size_t i, const void *p, size_t n)
{
    if (list_push(l, false, p, n) < 0)
        return -ENOMEM;
    struct item *it = *slot(l, l->n - 1);
    for (size_t at = l->n - 1; at > i; at--)
        *slot(l, at) = *slot(l, at - 1);
    *slot(l, i) = it;
    return 0;
}

void list_keep(struct list *l, size_t first, size_t n)
{
    while (l->n > first + n)
        free(list_pop(l, false));
    while (first-- > 0)
        free(list_pop(l, true));
}

static bool equal(const struct item *it, const void *p, size_t n)
{
    return it->n == n && memcmp(it->p, p, n) == 0;
}

size_t list_remove(struct list *l, const void *p, size_t n, int64_t count)
{
    bool from_end = count < 0;
    uint64_t most = count == 0 ? UINT64_MAX : from_end ? 0 - (uint64_t)count : (uint64_t)count;
    size_t removed = 0, kept = 0, total = l->n;
    for (size_t k = 0; k < total; k++) {
        size_t i = from_end ? total - 1 - k : k;
        struct item *it = *slot(l, i);
        if (removed < most && equal(it, p, n)) {
            l->bytes -= item_bytes(it);
            free(it);
            removed++;
            continue;
        }
        *slot(l, from_end ? total - 1 - kept : kept) = it;
        kept++;
    }
    if (from_end)
        l->head = (l->head + removed) & (l->cap ? l->cap - 1 : 0);
    l->n -= removed;
    shrink(l);
    return removed;
}
