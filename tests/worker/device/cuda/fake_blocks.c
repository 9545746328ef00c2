#include "tests/worker/device/cuda/fake_blocks.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct block {
    void *at;
    size_t bytes;
    struct block *next;
};

struct fake_blocks {
    pthread_mutex_t lock;
    struct block *first;
};

struct fake_blocks *fake_blocks_open(void)
{
    struct fake_blocks *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void fake_blocks_close(struct fake_blocks *s)
{
    size_t bytes;
    while (fake_blocks_remove(s, NULL, &bytes))
        ;
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void fake_blocks_add(struct fake_blocks *s, void *at, size_t bytes)
{
    struct block *b = calloc(1, sizeof *b);
    pthread_mutex_lock(&s->lock);
    *b = (struct block){.at = at, .bytes = bytes, .next = s->first};
    s->first = b;
    pthread_mutex_unlock(&s->lock);
}

void *fake_blocks_remove(struct fake_blocks *s, const void *p, size_t *ret_bytes)
{
    void *at = NULL;
    pthread_mutex_lock(&s->lock);
    struct block **place = &s->first;
    while (*place && p && (*place)->at != p)
        place = &(*place)->next;
    if (*place) {
        struct block *b = *place;
        *place = b->next;
        at = b->at;
        *ret_bytes = b->bytes;
        free(b);
    }
    pthread_mutex_unlock(&s->lock);
    return at;
}

bool fake_blocks_have(struct fake_blocks *s, const void *p, size_t bytes)
{
    const uintptr_t at = (uintptr_t)p;
    bool r = false;
    pthread_mutex_lock(&s->lock);
    for (const struct block *b = s->first; b && !r; b = b->next)
        r = at >= (uintptr_t)b->at && at + bytes <= (uintptr_t)b->at + b->bytes;
    pthread_mutex_unlock(&s->lock);
    return r;
}
