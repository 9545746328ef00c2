/* A binary heap of deadlines (expiry.h). */
#include "rendezvousd/store/expiry.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/array.h"

static void place_at(struct expiry *h, size_t i, struct deadline *d)
{
    h->v[i] = d;
    d->place = i + 1;
}

static void rise(struct expiry *h, size_t i)
{
    struct deadline *d = h->v[i];
    for (; i > 0 && h->v[(i - 1) / 2]->at > d->at; i = (i - 1) / 2)
        place_at(h, i, h->v[(i - 1) / 2]);
    place_at(h, i, d);
}

static void sink(struct expiry *h, size_t i)
{
    struct deadline *d = h->v[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && h->v[child + 1]->at < h->v[child]->at)
            child++;
        if (h->v[child]->at >= d->at)
            break;
        place_at(h, i, h->v[child]);
        i = child;
    }
    place_at(h, i, d);
}

static void settle(struct expiry *h, struct deadline *d)
{
    rise(h, d->place - 1);
    sink(h, d->place - 1);
}

int expiry_reserve(struct expiry *h)
{
    return ARRAY_RESERVE(h->v, h->cap, h->n + 1);
}

int expiry_set(struct expiry *h, struct deadline *d, int64_t at)
{
    if (!d->place) {
        if (expiry_reserve(h) < 0)
            return -ENOMEM;
        place_at(h, h->n++, d);
    }
    d->at = at;
    settle(h, d);
    return 0;
}

void expiry_remove(struct expiry *h, struct deadline *d)
{
    if (!d->place)
        return;
    size_t i = d->place - 1;
    struct deadline *last = h->v[--h->n];
    d->place = 0;
    if (last == d)
        return;
    place_at(h, i, last);
    settle(h, last);
}

struct deadline *expiry_first(const struct expiry *h)
{
    return h->n ? h->v[0] : NULL;
}

void expiry_free(struct expiry *h)
{
    free(h->v);
    *h = (struct expiry){0};
}
