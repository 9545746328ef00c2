/* A list of byte strings in a ring: both ends and every index in constant time. Pure. */
#ifndef CRUN_RENDEZVOUSD_LIST_H
#define CRUN_RENDEZVOUSD_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct item {
    size_t n;
    char p[];
};

/* All-zero is a valid empty list. */
struct list {
    struct item **ring;
    size_t head, n, cap;
    size_t bytes; /* taken, ring included */
};

void list_free(struct list *l);
int list_push(struct list *l, bool front, const void *p, size_t n); /* -ENOMEM */
struct item *list_pop(struct list *l, bool front);                  /* to be freed by the caller; NULL: empty */
const struct item *list_at(const struct list *l, size_t i);         /* i < l->n; borrowed until the next change */
int list_set(struct list *l, size_t i, const void *p, size_t n);    /* i < l->n; -ENOMEM */
int list_insert(struct list *l, size_t i, const void *p, size_t n); /* before i <= l->n; -ENOMEM */
void list_keep(struct list *l, size_t first, size_t n);             /* only these stay; first + n <= l->n */

/* Remove items equal to p: all (count 0), the first count, or the last -count. Returns how many. */
size_t list_remove(struct list *l, const void *p, size_t n, int64_t count);

#endif
