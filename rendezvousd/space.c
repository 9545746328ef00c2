#include "rendezvousd/server_impl.h"
#include <errno.h>
#include <stdlib.h>

int space_create(struct space **ret, size_t max_bytes)
{
    struct space *sp = calloc(1, sizeof *sp);
    if (!sp)
        return -ENOMEM;
    sp->refs = 1;
    if (keyspace_create(&sp->keys, max_bytes) < 0 || waiters_create(&sp->waiters, sp->keys) < 0) {
        space_release(sp);
        return -ENOMEM;
    }
    *ret = sp;
    return 0;
}

struct space *space_hold(struct space *sp)
{
    sp->refs++;
    return sp;
}

void space_release(struct space *sp)
{
    if (!sp || --sp->refs > 0)
        return;
    waiters_destroy(sp->waiters);
    keyspace_destroy(sp->keys);
    free(sp);
}

void space_key_created(struct space *sp, const struct request_arg *key)
{
    waiters_created(sp->waiters, key->p, key->n);
}

void space_key_deleted(struct space *sp, const struct request_arg *key)
{
    waiters_deleted(sp->waiters, key->p, key->n);
}
