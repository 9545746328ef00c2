/* Deadlines in the order in which they come due: a binary heap that links structs embedded in the expiring objects.
 * Pure: no clock. */
#ifndef CRUN_RENDEZVOUSD_EXPIRY_H
#define CRUN_RENDEZVOUSD_EXPIRY_H

#include <stddef.h>
#include <stdint.h>

struct deadline {
    int64_t at;   /* ms; valid while it is in a heap */
    size_t place; /* in the heap, from 1; 0: in none */
};

struct expiry {
    struct deadline **v;
    size_t n, cap;
};

int expiry_reserve(struct expiry *h); /* makes sure that one more expiry_set() cannot fail; -ENOMEM */
int expiry_set(struct expiry *h, struct deadline *d, int64_t at); /* in the heap or not yet; -ENOMEM */
void expiry_remove(struct expiry *h, struct deadline *d);         /* no-op if it stands in none */
struct deadline *expiry_first(const struct expiry *h);            /* the soonest; NULL: none */
void expiry_free(struct expiry *h);                               /* frees the heap's memory, not the deadlines */

#endif
